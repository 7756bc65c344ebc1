"""VGG-11 for small images (Simonyan and Zisserman 2015, configuration A), as FedNTD's and FedDr+'s.

Two dense layers of 512 units take the place of ImageNet's two of 4096; no dropout.
"""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_nc.models.conv import Conv, Dense, he_fan_out, max_pool
from fedjax_nc.models.norm import Norm

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG11(nn.Module):
    """Eight 3x3 convolutions, pooling after each stage, 512 features.

    A map of one pixel is not pooled: 28 pixels are halved only four times.
    """

    norm: str = "none"
    conv: str = "auto"

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns maps after each stage, vectors before each stage's last ReLU, and features."""
        blocks, levels = [], []
        for stage in STAGES:
            for number, channels in enumerate(stage, 1):
                pool = number == len(stage) and min(x.shape[1:3]) > 1
                inside = pool and self.norm == "none"  # in the convolution if nothing comes between
                x = Conv(
                    channels,
                    3,
                    padding=1,
                    bias=True,
                    lowering=self.conv,
                    pool=inside,
                    kernel_init=he_fan_out,
                )(x)
                x = Norm(self.norm)(x, train=train, mask=mask)
                x = max_pool(x) if pool and not inside else x
                before, x = x, nn.relu(x)
            blocks.append(x)
            levels.append(jnp.mean(before, axis=(1, 2)))
        levels.append(Dense(512)(x.reshape(x.shape[0], -1)))
        levels.append(Dense(512)(nn.relu(levels[-1])))
        return tuple(blocks), tuple(levels), nn.relu(levels[-1])
