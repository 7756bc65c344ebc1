"""The five systems' losses against their authors' numbers and an independent NumPy version."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from recorded import close, everything, golden

from fedjax_nc import linalg, losses, types
from fedjax_nc.methods import forward, parts
from fedjax_nc.models.base import _first_channels
from fedjax_nc.models.conv import Conv
from fedjax_nc.models.norm import Norm

# ---- the reference repositories ------------------------------------------------------------


def test_fedetf_in_feddrs_code(x64):
    g = golden("fedetf_feddr_codebase")
    counts = g["class_counts"].astype(float)

    def loss(features, projection, temperature):
        logits = temperature * linalg.normalise(features @ projection.T) @ g["etf_CC"].T
        return jnp.mean(losses.balanced_softmax(logits, g["labels"], counts, 1.0, "remove"))

    args = (g["features"], g["projection_Cd"], g["temperature"])
    value, grads = jax.value_and_grad(loss, (0, 1, 2))(*args)
    close(value, g["loss"])
    for grad, name in zip(grads, ("features", "projection", "temperature"), strict=True):
        close(grad, np.reshape(g[f"grad_{name}"], grad.shape))


def test_feddw(x64):
    g = golden("feddw")
    classes = everything(g["W_fc3"])

    def regulariser(w):
        relations = losses.class_relations(w)
        return losses.soft_label_consistency(g["SL_global"], relations, classes)

    def total(w):
        ce = jnp.mean(losses.cross_entropy(g["h"] @ w.T + g["b_fc3"], g["labels"]))
        return ce + g["mu"] * regulariser(w)

    close(regulariser(g["W_fc3"]), g["reg"])
    close(jax.grad(regulariser)(g["W_fc3"]), g["grad_W_reg"])
    close(total(g["W_fc3"]), g["loss_total"])
    close(jax.grad(total)(g["W_fc3"]), g["grad_W_total"])
    probabilities = jax.nn.softmax(g["post_step_logits"])
    sums = losses.class_sums(probabilities, g["labels"], everything(probabilities), 5)
    close(sums.total, g["local_SL_sum"])
    np.testing.assert_array_equal(sums.count, g["local_counts"])


def test_feddw_server(x64):
    g = golden("feddw_server")
    classes = g["counts"].shape[-1]
    nothing = losses.ClassSums(jnp.zeros((classes, classes)), jnp.zeros(classes))
    soft = parts.SoftLabels(jnp.eye(classes), jnp.ones(classes, bool), nothing, jnp.asarray(0))
    for i in range(3):
        close(soft.matrix, g[f"SL_sent_round{i + 1}"])
        uploads = losses.ClassSums(g["soft_label_sums"][i].sum(0), g["counts"][i].sum(0))
        soft = parts.soft_labels_by_code(soft, uploads)
    close(soft.matrix, g["SL_after_round3"])


def test_fedistill_in_feddws_code(x64):
    g = golden("feddistill_feddw_repo")

    def loss(w, h):
        logits = h @ w.T + g["b_fc3"]
        soft = losses.soft_label_kl(logits, g["SL_global"][g["labels"]], "linear")
        return jnp.mean(losses.cross_entropy(logits, g["labels"]) + soft)

    value, (by_w, by_h) = jax.value_and_grad(loss, (0, 1))(g["W_fc3"], g["h"])
    close(value, g["loss_total"])
    close(by_w, g["grad_W"])
    close(by_h, g["grad_h"])


@pytest.mark.parametrize("case", ["a", "b"])
def test_feddecorr(case):
    g = golden("feddecorr")
    x = g[f"x_{case}"]
    value, grad = jax.value_and_grad(lambda x: losses.frobenius(x, everything(x)))(x)
    close(value, g[f"loss_{case}"])
    close(grad, g[f"grad_{case}"])


def test_fedntd():
    g = golden("fedntd")
    for tau, beta in ((1, 1), (3, 1), (3, 0.3)):
        name = f"tau{tau}_beta{beta}"

        def loss(z, tau=tau, beta=beta):
            ntd = losses.not_true_kd(z, g["global_logits"], g["labels"], float(tau))
            return jnp.mean(losses.cross_entropy(z, g["labels"]) + beta * ntd)

        value, grad = jax.value_and_grad(loss)(g["logits"])
        close(value, g[f"loss_{name}"])
        close(grad, g[f"grad_{name}"])


def test_fedalign_lipschitz(x64):
    g = golden("fedalign_lipschitz")
    maps = {k: jnp.moveaxis(g[k], 1, -1) for k in g if k.startswith("f_")}
    matrix = losses.transmitting_matrix(maps["f_prev_full"], maps["f_last_full"])
    close(matrix, g["TM_full"])
    full = losses.spectral_norm(matrix)
    close(full, g["K_full"].ravel())
    np.testing.assert_allclose(full, g["svd_top_full"], rtol=1e-3)  # ten iterations

    def loss(last):
        sub = losses.spectral_norm(losses.transmitting_matrix(maps["f_prev_sub"], last))
        return jnp.mean((sub - full) ** 2)

    value, grad = jax.value_and_grad(loss)(maps["f_last_sub"])
    close(value, g["loss_lip"])
    close(jnp.moveaxis(grad, -1, 1), g["grad_f_last_sub"])


class ConvNorm(nn.Module):
    """A layer of the project at some width."""

    width: float

    @nn.compact
    def __call__(self, x, *, train, mask):
        y = Conv(types.narrow(32, self.width), 3, padding=1)(x)
        return y, Norm()(y, train=train, mask=mask)


def test_fedalign_slimmable(x64):
    g = golden("fedalign_slimmable")
    table = [[types.divisible(float(c * w)) for w in g["widths"]] for c in g["channels"]]
    np.testing.assert_array_equal(table, g["make_divisible_table"])
    x = jnp.moveaxis(g["x"], 1, -1)
    params = {
        "Conv_0": {"kernel": jnp.transpose(g["conv_w"], (2, 3, 1, 0))},
        "Norm_0": {"scale": g["bn_w"], "bias": g["bn_b"]},
    }
    for width in (0.25, 0.8, 1.0):
        part = x[..., : types.narrow(16, width)]
        assert part.shape[-1] == g[f"cin_{width}"]
        net = ConvNorm(width)
        own = _first_channels(net, params, part)
        (conv, norm), new = net.apply(
            {"params": own}, part, train=True, mask=None, mutable="batch_stats"
        )
        close(jnp.moveaxis(conv, -1, 1), g[f"conv_{width}"])
        close(jnp.moveaxis(norm, -1, 1), g[f"bn_train_{width}"])
    # only the whole network leaves statistics
    close(new["batch_stats"]["Norm_0"]["mean"], g["bn_running_mean_after"])
    close(new["batch_stats"]["Norm_0"]["var"], g["bn_running_var_after"])


def test_stochdepth_probabilities():
    g = golden("stochdepth_probs")
    for name, blocks in (("resnet56", 18), ("resnet18", 8)):
        close(forward.kept(blocks, 0.9, "code"), g[f"{name}_keep_probs"], 1e-7)
    np.testing.assert_allclose(forward.kept(4, 0.8, "paper"), [0.95, 0.9, 0.85, 0.8])


def test_gradaug(x64):
    g = golden("gradaug_fedalign_repo")
    x = jnp.moveaxis(g["images"], 1, -1)

    def net(params, x, width):
        kernel, w, b = params
        n = types.narrow(16, float(width))
        y = jax.lax.conv_general_dilated(
            x, kernel[..., :n], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.mean(jax.nn.relu(y), (1, 2)) @ w[:, :n].T + b

    def loss(params):
        whole = net(params, x, 1.0)
        ce = jnp.mean(losses.cross_entropy(whole, g["labels"]))
        subs = [
            g["mu"]
            * jnp.mean(
                losses.kd(net(params, forward.resize(x, int(s)), w), jax.lax.stop_gradient(whole))
            )
            for w, s in zip(g["widths_desc"], g["resolutions_in_order"], strict=True)
        ]
        return ce + sum(subs), (ce, subs)

    params = (jnp.transpose(g["conv_w"], (2, 3, 1, 0)), g["fc_w"], g["fc_b"])
    (_, (ce, subs)), grads = jax.value_and_grad(loss, has_aux=True)(params)
    close(ce, g["loss_ce"])
    close(jnp.asarray(subs), g["loss_kd_scaled"])
    close(jnp.transpose(grads[0], (3, 2, 0, 1)), g["grad_conv_total"])
    close(grads[1], g["grad_fc_w_total"])
    close(grads[2], g["grad_fc_b_total"])


# ---- NumPy: what has no public code --------------------------------------------------------

RNG = np.random.RandomState(3)
Z, LABELS = RNG.randn(7, 12), np.array([0, 1, 1, 3, 2, 0, 4])
COUNTS = np.array([5.0, 2.0, 0.0, 1.0, 3.0])
PROTOTYPES, SEEN = RNG.randn(5, 12), np.array([True, True, False, True, True])


def np_log_det(z):
    """-log det of the correlation matrix with jitter, by NumPy's own correlation."""
    k = np.corrcoef(z, rowvar=False)
    return -np.linalg.slogdet(k + 1e-4 * np.eye(z.shape[1]))[1]


def np_feature_alignment(z, tau=0.1):
    unit = lambda a: a / np.linalg.norm(a, axis=-1, keepdims=True)  # noqa: E731
    logits = unit(z) @ unit(PROTOTYPES).T / tau + np.log(np.maximum(COUNTS, 1))
    log_p = scipy.special.log_softmax(np.where(SEEN, logits, -np.inf), axis=1)
    return np.array([-row[y] if SEEN[y] else 0.0 for row, y in zip(log_p, LABELS, strict=True)])


def np_projector_alignment(projected):
    vectors = RNG_VECTORS
    total = 0.0
    for p, v, seen in zip(projected, vectors, SEEN, strict=True):
        cosine = p @ v / np.sqrt((p @ p) * (v @ v))
        total += seen * 0.5 * (1 - cosine) ** 2
    return total


RNG_VECTORS = np.random.RandomState(5).randn(5, 12)
J = jnp.asarray
NUMPYS = {
    "log_det": (lambda z: losses.log_det(z, everything(z)), np_log_det),
    "projector_alignment": (
        lambda z: losses.projector_alignment(z, J(RNG_VECTORS), J(SEEN)),
        np_projector_alignment,
    ),
    "feature_alignment": (
        lambda z: jnp.sum(
            losses.prototype_contrast(
                z, J(LABELS), J(PROTOTYPES), J(SEEN), losses.log_prior(J(COUNTS)), 0.1
            )
        ),
        lambda z: np_feature_alignment(z).sum(),
    ),
    "spherefed": (
        lambda z: jnp.mean(losses.cosine_mse(z, J(LABELS))),
        lambda z: np.mean((z - np.eye(12)[LABELS]) ** 2),
    ),
    "fedgela": (
        lambda z: jnp.sum(losses.prior_scaled(z[:, :5], J(COUNTS), 0.2) ** 2),
        lambda z: np.sum((z[:, :5] * 5 * COUNTS / COUNTS.sum() / 0.2) ** 2),
    ),
    "kd": (
        lambda z: jnp.sum(losses.kd(z, J(Z[::-1].copy()), 3.0)),
        lambda z: (
            9
            * np.sum(
                scipy.special.rel_entr(
                    scipy.special.softmax(Z[::-1] / 3, 1), scipy.special.softmax(z / 3, 1)
                )
            )
        ),
    ),
    "soft_label_kl": (
        lambda z: jnp.sum(losses.soft_label_kl(z, jax.nn.softmax(J(Z[::-1].copy())))),
        lambda z: np.sum(
            scipy.special.rel_entr(scipy.special.softmax(Z[::-1], 1), scipy.special.softmax(z, 1))
        ),
    ),
}


@pytest.mark.parametrize("name", NUMPYS)
def test_equals_numpy_in_value_and_gradient(x64, name):
    ours, numpys = NUMPYS[name]
    z = (Z[:5] if name == "projector_alignment" else Z).copy()
    np.testing.assert_allclose(ours(J(z)), numpys(z), rtol=1e-6)
    grad, numeric = np.asarray(jax.grad(ours)(J(z))), np.zeros_like(z)
    for place in np.ndindex(*z.shape):
        up, down = z.copy(), z.copy()
        up[place] += 1e-5
        down[place] -= 1e-5
        numeric[place] = (numpys(up) - numpys(down)) / 2e-5
    np.testing.assert_allclose(grad, numeric, rtol=1e-5, atol=1e-5 * np.abs(numeric).max())


@pytest.mark.parametrize("shape", [(7, 12), (12, 7), (9, 9)])
@pytest.mark.parametrize("kept", [2, 6])
def test_log_det_by_samples_equals_by_features(x64, shape, kept):
    """Value and gradient of the B x B form are those of the paper's d x d form, padded or not."""
    z, mask = J(np.random.RandomState(1).randn(*shape)), jnp.arange(shape[0]) < kept
    results = [
        jax.value_and_grad(lambda z, s=s: losses.log_det(z, mask, side=s))(z)
        for s in ("features", "samples", "smaller")
    ]
    for value, grad in results[1:]:
        np.testing.assert_allclose(value, results[0][0], rtol=1e-9)
        np.testing.assert_allclose(grad, results[0][1], rtol=1e-6, atol=1e-8)
    alone = losses.log_det(z[:kept], mask[:kept])
    np.testing.assert_allclose(results[0][0], alone, rtol=1e-9)
    assert not np.any(results[0][1][kept:])


def test_log_det_second_order(x64):
    z = J(Z)
    value = lambda z: losses.log_det(z, everything(z))  # noqa: E731
    product = jax.jvp(jax.grad(value), (z,), (z[::-1],))[1]
    step = 1e-6
    up, down = (jax.grad(value)(z + s * z[::-1]) for s in (step, -step))
    np.testing.assert_allclose(product, (up - down) / (2 * step), rtol=1e-5, atol=1e-6)


COLLAPSED = {
    "dead": np.zeros((64, 256)),
    "one dead": np.hstack([RNG.randn(64, 255), np.ones((64, 1))]),
    "one direction": np.outer(np.arange(64), np.ones(256)),
    "rank one": np.outer(RNG.randn(64), RNG.randn(256)),
    "wide rank one": np.outer(RNG.randn(64), RNG.randn(1280)),
}


@pytest.mark.parametrize("name", COLLAPSED)
@pytest.mark.parametrize("loss", [losses.log_det, losses.frobenius])
def test_decorrelation_is_finite_on_collapsed_features(name, loss):
    z = J(COLLAPSED[name], jnp.float32)
    for kept in (0, 1, 2, 64):
        value, grad = jax.value_and_grad(loss)(z, jnp.arange(64) < kept)
        assert np.isfinite(value) and np.all(np.isfinite(grad))
        if kept < 2:
            assert value == 0 and not np.any(grad)


def test_alignment_without_prototypes_is_zero():
    """Before any class has been seen both terms and their gradients are zero, not NaN."""
    nothing, zeros = jnp.zeros(5, bool), jnp.zeros((5, 12))
    shift = losses.log_prior(J(COUNTS, jnp.float32))

    def feature(z):
        return jnp.sum(losses.prototype_contrast(z, J(LABELS), zeros, nothing, shift, 0.1))

    def projector(w):
        return losses.projector_alignment(zeros @ w, zeros + 1, nothing)

    for fn, x in ((feature, J(Z, jnp.float32)), (projector, jnp.ones((12, 12)))):
        value, grad = jax.value_and_grad(fn)(x)
        assert value == 0 and not np.any(grad)


def test_linearised_gram(x64):
    """Equal at the reference, to first order around it, and linear: its square is convex."""
    w, reference, step = J(Z[:5]), J(Z[1:6]), J(Z[2:7])
    np.testing.assert_allclose(losses.linearised_gram(w, w), w @ w.T, rtol=1e-12)
    tangent = jax.jvp(lambda w: w @ w.T, (reference,), (step,))[1]
    moved = losses.linearised_gram(reference + step, reference)
    np.testing.assert_allclose(moved - reference @ reference.T, tangent, rtol=1e-9)
    hessian = jax.hessian(
        lambda w: losses.soft_label_consistency(
            jnp.eye(5), losses.linearised_gram(w.reshape(5, 12), reference), everything(w[:5])
        )
    )(w.ravel())
    assert np.linalg.eigvalsh(hessian).min() > -1e-12


def test_pull_and_push_are_minus_the_gradient(x64):
    """Proposition 1 of FedDr+ against automatic differentiation."""
    vectors, labels = J(RNG_VECTORS), J(LABELS)
    pull, push = losses.pull_push(J(Z), vectors, labels)
    gradient = jax.grad(lambda f: jnp.sum(losses.cross_entropy(f @ vectors.T, labels)))(J(Z))
    np.testing.assert_allclose(pull + push, -gradient, rtol=1e-10)
    assert np.all(np.linalg.matrix_rank(np.stack([pull[0], vectors[0]])) == 1)


@pytest.mark.parametrize("absent, least", [("one", 0.0), ("remove", -1e9), ("epsilon", -18.42068)])
def test_absent_classes(absent, least):
    prior = losses.log_prior(J(COUNTS), absent)
    np.testing.assert_allclose(prior, [np.log(5), np.log(2), least, 0, np.log(3)], rtol=1e-6)


@pytest.mark.parametrize("width", [9, 10, 16])
def test_etf_in_few_dimensions(x64, width):
    etf = linalg.simplex_etf(jax.random.uniform(jax.random.key(0), (width, 10)))
    np.testing.assert_allclose(etf.T @ etf, (10 * np.eye(10) - 1) / 9, atol=1e-12)
