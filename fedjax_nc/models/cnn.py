"""Two small convolutional networks: FedDW's, and the one FedAvg was introduced with."""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_nc.models.conv import Conv, Dense, max_pool
from fedjax_nc.models.norm import Norm


class CNN(nn.Module):
    """conv5x5 - pool - conv5x5 - pool - dense256 - dense128 (linear), valid padding.

    Grey images get FedDW's MNIST variant (10 and 20 channels, dropout 0.5 after the second
    convolution, pooling before ReLU), colour images its CIFAR variant (6 and 16 channels, pooling
    after ReLU). Pooling and ReLU commute, so both pool first here.
    """

    norm: str = "none"
    conv: str = "auto"

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns maps after each convolution, vectors before each ReLU, and features."""
        grey = x.shape[-1] == 1
        blocks, levels = [], []
        for i, channels in enumerate((10, 20) if grey else (6, 16)):
            dropout = grey and i == 1
            # in the convolution if nothing comes between
            pool = self.norm == "none" and not dropout
            x = Conv(channels, 5, padding="VALID", bias=True, lowering=self.conv, pool=pool)(x)
            x = Norm(self.norm)(x, train=train, mask=mask)
            if dropout:
                x = nn.Dropout(0.5)(x, deterministic=not train)
            x = x if pool else max_pool(x)
            levels.append(jnp.mean(x, axis=(1, 2)))
            x = nn.relu(x)
            blocks.append(x)
        levels.append(Dense(256)(x.reshape(x.shape[0], -1)))
        return tuple(blocks), tuple(levels), Dense(128)(nn.relu(levels[-1]))


class FedAvgCNN(nn.Module):
    """conv5x5x32 - pool - conv5x5x64 - pool - dense512, ReLU after each, valid padding.

    McMahan et al.'s network as PFLlib and FL-bench build it; the throughput benchmark's model.
    """

    norm: str = "none"
    conv: str = "auto"

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns maps after each convolution, vectors before each ReLU, and features."""
        blocks, levels = [], []
        for channels in (32, 64):
            pool = self.norm == "none"  # in the convolution if nothing comes between
            x = Conv(channels, 5, padding="VALID", bias=True, lowering=self.conv, pool=pool)(x)
            x = Norm(self.norm)(x, train=train, mask=mask)
            x = x if pool else max_pool(x)
            levels.append(jnp.mean(x, axis=(1, 2)))
            x = nn.relu(x)
            blocks.append(x)
        levels.append(Dense(512)(x.reshape(x.shape[0], -1)))
        return tuple(blocks), tuple(levels), nn.relu(levels[-1])
