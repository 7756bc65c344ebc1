"""A multilayer perceptron on flattened images."""

import flax.linen as nn

from fedjax_nc.models.conv import Dense
from fedjax_nc.models.norm import Norm


class MLP(nn.Module):
    """Two hidden layers with ReLU; the features are the second."""

    norm: str = "none"
    conv: str = "auto"
    widths: tuple[int, ...] = (200, 128)

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns the vectors after and before each ReLU, and the features."""
        x = x.reshape(x.shape[0], -1)
        blocks, levels = [], []
        for units in self.widths:
            x = Dense(units)(x)
            levels.append(Norm(self.norm)(x, train=train, mask=mask))
            x = nn.relu(levels[-1])
            blocks.append(x)
        return tuple(blocks), tuple(levels), x
