"""Residual networks: three stages for small images (He et al. 2016, 4.2), four for ImageNet's.

They have any width: a narrow network has the first channels of every layer, as many as
`types.narrow` says. They have any survival: training leaves out blocks at random (StochDepth).
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_nc.models.conv import Conv, he_fan_out, he_normal, max_pool3, tile
from fedjax_nc.models.lowerings import settle
from fedjax_nc.models.norm import Norm
from fedjax_nc.models.tiles import is_tiled, untile
from fedjax_nc.types import narrow

LOOP = 6  # from so many on, blocks of a stage are compiled once and run in a loop


def coin(module: nn.Module, keep: float | jax.Array, train: bool) -> float | jax.Array:
    """Draws 1 or 0, whether training keeps a branch for this batch; in tests the probability."""
    if always(keep) or not train or module.is_initializing():
        return keep
    return jax.random.bernoulli(module.make_rng("dropout"), keep).astype(jnp.float32)


def momentum(keep: float | jax.Array, kept: float | jax.Array, train: bool) -> float | jax.Array:
    """Returns the momentum of a branch's running statistics, which stay if it is left out."""
    return 0.1 if always(keep) or not train else 0.1 * kept


def always(keep: float | jax.Array) -> bool:
    """Returns whether a branch is never left out."""
    return isinstance(keep, float) and keep == 1


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; to a smaller map it is the paper's option A or B."""

    channels: int  # at width 1
    stride: int
    norm: str
    conv: str
    projection: bool
    width: float

    @nn.compact
    def __call__(self, x, keep: float | jax.Array = 1.0, *, train, mask):
        """Returns the sum before the last ReLU; training keeps the branch with this probability."""
        channels = narrow(self.channels, self.width)
        kept = coin(self, keep, train=train)
        norm = partial(Norm, self.norm, momentum=momentum(keep, kept, train=train))
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
        return x + (y if always(keep) else kept * y)


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution to four times the channels; shortcuts are option B."""

    channels: int  # of the first two convolutions, at width 1
    stride: int
    norm: str
    conv: str
    projection: bool
    width: float

    @nn.compact
    def __call__(self, x, keep: float | jax.Array = 1.0, *, train, mask):
        """Returns the sum before the last ReLU; training keeps the branch with this probability."""
        channels, out = (narrow(n * self.channels, self.width) for n in (1, 4))
        kept = coin(self, keep, train=train)
        norm = partial(Norm, self.norm, momentum=momentum(keep, kept, train=train))
        conv = partial(Conv, lowering=self.conv, kernel_init=he_fan_out)
        y = norm()(conv(channels, 1)(x), train=train, mask=mask)
        y = conv(channels, 3, stride=self.stride, padding=1)(nn.relu(y))
        y = tile(y, self.conv)
        y = norm()(y, train=train, mask=mask)
        y = norm()(conv(out, 1)(nn.relu(y)), train=train, mask=mask)
        if x.shape != y.shape:
            x = conv(out, 1, stride=self.stride)(x)
            x = tile(x, self.conv) if is_tiled(y) else x  # y is not with few inner channels
            x = Norm(self.norm)(x, train=train, mask=mask)
        return x + (y if always(keep) else kept * y)


class Stage(nn.Module):
    """Blocks of like size; the first may halve the map."""

    channels: int
    stride: int
    norm: str
    conv: str
    projection: bool
    bottleneck: bool
    width: float
    keep: tuple[float, ...]  # probability of each block

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns the map after the stage's last ReLU and the map before it."""
        block = partial(
            Bottleneck if self.bottleneck else BasicBlock,
            self.channels,
            norm=self.norm,
            conv=self.conv,
            projection=self.projection,
            width=self.width,
        )
        sums = block(stride=self.stride)(x, self.keep[0], train=train, mask=mask)

        def following(block, sums, keep: float | jax.Array = 1.0):
            return block(settle(nn.relu(sums)), keep, train=train, mask=mask), None

        if len(self.keep) < LOOP:
            for keep in self.keep[1:]:
                sums, _ = following(block(stride=1), sums, keep)
        else:
            probabilities = [] if all(map(always, self.keep)) else [jnp.asarray(self.keep[1:])]
            loop = nn.scan(
                following,
                {"params": 0, "batch_stats": 0},
                length=len(self.keep) - 1,
                split_rngs={"params": True, "dropout": True},
            )
            sums, _ = loop(block(stride=1, name="others"), sums, *probabilities)
        return untile(settle(nn.relu(sums))), untile(sums)


class ResNet(nn.Module):
    """A network of stages, with as many features as the last one has channels."""

    blocks: tuple[int, ...]  # of each stage
    norm: str = "running"
    conv: str = "auto"
    projection: bool = False  # option B's shortcuts instead of option A's
    survival: tuple[float, ...] = ()  # of each block; empty: all are always kept
    width: float = 1.0
    channels: tuple[int, ...] = (16, 32, 64)
    bottleneck: bool = False
    large_above: int | None = None  # the side above which the stem is ImageNet's

    @nn.nowrap
    def stage(self, number: int, name: str | None = None) -> Stage:
        """Returns one of the stages; without a name it keeps all its blocks."""
        first, count = sum(self.blocks[:number]), self.blocks[number]
        keep = self.survival[first : first + count] if name else ()
        return Stage(
            self.channels[number],
            stride=2 if number else 1,
            norm=self.norm,
            conv=self.conv,
            projection=self.projection,
            bottleneck=self.bottleneck,
            width=self.width,
            keep=keep or (1.0,) * count,
            name=name,
        )

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns maps after each stage, vectors of stem and stages before their ReLU, features."""
        first = narrow(self.channels[0], self.width)
        large = self.large_above is not None and min(x.shape[1:3]) > self.large_above
        stem = partial(Conv, first, lowering=self.conv, kernel_init=he_normal)
        stem = stem(7, stride=2, padding=3) if large else stem(3, padding=1)
        x = tile(stem(x), self.conv)
        x = Norm(self.norm)(x, train=train, mask=mask)
        blocks, levels = [], [jnp.mean(untile(x), axis=(1, 2))]
        x = nn.relu(x)
        x = tile(max_pool3(untile(x)), self.conv) if large else x
        for number in range(len(self.channels)):
            x, sums = self.stage(number, f"stage{number}")(x, train=train, mask=mask)
            blocks.append(x)
            levels.append(jnp.mean(sums, axis=(1, 2)))
        return tuple(blocks), tuple(levels), jnp.mean(blocks[-1], axis=(1, 2))
