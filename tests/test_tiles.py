"""Maps in tiles: the same convolutions, normalisation and networks as on rows of pixels."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_conv import draw, everything

from fedjax_nc import models
from fedjax_nc.models import conv, lowerings, tiles
from fedjax_nc.models.conv import Conv
from fedjax_nc.models.norm import Norm
from fedjax_nc.types import HeadSpec


def test_tiles_and_back():
    x = draw(0, 3, 8, 12, 2)
    cut = tiles.tile(x)
    chex.assert_shape(cut, (4, 4, 3, 2, 3, 2))
    np.testing.assert_array_equal(cut[1, 2, :, 1, 2], x[:, 5, 10])
    np.testing.assert_array_equal(tiles.untile(cut), x)
    assert tiles.untile(x) is x
    assert tiles.sides(cut) == tiles.sides(x) == (8, 12)


def test_who_is_tiled():
    assert tiles.is_tiled(conv.tile(draw(0, 2, 8, 4, 16)))
    for x in (draw(0, 2, 8, 6, 16), draw(0, 2, 8, 8, 3)):  # does not divide; few channels
        assert conv.tile(x) is x
    x = draw(0, 2, 8, 8, 16)
    assert conv.tile(x, "canonical") is x


@pytest.mark.parametrize("size", [(4, 4), (8, 12)])
@pytest.mark.parametrize(
    "kernel, stride, padding", [(3, 1, 1), (3, 1, "SAME"), (3, 2, 1), (1, 2, 0)]
)
def test_convolutions_equal_native(x64, size, kernel, stride, padding):
    params, x = {"kernel": draw(1, kernel, kernel, 3, 5)}, draw(2, 2, *size, 3)

    def native(params, x):
        return Conv(5, kernel, stride, padding, lowering="native").apply({"params": params}, x)

    def tiled(params, x):
        y = Conv(5, kernel, stride, padding).apply({"params": params}, tiles.tile(x))
        assert tiles.is_tiled(y) == (stride == 1)
        return tiles.untile(y)

    expected, result = jax.jit(lambda: [everything(f, params, x) for f in (native, tiled)])()
    chex.assert_trees_all_close(result, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mode", ["running", "batch", "group"])
def test_norm(x64, mode):
    x, mask = draw(0, 3, 8, 4, 2), jnp.asarray([True, False, True])
    weight = draw(1, 3, 8, 4, 2) * mask[:, None, None, None]
    norm = Norm(mode)
    variables = norm.init(jax.random.key(0), x, train=False)

    def loss(x, change):
        y, new = norm.apply(variables, change(x), train=True, mask=mask, mutable=["batch_stats"])
        return jnp.sum(weight * jnp.tanh(tiles.untile(y))), new

    expected, result = (
        jax.value_and_grad(loss, has_aux=True)(x, change) for change in (lambda x: x, tiles.tile)
    )
    chex.assert_trees_all_close(result, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name, norm", [("resnet8", "running"), ("resnet20_b", "group")])
def test_networks_equal_native(x64, name, norm):
    x, mask = draw(0, 2, 16, 16, 3), jnp.asarray([True, True])

    def everything_of(lowering):
        model = models.build(name, (16, 16, 3), 4, HeadSpec(), norm=norm, conv=lowering)
        weights = jax.tree.map(lambda w: w.astype(float), model.init(jax.random.key(0)))

        def loss(params):
            out, stats = model.apply(weights._replace(params=params), x, train=True, mask=mask)
            return jnp.sum(out.logits**2), (out.blocks, stats)

        return jax.value_and_grad(loss, has_aux=True)(weights.params)

    expected, result = jax.jit(lambda: [everything_of(low) for low in ("native", "auto")])()
    chex.assert_trees_all_close(result, expected, rtol=1e-6, atol=1e-8)


def test_settle_changes_nothing():
    for first in (1.0, jnp.nan, jnp.inf):
        x = jnp.asarray([first, -1.0])
        np.testing.assert_array_equal(lowerings.settle(x), x)
        np.testing.assert_array_equal(jax.grad(lambda x: lowerings.settle(x)[1])(x), [0, 1])


def test_settle_survives_the_compiler(optimised):
    def chain(x):
        return lowerings.settle(jnp.tanh(x)) @ jnp.ones(8)

    assert "conditional(" in jax.jit(chain).lower(jnp.ones((4, 8))).compile().as_text()
