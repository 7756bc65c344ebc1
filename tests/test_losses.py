"""Losses against the reference repositories' numbers, hand-computed ones, and NumPy."""

from pathlib import Path
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_nc import linalg, losses, tree
from fedjax_nc.methods import gradient, terms
from fedjax_nc.methods.averaging import effective_steps
from fedjax_nc.types import ClientInfo, Weights


def golden(name):
    with np.load(Path(__file__).parent / "golden" / f"{name}.npz") as z:
        return {k: jnp.asarray(z[k]) for k in z.files}


def close(actual, expected, rtol=1e-5):
    scale = float(np.max(np.abs(expected)))
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * scale)


def mean(values):
    return losses.masked_mean(values, jnp.ones(values.shape, bool))


# ---- the reference repositories ------------------------------------------------------------


def test_fedprox_term():
    g = golden("fedprox_term")
    term = terms.prox(float(g["mu"]))
    received = Weights({"head": {"kernel": g["W_global"], "bias": g["b_global"]}}, {})

    def loss(params):
        context = SimpleNamespace(weights=Weights(params, {}), received=received)
        return term.weight * term.fn(context)

    value, grads = jax.value_and_grad(loss)({"head": {"kernel": g["W"], "bias": g["b"]}})
    close(value, g["loss"])
    close(grads["head"]["kernel"], g["grad_W"])
    close(grads["head"]["bias"], g["grad_b"])


@pytest.mark.parametrize("adaptive", [True, False])
def test_scaffold_control_variate(adaptive):
    g = golden("scaffold_fedntd_repo")

    def flat(name):
        return jnp.concatenate([g[f"{name}_W"].ravel(), g[f"{name}_b"]])

    info = ClientInfo(0, {}, g["K"], g["lr"], float(g["momentum"]) if adaptive else 0.0)
    new = gradient.control_variate(
        g["ci"],
        g["c"],
        flat("global"),
        flat("local"),
        distance=effective_steps(info) * g["lr"],
    )
    close(new, g[f"ci_plus_adaptive{adaptive}"])
    close(tree.sub(new, g["ci"]), g[f"delta_adaptive{adaptive}"])


@pytest.mark.parametrize("steps, nesterov", [(7, False), (7, True), (1, True)])
def test_control_variate_is_the_mean_gradient(steps, nesterov):
    """With c = c_k = 0 and a constant gradient, SGD with momentum returns that gradient."""
    slope, lr, momentum = jnp.array([1.0, -2.0]), 0.1, 0.9
    zero = x = jnp.zeros(2)
    tx = optax.sgd(lr, momentum, nesterov)
    state = tx.init(x)
    for _ in range(steps):
        step, state = tx.update(slope, state)
        x = x + step
    info = ClientInfo(0, {}, jnp.asarray(steps), lr, momentum, nesterov=nesterov)
    distance = effective_steps(info) * lr
    close(gradient.control_variate(zero, zero, zero, x, distance=distance), slope)


def test_dot_regression_golden():
    g = golden("dot_regression")
    targets = g["etf_dC"].T[g["labels"]]
    value, grad = jax.value_and_grad(lambda f: mean(losses.dot_regression(f, targets)))(
        g["features"]
    )
    close(value, g["loss"])
    close(grad, g["grad_features"])


def feddr_plus(features, g, teacher):
    targets = g["etf_Cd"][g["labels"]]
    pull = mean(losses.dot_regression(features, targets))
    return g["beta"] * pull + (1 - g["beta"]) * mean(losses.feature_l2(features, teacher))


def test_feddr_plus_golden():
    g = golden("feddr_plus")
    etf = linalg.simplex_etf(g["classifier_raw_Cd"].T)
    np.testing.assert_allclose(etf.T @ etf, g["etf_Cd"] @ g["etf_Cd"].T, atol=1e-5)
    cases = {
        "loss_total": ("grad_features", g["teacher_features"]),
        "loss_teacher_equal_student": ("grad_features_teacher_equal_student", g["features"]),
    }
    for loss, (grad, teacher) in cases.items():
        value, actual = jax.value_and_grad(feddr_plus)(g["features"], g, teacher)
        close(value, g[loss])
        close(actual, g[grad])
    step = g["features"] - 0.1 * jax.grad(feddr_plus)(g["features"], g, g["teacher_features"])
    close(step, g["features_after_one_sgd_step_lr0p1"])


@pytest.mark.parametrize("kind", ["balanced", "ce"])
def test_fedetf_golden(kind):
    g = golden("fedetf_official")
    counts = g["counts_raw"].astype(float)  # with a zero: log_prior must count it once
    gamma = 1.0 if kind == "balanced" else 0.0

    def loss(features, temperature):
        logits = temperature * features @ g["etf_dC"]
        return mean(losses.balanced_softmax(logits, g["labels"], counts, gamma))

    args = (g["unit_features"], g["temperature"])
    value, (by_features, by_temperature) = jax.value_and_grad(loss, (0, 1))(*args)
    close(value, g[f"loss_{kind}"])
    close(by_features, g[f"grad_unit_features_{kind}"])
    close(by_temperature, g[f"grad_temperature_{kind}"])


def test_balanced_softmax_golden():
    g = golden("fedetf_official")
    counts = g["counts_used"].astype(float)
    value, grad = jax.value_and_grad(
        lambda z: mean(losses.balanced_softmax(z, g["labels"], counts))
    )(g["logits"])
    close(value, g["loss_balanced_softmax_on_logits"])
    close(grad, g["grad_logits"])


@pytest.mark.parametrize("size", ["5x5", "12x5", "64x10"])
def test_etf_golden(size):
    g = golden("etf_construction")
    etf = linalg.simplex_etf(g[f"uniform_{size}"])
    classes = etf.shape[1]
    expected = (classes * np.eye(classes) - 1) / (classes - 1)
    for gram in (g[f"gram_{size}"], expected):
        np.testing.assert_allclose(etf.T @ etf, gram, atol=1e-5)


# ---- numbers computed by hand --------------------------------------------------------------


def test_cross_entropy_by_hand():
    logits = jnp.log(jnp.array([[1.0, 2.0, 1.0], [8.0, 1.0, 1.0]]))
    values = losses.cross_entropy(logits, jnp.array([1, 2]))
    close(values, np.log([2.0, 10.0]))  # p = 2/4 and 1/10
    huge = losses.cross_entropy(jnp.array([[1e4, -1e4]]), jnp.array([1]))
    close(huge, [2e4])


def test_balanced_softmax_by_hand():
    logits, labels = jnp.zeros((3, 3)), jnp.array([0, 1, 2])
    counts = jnp.array([6.0, 3.0, 0.0])  # the absent class counts once: shares 6, 3, 1 of 10
    close(losses.balanced_softmax(logits, labels, counts), -np.log([0.6, 0.3, 0.1]))
    close(losses.balanced_softmax(logits, labels, counts, 0.0), np.log([3.0, 3.0, 3.0]))
    close(losses.balanced_softmax(logits, labels, counts, 2.0), -np.log(np.array([36, 9, 1]) / 46))
    close(losses.log_prior(counts), np.log([6, 3, 1]))


def test_dot_regression_by_hand():
    features = jnp.array([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [1.0, np.sqrt(3)]])
    targets = jnp.tile(jnp.array([5.0, 0.0]), (4, 1))
    np.testing.assert_allclose(  # cosines 1, 0, -1, 1/2
        losses.dot_regression(features, targets), [0.0, 0.5, 2.0, 0.125], atol=1e-6
    )


def test_feature_l2_by_hand():
    student, teacher = jnp.array([[1.0, 2.0, 3.0, 4.0]]), jnp.array([[1.0, 0.0, 0.0, 1.0]])
    close(losses.feature_l2(student, teacher), [(4 + 9 + 9) / 4])


def test_model_contrastive_by_hand():
    z = jnp.array([[2.0, 0.0], [2.0, 0.0], [1.0, 1.0]])
    other = jnp.array([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]])
    previous = jnp.array([[0.0, 7.0], [1.0, 0.0], [3.0, 3.0]])
    values = losses.model_contrastive(z, other, previous, 0.5)
    close(values, np.log1p(np.exp([-2.0, 2.0, 0.0])))  # (s- - s+) / tau
    more = losses.model_contrastive(z, other, previous, 0.5, earlier=(z, -z))
    close(more, np.log1p(np.exp([[-2.0, 2, 0], [0.0, 2, 0], [-4.0, -2, -4]]).sum(0)))
    for times in ([0, 0], [0, 3], [2, 1]):
        args = {"earlier": (z,), "times": jnp.array(times)}
        value, slope = jax.value_and_grad(
            lambda z, args=args: losses.model_contrastive(z, other, previous, 0.5, **args).sum()
        )(z)
        each = np.exp([[-2.0, 2, 0], [0.0, 2, 0]])
        close(value, np.log1p(np.array(times) @ each).sum())
        assert np.isfinite(slope).all() and np.any(slope) == any(times)


def test_linalg_by_hand():
    x = jnp.array([[3.0, 4.0], [0.0, 0.0], [1e-20, 0.0]])
    np.testing.assert_allclose(linalg.safe_norm(x), [5.0, 1e-12, 1e-12], rtol=1e-6)
    np.testing.assert_allclose(linalg.normalise(x)[:2], [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    close(linalg.cosine(x[:1], jnp.array([[4.0, 3.0]])), [0.96])


# ---- independent NumPy versions and finite differences -------------------------------------

RNG = np.random.RandomState(0)
A, B, C = RNG.randn(3, 6, 5)
LABELS = np.array([0, 3, 3, 1, 4, 0])
COUNTS = np.array([9.0, 2.0, 0.0, 4.0, 1.0])  # class 2 is absent


def np_cosine(a, b):
    return (a * b).sum(-1) / (np.sqrt((a**2).sum(-1)) * np.sqrt((b**2).sum(-1)))


def np_cross_entropy(z):
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return np.array([-np.log(row[y]) for row, y in zip(p, LABELS, strict=True)])


def np_contrastive(z, a, b):
    positive, negative = np.exp(np_cosine(z, a) / 0.7), np.exp(np_cosine(z, b) / 0.7)
    return -np.log(positive / (positive + negative))


J = jnp.asarray  # when called, so in the test's precision

# name -> (loss of its first argument, the same in NumPy)
LOSSES = {
    "cross_entropy": (lambda z: losses.cross_entropy(z, J(LABELS)), np_cross_entropy),
    "balanced": (
        lambda z: losses.balanced_softmax(z, J(LABELS), J(COUNTS), 0.5),
        lambda z: np_cross_entropy(z + 0.5 * np.log(np.where(COUNTS > 0, COUNTS, 1))),
    ),
    "dot_regression": (
        lambda f: losses.dot_regression(f, J(B)),
        lambda f: 0.5 * (np_cosine(f, B) - 1) ** 2,
    ),
    "feature_l2": (
        lambda f: losses.feature_l2(f, J(B)),
        lambda f: np.array([((x - y) ** 2).sum() / 5 for x, y in zip(f, B, strict=True)]),
    ),
    "moon": (
        lambda z: losses.model_contrastive(z, J(B), J(C), 0.7),
        lambda z: np_contrastive(z, B, C),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_equals_numpy(x64, name):
    ours, numpys = LOSSES[name]
    chex.assert_shape(ours(J(A)), (6,))
    np.testing.assert_allclose(ours(J(A)), numpys(A), rtol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_equals_finite_differences(x64, name):
    ours, numpys = LOSSES[name]
    grad = jax.grad(lambda x: jnp.sum(ours(x)))(J(A))
    step, numeric = 1e-6, np.zeros_like(A)
    for place in np.ndindex(*A.shape):
        up, down = A.copy(), A.copy()
        up[place] += step
        down[place] -= step
        numeric[place] = (numpys(up).sum() - numpys(down).sum()) / (2 * step)
    np.testing.assert_allclose(grad, numeric, rtol=1e-6, atol=1e-8)


# ---- corners: zero vectors, padding, shapes ------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("start", ["zeros", "equal", "random"])
@pytest.mark.parametrize("kept", [0, 1, 6])
def test_finite_at_zero_and_with_masks(name, start, kept):
    x = {"zeros": jnp.zeros_like(A), "equal": J(B), "random": J(A)}[start].astype(jnp.float32)
    mask = jnp.arange(6) < kept
    value, grad = jax.value_and_grad(lambda x: losses.masked_mean(LOSSES[name][0](x), mask))(x)
    chex.assert_tree_all_finite((value, grad))
    assert not np.any(grad[kept:])
    if kept == 0:
        assert value == 0
    if kept and start == "random":
        assert np.all(np.any(grad[:kept], axis=1))


def test_prox_gradient_at_the_start_is_zero():
    w = {"a": jnp.ones(3)}
    np.testing.assert_array_equal(jax.grad(lambda v: tree.sq_distance(v, w))(w)["a"], 0)


def test_masked_mean():
    values, mask = jnp.array([1.0, 2.0, jnp.nan]), jnp.array([True, True, False])
    assert losses.masked_mean(values, mask) == 1.5  # a padding row may be anything
    assert losses.masked_mean(values, jnp.zeros(3, bool)) == 0


def test_one_absent_class_moves_only_through_the_softmax():
    """A class the client lacks still gets a finite, pushing-away gradient."""
    grad = jax.grad(lambda z: jnp.sum(losses.balanced_softmax(z, J(LABELS), J(COUNTS))))(J(A))
    assert np.all(np.isfinite(grad)) and np.all(np.asarray(grad)[:, 2] > 0)


def test_shapes_are_checked():
    with pytest.raises(Exception, match=r"shape|Type"):
        losses.dot_regression(jnp.ones((2, 3)), jnp.ones((2, 4)))
    with pytest.raises(Exception, match=r"shape|Type"):
        losses.cross_entropy(jnp.ones((2, 3)), jnp.zeros(3, int))


@pytest.mark.parametrize("make", [linalg.simplex_etf, linalg.orthonormal])
def test_frames(x64, make):
    frame = make(jax.random.normal(jax.random.key(1), (9, 6)))
    gram = frame.T @ frame
    expected = np.eye(6) if make is linalg.orthonormal else (6 * np.eye(6) - 1) / 5
    np.testing.assert_allclose(gram, expected, atol=1e-12)


def test_select_never_mixes_in_nan():
    a, b = {"x": jnp.array([1.0])}, {"x": jnp.array([jnp.nan])}
    assert tree.select(jnp.array(True), a, b)["x"] == 1
    grad = jax.grad(lambda v: tree.select(jnp.array(True), {"x": v}, b)["x"][0])(a["x"])
    assert grad == 1
