"""Normalisation with padding, heads, and whole models."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_nc import effects, models
from fedjax_nc.config import RunConfig
from fedjax_nc.errors import UserError
from fedjax_nc.models import heads
from fedjax_nc.models.base import from_body
from fedjax_nc.models.catalogue import MODELS
from fedjax_nc.models.norm import Norm
from fedjax_nc.models.resnet import ResNet
from fedjax_nc.tree import num_elements
from fedjax_nc.types import CLASSES, FEATURES, HeadSpec


def draw(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.result_type(float))


# ---- normalisation -------------------------------------------------------------------------


def run_norm(mode, x, mask, variables, train=True):
    return Norm(mode).apply(variables, x, train=train, mask=mask, mutable=["batch_stats"])


@pytest.mark.parametrize("mode", ["running", "batch"])
@pytest.mark.parametrize("shape", [(4,), (3, 2, 4)])
def test_norm_ignores_padding(x64, mode, shape):
    x = draw(0, 5, *shape)
    padded = jnp.concatenate([x, 100 + draw(1, 3, *shape)])
    mask = jnp.arange(8) < 5
    variables = Norm(mode).init(jax.random.key(0), x, train=True)
    variables = jax.tree.map(lambda v: v + 0.1, variables)
    weight = draw(2, *x.shape)

    def loss(variables, x, mask):
        y, stats = run_norm(mode, x, mask, variables)
        return jnp.sum(weight * y[:5]), (y[:5], stats)

    grad = jax.value_and_grad(loss, (0, 1), has_aux=True)
    value, (by_params, by_x) = grad(variables, x, None)
    padded_value, (by_params_padded, by_x_padded) = grad(variables, padded, mask)
    chex.assert_trees_all_close(padded_value, value, rtol=1e-12, atol=1e-13)
    chex.assert_trees_all_close(by_params_padded, by_params, rtol=1e-9, atol=1e-12)
    chex.assert_trees_all_close(by_x_padded[:5], by_x, rtol=1e-9, atol=1e-12)
    assert not np.any(by_x_padded[5:])


def test_norm_by_hand():
    """PyTorch: batch normalised by the biased variance, running one moved to the unbiased."""
    x = jnp.array([[1.0], [2.0], [6.0]])  # mean 3, biased variance 14/3, unbiased 7
    y, new = run_norm("running", x, None, Norm().init(jax.random.key(0), x, train=True))
    np.testing.assert_allclose(y[:, 0], (x[:, 0] - 3) / np.sqrt(14 / 3 + 1e-5), rtol=1e-6)
    stats = new["batch_stats"]
    np.testing.assert_allclose(stats["mean"], [0.3], rtol=1e-6)
    np.testing.assert_allclose(stats["var"], [0.9 + 0.7], rtol=1e-6)


def test_norm_modes():
    x = draw(0, 6, 4)
    variables = Norm().init(jax.random.key(0), x, train=True)
    np.testing.assert_array_equal(variables["batch_stats"]["mean"], 0)  # init leaves them alone
    variables["batch_stats"] = {"mean": jnp.full(4, 2.0), "var": jnp.full(4, 4.0)}
    y, new = run_norm("running", x, None, variables, train=False)
    np.testing.assert_allclose(y, (x - 2) / 2, rtol=1e-4)
    chex.assert_trees_all_equal(new["batch_stats"], variables["batch_stats"])
    only_params = {"params": variables["params"]}
    for train in (True, False):
        y, new = run_norm("batch", x, None, only_params, train)
        np.testing.assert_allclose(y.mean(0), 0, atol=1e-6)
        assert "batch_stats" not in new
    y, new = run_norm("none", x, None, {})
    assert y is x and not new


@pytest.mark.parametrize("shape", [(3, 4, 6), (4,)])
def test_group_norm_equals_flax(x64, shape):
    """Value, gradient and Hessian-vector product; far from zero, where cancellation would show."""
    x = 50 + draw(0, 5, *shape)
    variables = Norm("group").init(jax.random.key(0), x, train=True)
    params = {k: v + draw(i, *v.shape) for i, (k, v) in enumerate(variables["params"].items())}
    weight = draw(3, *x.shape)

    def derivatives(apply):
        loss = lambda p, x: jnp.sum(weight * jnp.tanh(apply({"params": p}, x)))  # noqa: E731
        grad = jax.value_and_grad(loss, (0, 1))
        return jax.jvp(grad, (params, x), (jax.tree.map(jnp.cos, params), jnp.sin(x)))

    ours = derivatives(lambda v, x: run_norm("group", x, None, v)[0])
    theirs = nn.GroupNorm(2, epsilon=1e-5, use_fast_variance=False)
    chex.assert_trees_all_close(ours, derivatives(theirs.apply), rtol=1e-9, atol=1e-10)


def test_group_norm_in_single_precision():
    x = 1000 + draw(0, 2, 8, 8, 4)
    y, _ = run_norm("group", x, None, Norm("group").init(jax.random.key(0), x, train=True))
    np.testing.assert_allclose(y.reshape(2, -1, 2, 2).std(axis=(1, 3)), 1, rtol=1e-3)


@pytest.mark.parametrize("rows", [0, 1])
def test_norm_of_one_sample_is_the_bias(optimised, rows):
    """Exactly, or rounding would decide on which side of a ReLU it falls."""
    x = 3.3 * draw(0, 4, 5)
    variables = Norm().init(jax.random.key(0), x, train=True)
    mask = jnp.arange(4) < rows

    def loss(x):
        y, new = run_norm("running", x, mask, variables)
        return jnp.sum(y[:rows]), (y, new)

    (_, (y, new)), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(x)
    chex.assert_tree_all_finite((y, new, grad))
    np.testing.assert_array_equal(y[:rows], 0)


# ---- heads ---------------------------------------------------------------------------------


def head_of(spec, features=6, classes=4):
    params = heads.init_head(jax.random.key(0), spec, features, classes)
    h = draw(5, 3, features)
    return params, h, *heads.apply_head(params, h, spec)


def test_linear_head():
    params, h, projected, logits = head_of(HeadSpec())
    assert set(params) == {"head"} and projected is h
    head = params["head"]
    np.testing.assert_allclose(logits, h @ head["kernel"] + head["bias"], rtol=1e-6)
    assert set(head_of(HeadSpec(bias=False))[0]["head"]) == {"kernel"}


@pytest.mark.parametrize("kind", ["etf", "orthonormal"])
def test_fixed_heads(kind):
    params, _, projected, logits = head_of(HeadSpec(kind, bias=False, normalise=True))
    kernel = np.asarray(params["head"]["kernel"])
    expected = np.eye(4) if kind == "orthonormal" else (4 * np.eye(4) - 1) / 3
    np.testing.assert_allclose(kernel.T @ kernel, expected, atol=1e-5)
    assert set(params["head"]) == {"kernel"}
    np.testing.assert_allclose(np.linalg.norm(projected, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(logits, projected @ kernel, rtol=1e-5, atol=1e-6)


def test_cosine_head():
    params, h, _, logits = head_of(HeadSpec("cosine", bias=False))
    kernel = np.asarray(params["head"]["kernel"])
    expected = (h / np.linalg.norm(h, axis=1, keepdims=True)) @ (
        kernel / np.linalg.norm(kernel, axis=0)
    )
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_projector_and_scale():
    spec = HeadSpec("etf", bias=False, projector=(FEATURES, CLASSES), learn_scale=True)
    params, h, projected, logits = head_of(spec)
    layers = params["projector"]
    assert [layers[i]["kernel"].shape for i in "01"] == [(6, 6), (6, 4)]
    hidden = np.maximum(h @ layers["0"]["kernel"] + layers["0"]["bias"], 0)
    np.testing.assert_allclose(
        projected, hidden @ layers["1"]["kernel"] + layers["1"]["bias"], rtol=1e-4, atol=1e-6
    )
    assert params["scale"] == 1
    _, doubled = heads.apply_head({**params, "scale": jnp.asarray(2.0)}, h, spec)
    np.testing.assert_allclose(doubled, 2 * logits, rtol=1e-6)


def test_mapping_layers():
    """Dense layers with ReLU between them, none behind the last, as levels say."""
    plain, mapped = (
        models.build("mlp", (2, 2, 1), 3, HeadSpec(), mapping=sizes) for sizes in ((), (6, 4))
    )
    weights, x = mapped.init(jax.random.key(0)), draw(0, 5, 2, 2, 1)
    layers, others = weights.params["body"], plain.init(jax.random.key(0)).params
    inside = weights._replace(params={**others, "body": layers["body"]})
    out, _ = mapped.apply(weights, x, train=False)
    before, _ = plain.apply(inside, x, train=False)
    first, second = (layers[f"Dense_{i}"] for i in (0, 1))
    hidden = before.features @ first["kernel"] + first["bias"]
    np.testing.assert_allclose(out.levels[-1], hidden, rtol=1e-5, atol=1e-6)
    expected = np.maximum(hidden, 0) @ second["kernel"] + second["bias"]
    np.testing.assert_allclose(out.features, expected, rtol=1e-5, atol=1e-6)
    assert len(out.levels) == len(before.levels) + 1 and out.features.min() < 0
    assert weights.params["head"]["kernel"].shape == (4, 3)


@pytest.mark.parametrize("head", [HeadSpec(), HeadSpec(encoder=True)])
def test_narrow_network_behind_mapping_layers(head):
    """The layers behind the stages keep their sizes, and the last stage is found inside."""
    body = ResNet((1, 1), "running", conv="native", channels=(16, 32))
    model = from_body(body, (8, 8, 3), 3, head, mapping=(6, 4))
    weights, x = jax.eval_shape(model.init, jax.random.key(0)), jnp.zeros((2, 8, 8, 3))

    def narrow(weights):
        out, _ = model.apply(weights, x, train=True, mask=jnp.ones(2, bool), width=0.5)
        stage = model.last_stage(weights, out.blocks[0], width=0.5, mask=jnp.ones(2, bool))
        return [y.shape for y in (*out.blocks, *out.levels[-2:], out.features, stage)]

    shapes = []
    jax.eval_shape(lambda w: shapes.extend(narrow(w)), weights)
    assert shapes == [(2, 8, 8, 8), (2, 4, 4, 16), (2, 16), (2, 6), (2, 4), (2, 4, 4, 16)]


def linear(inputs, outputs):
    return (inputs + 1) * outputs


def inverted(inputs, outputs, expansion, stride):
    """FedDW's block has three convolutions with BatchNorm, a fourth where channels change."""
    inner = expansion * inputs
    shortcut = inputs * outputs + 2 * outputs if stride == 1 and inputs != outputs else 0
    return (inputs + 2) * inner + (9 + 2) * inner + (inner + 2) * outputs + shortcut


HALF = (  # in, out, expansion, stride
    *((32, 8, 1, 1), (8, 12, 6, 1), (12, 12, 6, 1), (12, 16, 6, 2), *[(16, 16, 6, 1)] * 2),
    *((16, 32, 6, 2), *[(32, 32, 6, 1)] * 3, (32, 48, 6, 1), *[(48, 48, 6, 1)] * 2),
    *((48, 80, 6, 2), *[(80, 80, 6, 1)] * 2, (80, 160, 6, 1)),
)
FEDDW = {
    # features and parameters of the body: torchvision's ResNet-18 without its head and with a 3x3
    # stem, the table of pytorch-cifar100 by hand, and the code's blocks
    "resnet18": (512, 11_689_512 - linear(512, 1000) - 64 * 3 * (49 - 9)),
    "shufflenet": (800, 887_582 - linear(800, 10)),
    "mobilenet_v2_half": (640, 29 * 32 + sum(inverted(*b) for b in HALF) + 162 * 640),
}


@pytest.mark.parametrize("name", FEDDW)
def test_sizes_of_feddws_networks(name):
    """Every body of its code is followed by layers to 256, 128 and the classes."""
    features, body = FEDDW[name]
    behind = linear(features, 256) + linear(256, 128) + linear(128, 100)
    model = models.build(name, (32, 32, 3), 100, HeadSpec(), mapping=(256, 128))
    assert num_elements(jax.eval_shape(model.init, jax.random.key(0)).params) == body + behind


@pytest.mark.parametrize("name", [n for n, spec in MODELS.items() if spec.mapped])
def test_mapping_layers_are_not_made_twice(name):
    """Where a model ends with them, a flag is refused and what a protocol sets does nothing."""
    shape = (9,) if MODELS[name].text else (16, 16, 1)
    made = [models.build(name, shape, 3, HeadSpec(), mapping=m).init for m in ((), (256, 128))]
    assert len({str(jax.eval_shape(init, jax.random.key(0))) for init in made}) == 1
    with pytest.raises(UserError, match=r"--federation\.mapping has no effect with --model"):
        effects.check({"federation.mapping"}, RunConfig(model=name))


@pytest.mark.parametrize("kind", ["etf", "orthonormal"])
def test_too_many_classes(kind):
    model = models.build("resnet8", (8, 8, 3), 100, HeadSpec(kind, bias=False))
    with pytest.raises(UserError, match=r"100 classes do not fit an .* head on 64 features"):
        jax.eval_shape(model.init, jax.random.key(0))
    wide = HeadSpec(kind, bias=False, projector=(CLASSES,))
    jax.eval_shape(models.build("resnet8", (8, 8, 3), 100, wide).init, jax.random.key(0))


# ---- whole models --------------------------------------------------------------------------


def test_resnet_stages():
    model = models.build("resnet8", (16, 16, 3), 10, HeadSpec())
    weights = jax.eval_shape(model.init, jax.random.key(0))
    apply = lambda w: model.apply(w, jnp.zeros((2, 16, 16, 3)), train=False)[0]  # noqa: E731
    maps = [b.shape for b in jax.eval_shape(apply, weights).blocks]
    assert maps == [(2, 16, 16, 16), (2, 8, 8, 32), (2, 4, 4, 64)]


def test_unknown_model():
    with pytest.raises(UserError, match="unknown model 'resnet_20': did you mean 'resnet20'"):
        models.build("resnet_20", (8, 8, 1), 10, HeadSpec())


@pytest.mark.parametrize("name, shape", [("cnn", (8, 8, 1)), ("resnet8", (4, 8, 3)), ("mlp", (9,))])
def test_image_too_small(name, shape):
    with pytest.raises(UserError, match=f"model '{name}' takes images of at least"):
        models.build(name, shape, 10, HeadSpec())


@pytest.mark.parametrize("name", MODELS)
def test_smallest_image_works(name):
    size = MODELS[name].min_size
    shape, kind = ((1,), int) if MODELS[name].text else ((size, size, 1), float)
    model = models.build(name, shape, 3, HeadSpec())
    weights = jax.eval_shape(model.init, jax.random.key(0))
    apply = lambda w: model.apply(w, jnp.zeros((1, *shape), kind), train=False)[0]  # noqa: E731
    assert jax.eval_shape(apply, weights).logits.shape == (1, 3)


def test_dropout_needs_a_key_only_in_training():
    model = models.build("cnn", (16, 16, 1), 3, HeadSpec())
    weights, x = model.init(jax.random.key(0)), draw(0, 2, 16, 16, 1)
    features = [
        model.apply(weights, x, train=True, key=jax.random.key(k))[0].features for k in (1, 1, 2)
    ]
    np.testing.assert_array_equal(features[0], features[1])
    assert np.any(features[0] != features[2])
    still = [model.apply(weights, x, train=False)[0].features for _ in range(2)]
    np.testing.assert_array_equal(*still)
