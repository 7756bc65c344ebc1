"""Every lowering of a convolution against flax and lax: values, gradients, Hessian products."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_nc.models import conv, lowerings
from fedjax_nc.models.conv import Conv

NAMES = ("native", "canonical", "im2col", "winograd", "auto")


def draw(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.result_type(float))


def ours(lowering, features, kernel, stride, padding, groups=1):
    module = Conv(features, kernel, stride, padding, groups, bias=True, lowering=lowering)
    return lambda params, x: module.apply({"params": params}, x)


def flaxs(features, kernel, stride, padding, groups=1):
    module = nn.Conv(
        features, (kernel, kernel), stride, padding=padding, feature_group_count=groups
    )
    return lambda params, x: module.apply({"params": params}, x)


def conv_params(features, kernel, channels):
    return {"kernel": draw(1, kernel, kernel, channels, features), "bias": draw(2, features)}


def everything(apply, params, x):
    """Value, gradients of both arguments, and a Hessian-vector product by jvp of grad."""

    def loss(params, x):
        return jnp.sum(jnp.tanh(apply(params, x)))

    tangents = (jax.tree.map(jnp.cos, params), jnp.sin(x))
    gradients, products = jax.jvp(jax.grad(loss, (0, 1)), (params, x), tangents)
    return apply(params, x), gradients, products


@pytest.mark.parametrize(
    "kernel, stride, padding, groups",
    [
        (1, 1, "SAME", 1),
        (1, 2, "VALID", 1),
        (2, 1, "VALID", 1),
        (3, 1, "SAME", 1),
        (3, 2, "SAME", 1),
        (3, 2, 1, 1),
        (4, 1, "SAME", 1),
        (5, 1, "VALID", 1),
        (5, 1, 2, 1),
        (5, 2, 2, 1),
        (5, 2, "SAME", 1),
        (7, 2, 3, 1),
        (3, 1, "SAME", 2),
        (3, 2, 1, 2),
        (3, 1, 1, 4),
        (3, 2, "SAME", 4),
        (5, 1, "VALID", 4),
    ],
)
def test_lowerings_equal_flax(x64, kernel, stride, padding, groups):
    shape = (8, kernel, stride, padding, groups)  # 8 output channels: two per input of depthwise
    params, x = conv_params(8, kernel, 4 // groups), draw(3, 2, 9, 7, 4)
    functions = [flaxs(*shape), *(ours(name, *shape) for name in NAMES)]
    expected, *results = jax.jit(lambda: [everything(f, params, x) for f in functions])()
    for result in results:
        chex.assert_trees_all_close(result, expected, rtol=1e-8, atol=1e-10)


def per_client(apply):
    """One kernel per client, as in a round."""
    params = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), conv_params(2, 3, 2))
    x = draw(4, 2, 2, 5, 4, 2)
    return jax.vmap(jax.grad(lambda p, x: jnp.sum(apply(p, x) ** 2)))(params, x)


def in_a_loop(apply):
    def step(params, x):
        grads = jax.grad(lambda p: jnp.mean(apply(p, x) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), None

    return jax.lax.scan(step, conv_params(2, 3, 2), draw(4, 3, 2, 5, 4, 2))


def on_devices(apply):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.PartitionSpec("d")
    return jax.shard_map(
        per_client_rows(apply), mesh=mesh, in_specs=split, out_specs=split, check_vma=False
    )(draw(4, 2, 2, 5, 4, 2))


def per_client_rows(apply):
    params = conv_params(2, 3, 2)
    return lambda rows: jax.lax.map(jax.grad(lambda x: jnp.sum(apply(params, x) ** 2)), rows)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("use", [per_client, in_a_loop, on_devices])
def test_lowerings_under_transformations(x64, use, stride):
    shape = (2, 3, stride, "SAME")
    functions = [flaxs(*shape), *(ours(name, *shape) for name in NAMES)]
    expected, *results = jax.jit(lambda: [use(f) for f in functions])()
    for result in results:
        chex.assert_trees_all_close(result, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("side, channels", [(3, 64), (5, 32)])
def test_winograd_in_float32_is_nearly_as_exact(side, channels):
    x, kernel = draw(0, 8, 14, 14, channels), draw(1, side, side, channels, 32)
    g, pads = draw(2, 8, 14, 14, 32), ((side // 2, side // 2),) * 2

    def value_and_gradients(fn, dtype):
        y, back = jax.vjp(lambda x, k: fn(x, k, 1, pads), x.astype(dtype), kernel.astype(dtype))
        return [np.asarray(a, np.float64) for a in (y, *back(g.astype(dtype)))]

    with jax.enable_x64(True):
        exact = value_and_gradients(lowerings.native, jnp.float64)
    # the largest error over the largest number: of the value, the input's and the kernel's gradient
    for fn, bounds in ((lowerings.native, (3e-6,) * 3), (lowerings.winograd, (1e-5, 1e-5, 2e-5))):
        found = value_and_gradients(fn, jnp.float32)
        for a, b, bound in zip(found, exact, bounds, strict=True):
            assert np.abs(a - b).max() / np.abs(b).max() < bound


def test_conv_parameters_are_flaxs():
    x = jnp.ones((1, 4, 4, 2))
    mine = Conv(3, 5, bias=True).init(jax.random.key(0), x)["params"]
    theirs = nn.Conv(3, (5, 5)).init(jax.random.key(0), x)["params"]
    chex.assert_trees_all_equal_shapes_and_dtypes(mine, theirs)
    bound = (25 * 2) ** -0.5  # PyTorch's default, for kernel and bias
    assert all(np.abs(p).max() <= bound for p in mine.values())
    assert np.std(mine["kernel"]) == pytest.approx(bound / 3**0.5, rel=0.15)


def test_choose():
    assert {conv.choose("gpu", 3, 1, 64, g, 8) for g in (1, 2, 64)} == {"native"}
    pick = lambda *shape: conv.choose("cpu", *shape)  # noqa: E731
    assert pick(3, 1, 64, 1, 8) == pick(5, 1, 32, 1, 10) == "winograd"
    assert pick(5, 1, 3, 1, 28) == pick(3, 2, 64, 1, 8) == pick(3, 1, 512, 1, 2) == "im2col"
    assert pick(1, 2, 64, 1, 8) == "pointwise"
    assert (pick(3, 1, 32, 32, 8), pick(3, 1, 32, 4, 8)) == ("depthwise", "grouped")


@pytest.mark.parametrize("kernel, stride, groups", [(5, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 4)])
@pytest.mark.parametrize("size", [(9, 14), (12, 11)])  # odd and even maps, whole and cut tiles
def test_pooling_with_the_convolution(x64, kernel, stride, groups, size):
    params, x = conv_params(8, kernel, 4 // groups), draw(3, 2, *size, 4)
    plain = flaxs(8, kernel, stride, "VALID", groups)

    def theirs(params, x):
        return nn.max_pool(plain(params, x), (2, 2), (2, 2))

    def pooled(name):
        module = Conv(8, kernel, stride, "VALID", groups, bias=True, lowering=name, pool=True)
        return lambda params, x: module.apply({"params": params}, x)

    functions = [theirs, *map(pooled, NAMES)]
    expected, *results = jax.jit(lambda: [everything(f, params, x) for f in functions])()
    for result in results:
        chex.assert_trees_all_close(result, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("size", [(4, 6), (5, 7)])
def test_max_pool_equals_flax(x64, size):
    x = draw(0, 2, *size, 3)
    theirs = lambda x: nn.max_pool(x, (2, 2), (2, 2))  # noqa: E731
    np.testing.assert_array_equal(conv.max_pool(x), theirs(x))
    weight = draw(1, *theirs(x).shape)
    grads = [jax.grad(lambda x, f=f: jnp.sum(weight * f(x)))(x) for f in (conv.max_pool, theirs)]
    np.testing.assert_array_equal(*grads)


def test_of_equal_numbers_the_first_takes_the_gradient():
    window = jnp.asarray([[0.0, 1.0], [1.0, 1.0]])[None, :, :, None]
    taken = jax.grad(lambda x: jnp.sum(conv.max_pool(x)))(window)
    np.testing.assert_array_equal(taken[0, :, :, 0], [[0, 1], [0, 0]])  # row by row, as PyTorch
