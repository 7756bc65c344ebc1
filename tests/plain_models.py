"""Three of the networks once more, from flax's own layers and nothing of the project's."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

NORM = partial(nn.BatchNorm, momentum=0.9, epsilon=1e-5, use_fast_variance=False)
CONV = partial(nn.Conv, use_bias=False)


class ResNet20(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        norm = partial(NORM, use_running_average=not train)
        x = nn.relu(norm()(CONV(16, (3, 3), padding=1)(x)))
        for channels in (16, 32, 64):
            for number in range(3):
                stride = 2 if channels > 16 and number == 0 else 1
                y = nn.relu(norm()(CONV(channels, (3, 3), stride, padding=1)(x)))
                y = norm()(CONV(channels, (3, 3), padding=1)(y))
                if stride == 2:
                    x = jnp.pad(x[:, ::2, ::2], [(0, 0)] * 3 + [(channels // 4, channels // 4)])
                x = nn.relu(x + y)
        return x.mean((1, 2))


class VGG11(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        norm = partial(NORM, use_running_average=not train)
        for channels in (64, "M", 128, "M", 256, 256, "M", 512, 512, 512, 512):
            if channels == "M":
                x = nn.max_pool(x, (2, 2), (2, 2))
            else:
                x = nn.relu(norm()(nn.Conv(channels, (3, 3), padding=1)(x)))
        x = x.reshape(len(x), -1)  # of 8 pixels one is left after three poolings
        return nn.relu(nn.Dense(512)(nn.relu(nn.Dense(512)(x))))


class MobileNetV2(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        norm = partial(NORM, use_running_average=not train)
        x = nn.relu6(norm()(CONV(32, (3, 3), padding=1)(x)))
        for times, channels, count, first in (
            (1, 16, 1, 1),
            (6, 24, 2, 1),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for number in range(count):
                y, inner, stride = x, times * x.shape[-1], 1 if number else first
                if times > 1:
                    y = nn.relu6(norm()(CONV(inner, (1, 1))(y)))
                y = CONV(inner, (3, 3), stride, padding=1, feature_group_count=inner)(y)
                y = norm()(CONV(channels, (1, 1))(nn.relu6(norm()(y))))
                x = x + y if number else y
        return nn.relu6(norm()(CONV(1280, (1, 1))(x))).mean((1, 2))
