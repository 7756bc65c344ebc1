"""Residual networks for small images: three stages of basic blocks, 16-32-64 channels.

Any width: a narrow network has the first channels of every layer, as many as `types.narrow` says.
Any survival: in training a block is left out now and then (StochDepth).
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_nc.models.conv import Conv, he_normal, tile
from fedjax_nc.models.lowerings import settle
from fedjax_nc.models.norm import Norm
from fedjax_nc.models.tiles import untile
from fedjax_nc.types import narrow


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which to a smaller map is option A or B of the paper."""

    channels: int  # at width 1
    stride: int
    norm: str
    conv: str
    projection: bool
    width: float = 1.0
    keep: float = 1.0  # probability in training; in tests the branch is multiplied by it

    @nn.compact
    def __call__(self, x, *, train, mask):
        """One residual block, before the ReLU that ends it."""
        channels = narrow(self.channels, self.width)
        kept = self.keep
        if self.keep < 1 and train and not self.is_initializing():  # one coin for the whole batch
            kept = jax.random.bernoulli(self.make_rng("dropout"), self.keep).astype(jnp.float32)
        # a block that is left out leaves no statistics either
        norm = partial(Norm, self.norm, momentum=0.1 * kept if train and self.keep < 1 else 0.1)
        conv = partial(Conv, channels, padding=1, lowering=self.conv, kernel_init=he_normal)
        y = tile(conv(stride=self.stride)(x), self.conv)
        y = norm()(y, train=train, mask=mask)
        y = norm()(conv()(nn.relu(y)), train=train, mask=mask)
        if x.shape != y.shape and self.projection:  # option B
            x = tile(conv(kernel=1, stride=self.stride, padding=0)(x), self.conv)
            x = Norm(self.norm)(x, train=train, mask=mask)
        elif x.shape != y.shape:  # option A: subsampled and zero-padded, no parameters
            x = untile(x)[:, :: self.stride, :: self.stride]
            before = self.channels // 4  # the input has half as many: it goes in the middle
            around = ((0, 0, 0),) * 3 + ((before, channels - before - x.shape[-1], 0),)
            x = tile(lax.pad(x, jnp.zeros((), x.dtype), around), self.conv)
        return x + (y if self.keep == 1 else kept * y)


class Stage(nn.Module):
    """Blocks of like size, the first of which may halve the map."""

    channels: int
    stride: int
    norm: str
    conv: str
    projection: bool
    width: float
    keep: tuple[float, ...]  # of each block

    @nn.compact
    def __call__(self, x, *, train, mask):
        """The map after the stage, and before its last ReLU."""
        sums = x
        for i, keep in enumerate(self.keep):
            stride = 1 if i else self.stride
            block = BasicBlock(self.channels, stride, self.norm, self.conv, self.projection,
                               self.width, keep)  # fmt: skip
            sums = block(x, train=train, mask=mask)
            x = settle(nn.relu(sums))
        return untile(x), untile(sums)


class ResNetCifar(nn.Module):
    """ResNet of depth 6n+2 (He et al. 2016, section 4.2), 64 features."""

    depth: int
    norm: str = "running"
    conv: str = "auto"
    projection: bool = False  # option B's shortcuts instead of option A's
    survival: tuple[float, ...] = ()  # of each block; empty: all are always kept
    width: float = 1.0
    channels: tuple[int, ...] = (16, 32, 64)

    @nn.nowrap
    def stage(self, number: int, name: str | None = None) -> Stage:
        """One of the stages; alone it keeps all its blocks."""
        blocks = (self.depth - 2) // 6
        keep = self.survival[number * blocks : (number + 1) * blocks] if name else ()
        return Stage(self.channels[number], 2 if number else 1, self.norm, self.conv,
                     self.projection, self.width, keep or (1.0,) * blocks, name=name)  # fmt: skip

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps after each stage, vectors of stem and stages before their ReLU, features."""
        first = narrow(self.channels[0], self.width)
        x = tile(Conv(first, 3, padding=1, lowering=self.conv, kernel_init=he_normal)(x), self.conv)
        x = Norm(self.norm)(x, train=train, mask=mask)
        blocks, levels = [], [jnp.mean(untile(x), axis=(1, 2))]
        x = nn.relu(x)
        for number in range(len(self.channels)):
            x, sums = self.stage(number, f"stage{number}")(x, train=train, mask=mask)
            blocks.append(x)
            levels.append(jnp.mean(sums, axis=(1, 2)))
        return tuple(blocks), tuple(levels), jnp.mean(blocks[-1], axis=(1, 2))
