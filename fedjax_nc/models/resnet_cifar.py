"""Residual networks for small images: three stages of basic blocks, 16-32-64 channels."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from fedjax_nc.models.conv import Conv, he_normal, tile
from fedjax_nc.models.lowerings import settle
from fedjax_nc.models.norm import Norm
from fedjax_nc.models.tiles import untile


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which to a smaller map is option A or B of the paper."""

    channels: int
    stride: int
    norm: str
    conv: str
    projection: bool

    @nn.compact
    def __call__(self, x, *, train, mask):
        """One residual block."""
        conv = partial(Conv, self.channels, padding=1, lowering=self.conv, kernel_init=he_normal)
        y = tile(conv(stride=self.stride)(x), self.conv)
        y = Norm(self.norm)(y, train=train, mask=mask)
        y = Norm(self.norm)(conv()(nn.relu(y)), train=train, mask=mask)
        if x.shape != y.shape and self.projection:  # option B
            x = tile(conv(kernel=1, stride=self.stride, padding=0)(x), self.conv)
            x = Norm(self.norm)(x, train=train, mask=mask)
        elif x.shape != y.shape:  # option A: subsampled and zero-padded, no parameters
            extra = self.channels - x.shape[-1]
            x = untile(x)[:, :: self.stride, :: self.stride]
            x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (extra // 2, extra - extra // 2)))
            x = tile(x, self.conv)
        return settle(nn.relu(x + y))


class ResNetCifar(nn.Module):
    """ResNet of depth 6n+2 (He et al. 2016, section 4.2), 64 features."""

    depth: int
    norm: str = "running"
    conv: str = "auto"
    projection: bool = False  # option B's shortcuts instead of option A's

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Features of a batch, and the map after each stage."""
        x = tile(Conv(16, 3, padding=1, lowering=self.conv, kernel_init=he_normal)(x), self.conv)
        x = nn.relu(Norm(self.norm)(x, train=train, mask=mask))
        blocks = []
        for stage, channels in enumerate((16, 32, 64)):
            for i in range((self.depth - 2) // 6):
                stride = 2 if stage and not i else 1
                block = BasicBlock(channels, stride, self.norm, self.conv, self.projection)
                x = block(x, train=train, mask=mask)
            blocks.append(untile(x))
        return tuple(blocks), jnp.mean(blocks[-1], axis=(1, 2))
