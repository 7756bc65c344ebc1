"""ShuffleNet (Zhang et al. 2018) for small images as FedDW's code has it: two groups, 1x1 stem."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from fedjax_nc.models.conv import Conv, avg_pool3
from fedjax_nc.models.lowerings import settle
from fedjax_nc.models.norm import Norm

GROUPS, STEM = 2, 24
STAGES = ((200, 4), (400, 8), (800, 4))  # channels, units


class Unit(nn.Module):
    """Grouped 1x1, shuffled channels, depthwise 3x3, grouped 1x1; then the input is added.

    With a stride the pooled input is put next to the new channels instead.
    """

    channels: int
    stride: int
    norm: str
    conv: str

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns the map before the ReLU that follows."""
        out = self.channels - (x.shape[-1] if self.stride > 1 else 0)
        conv, norm = partial(Conv, lowering=self.conv), partial(Norm, self.norm)
        groups = 1 if x.shape[-1] == STEM else GROUPS  # the stem has too few channels
        y = norm()(conv(out // 4, 1, groups=groups)(x), train=train, mask=mask)
        y = shuffle(nn.relu(y), groups)
        y = conv(out // 4, 3, stride=self.stride, padding=1, groups=out // 4)(y)
        y = nn.relu(norm()(y, train=train, mask=mask))
        y = norm()(conv(out, 1, groups=GROUPS)(y), train=train, mask=mask)
        return x + y if self.stride == 1 else jnp.concatenate([y, avg_pool3(x)], -1)


def shuffle(x, groups: int):
    """Takes one channel of every group in turn, so that the next groups see all of these."""
    return x.reshape(*x.shape[:-1], groups, -1).swapaxes(-1, -2).reshape(x.shape)


class ShuffleNet(nn.Module):
    """Three stages that halve the map, 800 features.

    It has one width only: the first channels of a layer would not be whole groups.
    """

    norm: str = "running"
    conv: str = "auto"

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Returns maps after each stage, vectors of stem and stages before their ReLU, features."""
        x = Norm(self.norm)(Conv(STEM, 1, lowering=self.conv)(x), train=train, mask=mask)
        blocks, levels = [], [jnp.mean(x, axis=(1, 2))]
        x = settle(nn.relu(x))
        for channels, units in STAGES:
            for i in range(units):
                unit = Unit(channels, 1 if i else 2, norm=self.norm, conv=self.conv)
                before = unit(x, train=train, mask=mask)
                x = settle(nn.relu(before))
            blocks.append(x)
            levels.append(jnp.mean(before, axis=(1, 2)))
        return tuple(blocks), tuple(levels), jnp.mean(x, axis=(1, 2))
