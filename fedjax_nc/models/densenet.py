"""DenseNet-121 (Huang et al. 2017) for small images: a 3x3 stem without pooling, as FedETF's."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from fedjax_nc.models.conv import Conv, avg_pool
from fedjax_nc.models.lowerings import settle
from fedjax_nc.models.norm import Norm

GROWTH = 32
LAYERS = (6, 12, 24, 16)


class Activated(nn.Module):
    """Normalisation, ReLU, then a convolution: in this network activation comes first."""

    channels: int
    kernel: int
    norm: str
    conv: str

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns the convolution's map."""
        x = nn.relu(Norm(self.norm)(x, train=train, mask=mask))
        return Conv(self.channels, self.kernel, lowering=self.conv)(x)


class DenseNet121(nn.Module):
    """Four stages of layers that see all maps before them, pooling between them, 1024 features."""

    norm: str = "running"
    conv: str = "auto"

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns maps after stages, vectors of stem, stages and last layer, and features."""
        layer = partial(Activated, norm=self.norm, conv=self.conv)
        x = Conv(2 * GROWTH, 3, lowering=self.conv)(x)
        blocks, levels = [], [jnp.mean(x, axis=(1, 2))]
        for number, count in enumerate(LAYERS):
            if number:
                x = avg_pool(layer(x.shape[-1] // 2, 1)(x, train=train, mask=mask))
            for _ in range(count):
                y = layer(4 * GROWTH, 1)(x, train=train, mask=mask)
                y = layer(GROWTH, 3)(y, train=train, mask=mask)
                x = settle(jnp.concatenate([x, y], -1))
            blocks.append(x)
            levels.append(jnp.mean(x, axis=(1, 2)))
        x = Norm(self.norm)(x, train=train, mask=mask)
        levels.append(jnp.mean(x, axis=(1, 2)))
        return tuple(blocks), tuple(levels), jnp.mean(nn.relu(x), axis=(1, 2))
