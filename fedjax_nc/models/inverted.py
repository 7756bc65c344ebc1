"""Networks of inverted residuals for small images: MobileNetV2 and EfficientNet-B0.

They have any width and any survival, as in `resnet`. First strides are 1 where the papers'
networks, made for 224 pixels, have 2.
"""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from fedjax_nc.models.conv import Conv, Dense
from fedjax_nc.models.lowerings import settle
from fedjax_nc.models.norm import Norm
from fedjax_nc.models.resnet import always, coin, momentum
from fedjax_nc.types import narrow


class Row(NamedTuple):
    """A stage as a line of the papers' tables: like blocks, only the first with a stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int
    kernel: int = 3


class Net(NamedTuple):
    """In what the two networks differ."""

    rows: tuple[Row, ...]
    act: str
    squeeze: bool  # whether channels are scaled by a function of the whole map's mean
    features: int = 1280
    projection: bool = False  # 1x1 before every depthwise, and in shortcuts where channels change


# Sandler et al. 2018, table 2; the second stage's stride is 1 in all CIFAR versions
MOBILENET_V2 = Net(
    (
        Row(1, 16, blocks=1, stride=1),
        Row(6, 24, blocks=2, stride=1),
        Row(6, 32, blocks=3, stride=2),
        Row(6, 64, blocks=4, stride=2),
        Row(6, 96, blocks=3, stride=1),
        Row(6, 160, blocks=3, stride=2),
        Row(6, 320, blocks=1, stride=1),
    ),
    "relu6",
    squeeze=False,
)
# FedDW's code: half the channels behind a whole stem
FEDDW = Net(
    tuple(row._replace(channels=row.channels // 2) for row in MOBILENET_V2.rows),
    "relu",
    squeeze=False,
    features=640,
    projection=True,
)
# Tan and Le 2019, table 1
EFFICIENTNET_B0 = Net(
    (
        Row(1, 16, blocks=1, stride=1),
        Row(6, 24, blocks=2, stride=2),
        Row(6, 40, blocks=2, stride=2, kernel=5),
        Row(6, 80, blocks=3, stride=2),
        Row(6, 112, blocks=3, stride=1, kernel=5),
        Row(6, 192, blocks=4, stride=2, kernel=5),
        Row(6, 320, blocks=1, stride=1),
    ),
    "silu",
    squeeze=True,
)


class Inverted(nn.Module):
    """1x1 to more channels, depthwise, 1x1 back without activation; a shortcut if shapes agree."""

    row: Row
    inputs: int  # at width 1
    stride: int
    net: Net
    norm: str
    conv: str
    width: float

    @nn.compact
    def __call__(self, x, keep: float = 1.0, *, train, mask):
        """Returns the block's map; in training the block is kept with probability `keep`."""
        inner = narrow(self.row.expansion * self.inputs, self.width)
        kept = coin(self, keep, train=train)
        conv = partial(Conv, lowering=self.conv)
        act = getattr(nn, self.net.act)
        norm = partial(Norm, self.norm, momentum=momentum(keep, kept, train=train))
        y = x
        if self.row.expansion > 1 or self.net.projection:
            y = act(norm()(conv(inner, 1)(y), train=train, mask=mask))
        side = self.row.kernel
        y = conv(inner, side, stride=self.stride, padding=side // 2, groups=inner)(y)
        y = act(norm()(y, train=train, mask=mask))
        if self.net.squeeze:
            units = narrow(max(1, self.inputs // 4), self.width)
            share = Dense(inner)(act(Dense(units)(jnp.mean(y, axis=(1, 2)))))
            y = y * nn.sigmoid(share)[:, None, None]
        out = narrow(self.row.channels, self.width)
        y = norm()(conv(out, 1)(y), train=train, mask=mask)
        if self.net.projection and self.stride == 1 and x.shape != y.shape:
            x = norm()(conv(out, 1)(x), train=train, mask=mask)
        if x.shape != y.shape:
            return y
        return x + (y if always(keep) else kept * y)


class Stage(nn.Module):
    """Blocks of like size, the first of which has no shortcut and is always kept."""

    row: Row
    inputs: int  # at width 1
    net: Net
    norm: str
    conv: str
    width: float
    keep: tuple[float, ...]  # of each block but the first

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns the map after the stage twice, since no ReLU ends it."""
        inputs, stride = self.inputs, self.row.stride
        for keep in (1.0, *self.keep):
            block = Inverted(
                self.row,
                inputs,
                stride=stride,
                net=self.net,
                norm=self.norm,
                conv=self.conv,
                width=self.width,
            )
            x = settle(block(x, keep, train=train, mask=mask))
            inputs, stride = self.row.channels, 1
        return x, x


class InvertedResiduals(nn.Module):
    """Seven stages between a 3x3 and a 1x1 convolution."""

    net: Net
    norm: str = "running"
    conv: str = "auto"
    survival: tuple[float, ...] = ()  # of each block with a shortcut; empty: all are always kept
    width: float = 1.0

    @property
    def channels(self) -> tuple[int, ...]:
        """The channels of every stage."""
        return tuple(row.channels for row in self.net.rows)

    @nn.nowrap
    def stage(self, number: int, name: str | None = None) -> Stage:
        """Returns one of the stages; without a name it keeps all its blocks."""
        row = self.net.rows[number]
        first = sum(row.blocks - 1 for row in self.net.rows[:number])
        keep = self.survival[first : first + row.blocks - 1] if name else ()
        inputs = self.net.rows[number - 1].channels if number else 32
        return Stage(
            row,
            inputs,
            net=self.net,
            norm=self.norm,
            conv=self.conv,
            width=self.width,
            keep=keep or (1.0,) * (row.blocks - 1),
            name=name,
        )

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns maps after stages, vectors of stem, stages and last layer, and features."""
        act, norm = getattr(nn, self.net.act), partial(Norm, self.norm)
        first, last = (narrow(n, self.width) for n in (32, self.net.features))
        x = Conv(first, 3, padding=1, lowering=self.conv)(x)
        x = norm()(x, train=train, mask=mask)
        blocks, levels = [], [jnp.mean(x, axis=(1, 2))]
        x = settle(act(x))
        for number in range(len(self.net.rows)):
            x, _ = self.stage(number, f"stage{number}")(x, train=train, mask=mask)
            blocks.append(x)
            levels.append(jnp.mean(x, axis=(1, 2)))
        x = norm()(Conv(last, 1, lowering=self.conv)(x), train=train, mask=mask)
        levels.append(jnp.mean(x, axis=(1, 2)))
        return tuple(blocks), tuple(levels), jnp.mean(act(x), axis=(1, 2))


def mobilenet_v2() -> InvertedResiduals:
    """Builds MobileNetV2."""
    return InvertedResiduals(MOBILENET_V2)


def mobilenet_v2_half() -> InvertedResiduals:
    """Builds FedDW's MobileNetV2."""
    return InvertedResiduals(FEDDW)


def efficientnet_b0() -> InvertedResiduals:
    """Builds EfficientNet-B0."""
    return InvertedResiduals(EFFICIENTNET_B0)
