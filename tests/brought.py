"""Data and networks as a stranger brings them along: what several tests share."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_nc.errors import UserError

SHAPE, CLASSES = (6, 6, 2), 4
REAL, PADDED = 5, 8
RNG = np.random.RandomState(0)


class Net(nn.Module):
    """A small network as a stranger writes it."""

    width: int = 4
    rate: float = 0.5

    @nn.compact
    def __call__(self, x, train):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        x = nn.relu(norm()(nn.Conv(self.width, (3, 3))(x)))
        x = nn.max_pool(x, (2, 2), strides=(2, 2)).reshape(len(x), -1)
        x = nn.Dropout(self.rate, deterministic=not train)(x)
        return norm()(nn.Dense(7)(x))


def draw(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.result_type(float))


def four(train=12, test=6, shape=(5, 4, 3), classes=3, dtype=np.uint8):
    """Random images or word ids with labels in turn."""
    high = 256 if len(shape) > 1 else 50
    x = [RNG.randint(0, high, (n, *shape)).astype(dtype) for n in (train, test)]
    y = [np.arange(n) % classes for n in (train, test)]
    return [x[0], y[0], x[1], y[1]]


def message(call, *args, **options):
    with pytest.raises(UserError) as raised:
        call(*args, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)
