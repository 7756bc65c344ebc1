"""Models from outside the package: any flax module, brought along or registered under a name."""

from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brought import CLASSES, PADDED, REAL, SHAPE, Net, draw

from fedjax_nc import models
from fedjax_nc.errors import UserError
from fedjax_nc.models import own
from fedjax_nc.models.norm import Norm
from fedjax_nc.testing import contract
from fedjax_nc.testing.models import BY_ITSELF, IN_ROUNDS, Network
from fedjax_nc.types import HeadSpec


def build(module, shape=SHAPE, **options):
    return models.build(module, shape, CLASSES, options.pop("head", HeadSpec()), **options)


KEY = jax.random.key(0)
MASK = jnp.arange(PADDED) < REAL


# ---- what every network must do ------------------------------------------------------------


class Looped(nn.Module):
    """BatchNorm inside of what flax lifts."""

    @nn.compact
    def __call__(self, x, train):
        def layer(norm, x, _):
            return nn.tanh(norm(x)), None

        norm = nn.BatchNorm(use_running_average=not train, name="loop")
        loop = nn.scan(layer, {"params": 0, "batch_stats": 0}, split_rngs={"params": True})
        x, _ = loop(norm, nn.Dense(6)(x.reshape(len(x), -1)), jnp.arange(3))
        return nn.remat(nn.BatchNorm)(use_running_average=not train)(x)


class PackagesNorm(nn.Module):
    """The package's normalisation, which the author forgets to give the mask."""

    norm: str = "running"

    @nn.compact
    def __call__(self, x, *, train):
        return Norm(self.norm)(nn.Dense(6)(x.reshape(len(x), -1)), train=train)


NETS = [Net(), Looped(), PackagesNorm()]


@pytest.mark.parametrize("net", NETS, ids=lambda net: type(net).__name__)
def test_contract(net):
    contract.check(BY_ITSELF, lambda: Network(net, shape=SHAPE))


@pytest.mark.parametrize("rate, text", [(0.0, "at most "), (0.5, "left out: it draws random")])
def test_contract_of_dropout(rate, text):
    """A padded batch equals the batch alone, unless numbers are drawn for its whole shape."""
    what = "counts no padding"
    report = contract.check({what: BY_ITSELF[what]}, lambda: Network(Net(rate=rate), shape=SHAPE))
    assert report.rows[what].text.startswith(text)


def test_contract_in_rounds():
    contract.check(IN_ROUNDS, lambda: Network(Net(), shape=(2, 3, 1)))


def test_statistics_by_hand():
    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)(x.mean((1, 2)))

    model = build(Plain())
    x = draw(1, PADDED, *SHAPE)
    rows = np.asarray(x[:REAL].mean((1, 2)))
    out, stats = model.apply(model.init(KEY), x, train=True, mask=MASK)
    found = stats["BatchNorm_0"]
    np.testing.assert_allclose(found["mean"], 0.1 * rows.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["var"], 0.9 + 0.1 * rows.var(0), rtol=1e-5)
    expected = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-5)
    np.testing.assert_allclose(out.features[:REAL], expected, rtol=1e-3, atol=1e-4)


def test_only_tests_repeat_without_a_key():
    model = build(Net())
    weights, x = model.init(KEY), draw(1, 3, *SHAPE)
    tested = [model.apply(weights, x, train=False)[0] for _ in range(2)]
    chex.assert_trees_all_equal(*tested)
    a, b, c = (
        model.apply(weights, x, train=True, key=jax.random.key(k))[0].features for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(a, b)
    assert np.any(a != c)


def test_starts_as_the_module_itself():
    """With the same parameters, statistics and key, and without a level between."""
    net, model = Net(), build(Net())
    weights = model.init(KEY)
    chex.assert_trees_all_equal(weights, model.init(KEY))
    key_body, _ = jax.random.split(KEY)
    plain = net.init(key_body, jnp.zeros((2, *SHAPE)), train=False)
    chex.assert_trees_all_equal(weights.params["body"], plain["params"])
    chex.assert_trees_all_equal(weights.stats, plain["batch_stats"])
    x = draw(1, 3, *SHAPE)
    features = model.apply(weights, x, train=False)[0].features
    np.testing.assert_array_equal(features, net.apply(plain, x, train=False))


def test_shapes_and_transformations():
    model = build(Net())
    assert model.last_stage is None and model.channels == ()
    weights = jax.vmap(model.init)(jax.random.split(KEY))

    def loss(weights, x):
        out, stats = model.apply(weights, x, train=True, mask=MASK, key=KEY)
        return jnp.sum(out.logits[:REAL] ** 2), (out, stats)

    x = draw(1, 2, PADDED, *SHAPE)
    (values, (out, stats)), grads = jax.jit(jax.vmap(jax.value_and_grad(loss, has_aux=True)))(
        weights, x
    )
    assert values.shape == (2,) and out.features.shape == (2, PADDED, 7)
    assert out.logits.shape == (2, PADDED, CLASSES)
    assert [o.shape for o in (*out.blocks, *out.levels)] == [(2, PADDED, 7)] * 2
    chex.assert_trees_all_equal_shapes(grads.params, weights.params)
    chex.assert_trees_all_equal_shapes(stats, weights.stats)
    one = loss(jax.tree.map(lambda w: w[1], weights), x[1])[0]
    np.testing.assert_allclose(values[1], one, rtol=1e-4)


def test_constant_images_give_no_nan(optimised):
    BY_ITSELF["stays finite"](Network(Net(), shape=SHAPE))


def test_encoder_on_top():
    model = build(Net(), head=HeadSpec(encoder=True))
    weights = model.init(KEY)
    assert set(weights.params["body"]) == {"body", "Dense_0", "Dense_1", "Norm_0"}
    out, stats = model.apply(weights, draw(1, PADDED, *SHAPE), train=True, mask=MASK, key=KEY)
    assert out.features.shape == (PADDED, 7) and set(stats) == {"body", "Norm_0"}


# ---- what a module may take and give --------------------------------------------------------


class Bare(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x.mean((1, 2)))


class Training(nn.Module):
    @nn.compact
    def __call__(self, x, training: bool, scale: float = 1.0):
        return scale * nn.Dropout(0.5, deterministic=not training)(Bare()(x))


class Deterministic(nn.Module):
    @nn.compact
    def __call__(self, x, *, deterministic):
        return nn.Dropout(0.5)(Bare()(x), deterministic)


class Masked(nn.Module):
    @nn.compact
    def __call__(self, x, *, train, mask=None):
        features = Bare()(x)
        counted = jnp.zeros(()) if mask is None else jnp.sum(mask)
        return (x, features), (features, features), features + train * counted


@pytest.mark.parametrize(
    "net",
    [Bare(), Bare, Training(), Deterministic(), Masked(), nn.Sequential([Bare(), nn.relu])],
    ids=lambda net: getattr(net, "__name__", type(net).__name__),
)
def test_what_a_module_may_take(net):
    model = build(net)
    weights, x = model.init(KEY), draw(1, PADDED, *SHAPE)
    tested = model.apply(weights, x, train=False, mask=MASK)[0].features
    trained = model.apply(weights, x, train=True, mask=MASK, key=KEY)[0].features
    assert tested.shape == trained.shape == (PADDED, 3)
    assert np.any(tested != trained) == isinstance(net, Training | Deterministic | Masked)
    if isinstance(net, Masked):
        np.testing.assert_allclose(trained - tested, REAL, rtol=1e-5)


def test_maps_and_levels_are_passed_on():
    model = build(Masked())
    out, _ = model.apply(model.init(KEY), draw(1, 3, *SHAPE), train=False)
    assert [b.shape for b in out.blocks] == [(3, *SHAPE), (3, 3)] and len(out.levels) == 2


class Written(nn.Module):
    """Any function of a module, its input and `train`."""

    fn: Any

    @nn.compact
    def __call__(self, x, train):
        return self.fn(x, train)


class Asking(nn.Module):
    @nn.compact
    def __call__(self, x, temperature):
        return x.mean((1, 2)) / temperature


class Counting(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("cache", "seen", jnp.zeros, ())
        return x.mean((1, 2))


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x.mean((1, 2)) + jax.random.normal(self.make_rng("noise"), (len(x), 1))


def flat(x):
    return x.reshape(len(x), -1)


@pytest.mark.parametrize(
    "module, message",
    [
        (
            Written(lambda x, _: x),
            r"'Written' gives float32\[2, 6, 6, 2\] for a batch of 2: wanted",
        ),
        (Written(lambda x, _: x.mean((0, 1))), r"gives float32\[6, 2\] for a batch of 2"),
        (Written(lambda x, _: (flat(x), flat(x))), "gives a tuple for a batch"),
        (Written(lambda x, _: {"features": flat(x)}), "gives a dict for a batch"),
        (Written(lambda x, _: flat(x).astype(jnp.bfloat16)), r"gives bfloat16\[2, 72\]"),
        (Written(lambda x, _: flat(x) > 0), r"gives bool\[2, 72\]"),
        (Asking(), "takes 'temperature': besides x its __call__ may take train"),
        (Counting(), "keeps variables in 'cache': only 'params' and 'batch_stats'"),
        (Noisy(), "draws from a key that is not there: use the one named 'dropout'"),
        (
            Written(lambda x, _: nn.BatchNorm()(flat(x))),
            "BatchNorm has use_running_average=None in tests: write .*use_running_average=not tr",
        ),
        (
            Written(lambda x, _: nn.BatchNorm(use_running_average=False)(flat(x))),
            "use_running_average=False in tests",
        ),
        (
            Written(lambda x, _: nn.BatchNorm()(flat(x), True)),
            "use_running_average=True in training",
        ),
        (
            Written(lambda x, _: nn.Dropout(0.5)(flat(x))),
            "Dropout has deterministic=None in tests: write .*deterministic=not train",
        ),
        (
            Written(lambda x, _: nn.Dropout(0.5)(flat(x), deterministic=False)),
            "deterministic=False in tests",
        ),
        (
            Written(
                lambda x, train: flat(nn.BatchNorm(not train)(x.reshape(-1, 2)).reshape(x.shape))
            ),
            "BatchNorm is given 72 rows in a batch of 2: keep the batch as the first axis",
        ),
        (lambda x: x, "given a function, wanted a name or a flax.linen module"),
        (3, "given a int, wanted a name or a flax.linen module"),
    ],
)
def test_refused_in_one_line(module, message):
    with pytest.raises(UserError, match=message) as error:
        build(module)
    assert "\n" not in str(error.value)


def test_too_small_an_image():
    with pytest.raises(UserError, match="'Net' takes images of at least 8x8, not images of 6x6"):
        build(own.model(Net(), min_size=8))
