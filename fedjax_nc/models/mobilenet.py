"""MobileNet (Howard et al. 2017) for small images: first stride 1, as FedBABU's and FedDr+'s."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from fedjax_nc.models.conv import Conv
from fedjax_nc.models.lowerings import settle
from fedjax_nc.models.norm import Norm

STAGES = ((64,), (128,) * 2, (256,) * 2, (512,) * 6, (1024,) * 2)


class Separable(nn.Module):
    """A 3x3 convolution of every channel by itself, then a 1x1 convolution over channels."""

    channels: int
    stride: int
    norm: str
    conv: str

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns the map before the ReLU that follows."""
        conv = partial(Conv, lowering=self.conv)
        x = conv(x.shape[-1], 3, stride=self.stride, padding=1, groups=x.shape[-1])(x)
        x = nn.relu(Norm(self.norm)(x, train=train, mask=mask))
        return Norm(self.norm)(conv(self.channels, 1)(x), train=train, mask=mask)


class MobileNet(nn.Module):
    """Thirteen separable convolutions in five stages, 1024 features."""

    norm: str = "running"
    conv: str = "auto"

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns maps after each stage, vectors of stem and stages before their ReLU, features."""
        x = Norm(self.norm)(Conv(32, 3, padding=1, lowering=self.conv)(x), train=train, mask=mask)
        blocks, levels = [], [jnp.mean(x, axis=(1, 2))]
        x = settle(nn.relu(x))
        for number, stage in enumerate(STAGES):
            for i, channels in enumerate(stage):
                stride = 1 if i or not number else 2
                layer = Separable(channels, stride, norm=self.norm, conv=self.conv)
                before = layer(x, train=train, mask=mask)
                x = settle(nn.relu(before))
            blocks.append(x)
            levels.append(jnp.mean(before, axis=(1, 2)))
        return tuple(blocks), tuple(levels), jnp.mean(x, axis=(1, 2))
