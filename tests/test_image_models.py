"""Whole image models: published sizes, flax's own layers, padding, lowerings, widths, survival."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import plain_models
import pytest
from small_models import BLOCKS, BODIES, CLASSES, RESIDUAL, SHAPE, few_layers, small  # noqa: F401

from fedjax_nc import losses, models
from fedjax_nc.host import dry_run
from fedjax_nc.models import bodies
from fedjax_nc.models.base import from_body
from fedjax_nc.models.catalogue import MODELS
from fedjax_nc.models.conv import Conv, Dense
from fedjax_nc.models.norm import Norm
from fedjax_nc.testing import contract
from fedjax_nc.testing.models import BY_ITSELF, Network
from fedjax_nc.train.executors import make_executor
from fedjax_nc.types import HeadSpec, narrow

CIFAR, IMAGENET = (32, 32, 3), (224, 224, 3)
LOWERINGS = ("native", "canonical", "im2col", "winograd", "auto")


def fast_first(names, *fast):
    """All of them, the others as slow tests."""
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


def draw(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.result_type(float))


def start(model):
    weights = jax.jit(model.init)(jax.random.key(0))
    return jax.tree.map(lambda w: jnp.asarray(w, jnp.result_type(float)), weights)


def step(model, weights, x, y, mask, key=None):
    """Loss, logits, statistics and gradient of one local step."""

    def loss(params):
        out, stats = model.apply(weights._replace(params=params), x, train=True, mask=mask, key=key)
        value = losses.masked_mean(losses.cross_entropy(out.logits, y), mask)
        return value, (out.logits, stats)

    return jax.value_and_grad(loss, has_aux=True)(weights.params)


# ---- sizes ---------------------------------------------------------------------------------


@pytest.fixture
def all_layers(monkeypatch):
    """As they are, without `few_layers`."""
    monkeypatch.undo()


@pytest.mark.parametrize("name", MODELS)
def test_catalogue_says_the_size(all_layers, name):
    shape, classes = ((200,), 2) if MODELS[name].text else (CIFAR, 10)
    size = dry_run.size_of(name, shape, classes)
    assert size.parameters == MODELS[name].parameters
    assert size.multiply_adds / 1e6 == pytest.approx(MODELS[name].mflops, abs=0.006)


# as published: in millions, with as many digits as there, or exactly
PUBLISHED = [
    # FedAlign, table 5, on CIFAR-100
    ("resnet56_bottleneck", CIFAR, 100, "0.61"),
    # He et al. 2016, table 6
    ("resnet20", CIFAR, 10, "0.27"),
    ("resnet32", CIFAR, 10, "0.46"),
    ("resnet56", CIFAR, 10, "0.85"),
    # num_params of torchvision's ImageNet weights; strides have no parameters
    ("resnet18", IMAGENET, 1000, 11_689_512),
    ("mobilenet_v2", CIFAR, 1000, 3_504_872),
    ("efficientnet_b0", CIFAR, 1000, 5_288_548),
    # with a 3x3 stem for its 7x7 one and that one's norm
    ("densenet121", CIFAR, 1000, 7_978_856 - 64 * 3 * (49 - 9) - 2 * 64),
    # Howard et al. 2017, table 8
    ("mobilenet", CIFAR, 1000, "4.2"),
    # the table of weiaicunzai/pytorch-cifar100, where FedDW's networks for CIFAR-100 are from
    ("mobilenet", CIFAR, 100, "3.3"),
    ("shufflenet", CIFAR, 100, "1.0"),
    ("resnet18", CIFAR, 100, "11.2"),
    ("densenet121", CIFAR, 100, "7.0"),
    # PFLlib's network
    ("fedavg_cnn", CIFAR, 10, 878_538),
]


def conv3(inputs, outputs):
    """Of a 3x3 convolution and its BatchNorm."""
    return (9 * inputs + 2) * outputs


RESNET8 = (
    conv3(3, 16)
    + 2 * conv3(16, 16)
    + conv3(16, 32)
    + conv3(32, 32)
    + conv3(32, 64)
    + conv3(64, 64)
    + 650
)
PROJECTIONS = (16 + 2) * 32 + (32 + 2) * 64
WIDE = (
    conv3(3, 64)
    + 18 * conv3(64, 64)
    + conv3(64, 128)
    + 17 * conv3(128, 128)
    + conv3(128, 256)
    + 17 * conv3(256, 256)
    + (64 + 2) * 128
    + (128 + 2) * 256
    + 2_570
)
VGG = 9 * 64 * (3 + 2 * 64 + 8 * 64 + 16 * 64 + 32 * 64 + 3 * 64 * 64) + 2_752  # and biases
BY_HAND = [
    ("cnn", (28, 28, 1), 10, 260 + 5_020 + 320 * 256 + 256 + 256 * 128 + 128 + 1_290),
    ("mlp", (28, 28, 1), 10, 784 * 200 + 200 + 200 * 128 + 128 + 1_290),
    ("vgg11", CIFAR, 10, VGG + 2 * (512 + 1) * 512 + 5_130),
    ("resnet8", CIFAR, 10, RESNET8),
    ("resnet20_b", CIFAR, 10, 269_722 + PROJECTIONS),
    ("resnet32_b", CIFAR, 10, 464_154 + PROJECTIONS),
    ("resnet56_b", CIFAR, 10, 853_018 + PROJECTIONS),
    ("wrn56_4", CIFAR, 10, WIDE),
    # words, gates of both directions, two dense layers, head
    ("bilstm", (200,), 2, 10_002 * 128 + 2 * (256 + 1) * 512 + 257 * 128 + 129 * 128 + 129 * 2),
]


@pytest.mark.parametrize("name, shape, classes, parameters", PUBLISHED + BY_HAND)
def test_published_sizes(all_layers, name, shape, classes, parameters):
    found = dry_run.size_of(name, shape, classes).parameters
    if isinstance(parameters, str):
        digits = len(parameters.split(".")[1])
        found, parameters = round(found / 1e6, digits), float(parameters)
    assert found == parameters


@pytest.mark.parametrize(
    "name, shape, classes, millions",
    [
        ("resnet56_bottleneck", CIFAR, 100, 87.3),  # FedAlign, table 5
        ("resnet18", IMAGENET, 1000, 1814),
    ],  # torchvision's documentation
)
def test_published_work(all_layers, name, shape, classes, millions):
    """Counts differ by less than one part in a thousand."""
    found = dry_run.size_of(name, shape, classes).multiply_adds / 1e6
    assert found == pytest.approx(millions, rel=1e-3)


FEATURES = {
    "mlp": 128,
    "cnn": 128,
    "fedavg_cnn": 512,
    "vgg11": 512,
    "resnet8": 64,
    "resnet56": 64,
    "resnet56_bottleneck": 256,
    "wrn56_4": 256,
    "resnet18": 512,
    "mobilenet": 1024,
    "mobilenet_v2": 1280,
    "efficientnet_b0": 1280,
    "densenet121": 1024,
}


@pytest.mark.parametrize("name, width", FEATURES.items())
def test_number_of_features(all_layers, name, width):
    model = models.build(name, CIFAR, 10, HeadSpec())
    weights = jax.eval_shape(model.init, jax.random.key(0))
    assert weights.params["head"]["kernel"].shape == (width, 10)


# ---- flax's own layers ---------------------------------------------------------------------


def layers_of(module, kinds, *args, **kwargs):
    """Paths of the layers in the order they are called, and the sizes of what they are given."""
    found = []

    def note(call, args, kwargs, context):
        if isinstance(context.module, kinds) and context.method_name == "__call__":
            x = args[0]
            found.append((context.module.path, x.size // x.shape[-1]))
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        variables = jax.eval_shape(lambda: module.init(jax.random.key(0), *args, **kwargs))
    return found, variables


def at(tree, path):
    for name in path:
        tree = tree[name]
    return tree


def nested(pairs):
    tree = {}
    for path, value in pairs:
        inside = tree
        for name in path[:-1]:
            inside = inside.setdefault(name, {})
        inside[path[-1]] = value
    return tree


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, plain",
    [
        ("resnet20", plain_models.ResNet20()),
        ("vgg11", plain_models.VGG11()),
        ("mobilenet_v2", plain_models.MobileNetV2()),
    ],
)
def test_equal_to_flaxs_own_layers(all_layers, x64, name, plain):
    """Logits, gradient and statistics, in training and in tests."""
    shape, body = SHAPE, bodies.make_body(MODELS[name], norm="running", conv="auto")
    x, target = draw(0, 6, *shape), draw(1, 6, CLASSES)
    kinds = (Conv, Norm, Dense), (nn.Conv, nn.BatchNorm, nn.Dense)
    mine, _ = layers_of(body, kinds[0], x, train=True, mask=None)
    theirs, _ = layers_of(plain, kinds[1], x, train=True)
    model = from_body(body, shape, CLASSES, HeadSpec())
    weights = start(model)
    weights = weights._replace(stats=jax.tree.map(lambda s: s + 0.1, weights.stats))

    def translated(tree):
        pairs = [(b, at(tree, a)) for (a, _), (b, _) in zip(mine, theirs, strict=True)]
        return nested(pairs)

    def ours(params, train):
        out, stats = model.apply(weights._replace(params=params), x, train=train)
        return jnp.sum((out.logits - target) ** 2), (out.logits, stats)

    def plains(params, train):
        variables = {"params": translated(params["body"]), "batch_stats": statistics}
        features, new = plain.apply(variables, x, train, mutable=["batch_stats"])
        logits = features @ params["head"]["kernel"] + params["head"]["bias"]
        return jnp.sum((logits - target) ** 2), (logits, new["batch_stats"])

    norms = [(a, b, n) for (a, n), (b, _) in zip(mine, theirs, strict=True) if "Norm" in b[-1]]
    statistics = nested((b, at(weights.stats, a)) for a, b, _ in norms)

    @jax.jit
    def both():
        grads = [jax.value_and_grad(f, has_aux=True)(weights.params, True) for f in (ours, plains)]
        return grads, [f(weights.params, False)[1][0] for f in (ours, plains)]

    (((_, (logits, stats)), grad), ((_, (plain_logits, plain_stats)), plain_grad)), tests = both()
    close = {"rtol": 1e-6, "atol": 1e-8}
    chex.assert_trees_all_close(tests[0], tests[1], **close)
    chex.assert_trees_all_close((logits, grad), (plain_logits, plain_grad), **close)
    for path, other, count in norms:
        new, plain_new = at(stats, path), at(plain_stats, other)
        np.testing.assert_allclose(new["mean"], plain_new["mean"], **close)
        biased = plain_new["var"] - 0.9 * 1.1  # flax's has a biased variance, PyTorch's has not
        np.testing.assert_allclose(new["var"], 0.9 * 1.1 + biased * count / (count - 1), **close)


# ---- every kind of block -------------------------------------------------------------------


@pytest.mark.parametrize("name", fast_first(BODIES, "basic", "mobilenet_v2", "vgg11"))
def test_padding_changes_no_model(name):
    some = {what: BY_ITSELF[what] for what in ("counts no padding", "updates statistics")}
    report = contract.check(
        some, lambda: Network(BODIES[name](conv="native"), shape=SHAPE, classes=CLASSES)
    )
    assert "at most" in report.rows["counts no padding"].text


@pytest.mark.parametrize("norm", ["running", "batch", "group", "none"])
@pytest.mark.parametrize("name", BODIES)
def test_shapes_and_modes(name, norm):
    model = small(name, norm=norm)
    weights = jax.eval_shape(model.init, jax.random.key(0))
    apply = lambda w: model.apply(w, jnp.zeros((2, *SHAPE)), train=True)  # noqa: E731
    out, stats = jax.eval_shape(apply, weights)
    chex.assert_trees_all_equal_shapes_and_dtypes(stats, weights.stats)
    assert bool(stats) == (norm == "running")
    assert all(b.ndim == 4 and len(b) == 2 for b in out.blocks)
    assert all(v.ndim == 2 and len(v) == 2 for v in (*out.levels, out.features))


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_lowerings_agree(x64, name):
    weights, x = start(small(name)), draw(0, 2, *SHAPE)
    y, mask = jnp.array([0, 2]), jnp.ones(2, bool)

    @jax.jit
    def every():
        return [step(small(name, conv=c), weights, x, y, mask) for c in LOWERINGS]

    expected, *others = every()
    for other in others:
        chex.assert_trees_all_close(other, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_executors_agree(x64, name):
    """Clients that start alike take a step on their own images."""
    model = small(name, conv="auto")
    weights, mask = start(model), jnp.ones(2, bool)
    rows = {
        "x": draw(0, 3, 2, *SHAPE),
        "y": jnp.array([[0, 1], [2, 2], [1, 0]]),
        "id": jnp.arange(3),
    }

    def client(weights, row):
        (value, (_, stats)), grad = step(model, weights, row["x"], row["y"], mask)
        return value, (grad, stats)

    def run(executor):
        fn = partial(executor.run, client, weights, rows, jnp.ones(3, int))
        return (jax.jit(fn) if executor.jit else fn)()

    several = make_executor("sharded")._replace(chunk=2)  # chunks, on each of the devices
    expected, *others = map(run, (*map(make_executor, ("scan", "vmap", "debug")), several))
    for result in others:
        chex.assert_trees_all_close(result, expected, rtol=1e-7, atol=1e-9)


# ---- widths and survival -------------------------------------------------------------------


@pytest.mark.parametrize("name", fast_first(RESIDUAL, "bottleneck"))
def test_narrow_lowerings_agree(x64, name):
    """Few channels are not tiled, in a bottleneck while the shortcut's would be."""
    plain, quick = small(name), small(name, conv="auto")
    weights, x = start(plain), draw(0, 2, *SHAPE)
    outs = [jax.jit(partial(m.apply, train=True, width=0.5))(weights, x)[0] for m in (plain, quick)]
    chex.assert_trees_all_close(*outs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", fast_first(RESIDUAL, "looped"))
def test_narrow_network(x64, name):
    """Half a network has its own number of channels, and sees nothing of the other half."""
    model = small(name, norm="batch")
    weights, x = start(model), draw(0, 2, *SHAPE)

    @jax.jit
    def half(weights):
        def total(params):
            out, _ = model.apply(weights._replace(params=params), x, train=True, width=0.5)
            return jnp.sum(out.logits**2), out

        (_, out), grad = jax.value_and_grad(total, has_aux=True)(weights.params)
        return out, model.last_stage(weights, out.blocks[-2], width=0.5), grad

    out, last, grad = half(weights)
    widths = [narrow(c * (4 if name == "bottleneck" else 1), 0.5) for c in model.channels]
    assert [b.shape[-1] for b in out.blocks] == widths
    unused = jax.tree.map(lambda g: np.asarray(g) == 0, grad["body"])
    other = jax.tree.map(lambda w, u: np.where(u, 9.0, w), weights.params["body"], unused)
    again, *_ = half(weights._replace(params={**weights.params, "body": other}))
    chex.assert_trees_all_close(again, out, rtol=1e-9, atol=1e-12)
    assert np.mean(np.concatenate([u.ravel() for u in jax.tree.leaves(unused)])) > 0.5
    np.testing.assert_allclose(last, out.blocks[-1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", fast_first(RESIDUAL, "bottleneck"))
def test_survival(x64, name):
    """Always kept is the plain network; hardly ever kept leaves statistics and weights alone."""
    count, x = BLOCKS[name], draw(0, 2, *SHAPE)
    y, mask, key = jnp.array([0, 2]), jnp.ones(2, bool), jax.random.key(3)
    plain, sure = small(name), small(name, survival=(1.0,) * (count - 1) + (1 - 1e-12,))
    never = small(name, survival=(1.0,) * (count - 1) + (1e-12,))
    weights = start(plain)

    @jax.jit
    def every():
        return [step(m, weights, x, y, mask, key) for m in (plain, sure, never)]

    expected, kept, dropped = every()
    chex.assert_trees_all_close(kept, expected, rtol=1e-6, atol=1e-8)
    # blocks in a loop have a row of statistics each
    last = lambda s: s[-1] if s.ndim == 2 else s  # noqa: E731
    still = jax.tree.map(
        lambda a, b: np.array_equal(last(a), last(b)), dropped[0][1][1], weights.stats
    )
    norms = 3 if name in ("bottleneck", "mobilenet_v2", "efficientnet_b0") else 2
    assert sum(jax.tree.leaves(still)) == 2 * norms  # mean and variance of the last block's
    assert not np.allclose(dropped[0][1][0], expected[0][1][0])
