"""Defaults and variants that no trajectory records, by hand; docs/fidelity.md names them."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from recorded import close
from test_baselines_losses import context

from fedjax_nc import losses
from fedjax_nc.methods import parts, registry
from fedjax_nc.methods.base import Context
from fedjax_nc.models.heads import apply_head, init_head
from fedjax_nc.types import ClientInfo, HeadSpec, Outputs

LABELS = np.array([0, 3, 1, 0])
COUNTS = np.array([2.0, 1.0, 0.0, 4.0, 1.0])


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).randn(*shape)


def cross_entropy(logits, labels=LABELS):
    return -scipy.special.log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


def term_of(spec, name):
    return {term.name: term for term in registry.build(spec).phases[0].terms}[name].fn


def seen_by(spec, name, params, shared=None, features=None):
    """The value of a method's term where features are given."""
    features = numbers(4, 3) if features is None else features
    seen = context(params, params, jnp.asarray(features), jnp.asarray(LABELS), counts=COUNTS)
    return term_of(spec, name)(dataclasses.replace(seen, shared=shared or {}))


@pytest.mark.parametrize(
    "name, limit", [("fedgela", 20.0), ("fednh", 10.0), ("fedalign", 10.0), ("fedrcl", 10.0)]
)
def test_gradients_are_cut_at_a_norm(x64, name, limit):
    (phase,) = registry.build(name).phases
    of_norm = {length: {"a": jnp.array([0.6, 0.8]) * length} for length in (5.0, 50.0)}
    for length, slope in of_norm.items():
        _, cut = phase.grad(lambda slope=slope: (None, slope), None)()
        close(cut["a"], np.array([0.6, 0.8]) * min(length, limit), 1e-6)


def test_fedgelas_default_has_an_encoder_under_the_frame():
    method = registry.build("fedgela")
    assert method.head == HeadSpec("etf", bias=False, encoder=True)
    assert "head" not in method.phases[0].train


def test_joint_heads_of_fedrod(x64):
    """The personal loss is of its own head's logits alone, and reaches the body."""
    heads = {"kernel": jnp.asarray(numbers(3, 5, seed=1)), "bias": jnp.asarray(numbers(5, seed=2))}
    other = {"kernel": jnp.asarray(numbers(3, 5, seed=3)), "bias": jnp.asarray(numbers(5, seed=4))}
    params = {"head": other, "own_head": heads}

    def loss(features, spec):
        return seen_by(spec, "own", params, features=features)

    z = numbers(4, 3)
    logits = z @ heads["kernel"] + heads["bias"]
    value, slope = jax.value_and_grad(loss)(jnp.asarray(z), "fedrod(form='joint')")
    close(value, cross_entropy(logits).mean(), 1e-12)
    error = (scipy.special.softmax(logits, 1) - np.eye(5)[LABELS]) / len(z)
    close(slope, error @ heads["kernel"].T, 1e-10)
    assert not np.any(jax.grad(loss)(jnp.asarray(z), "fedrod"))
    out = Outputs((), (), jnp.asarray(z), jnp.asarray(z), jnp.asarray(numbers(4, 5, seed=5)))
    weights = types.SimpleNamespace(params=params)
    for spec, expected in (("fedrod(form='joint')", logits), ("fedrod", logits + out.logits)):
        close(registry.build(spec).predict(out, weights, None), expected, 1e-12)


@pytest.mark.parametrize(
    "spec, name, soft",
    [
        ("feddistill", "soft_labels", lambda rows: rows),
        ("feddistill(rule='paper')", "soft_labels", lambda rows: rows),
        ("feddistill(rule='fedgen')", "mean_logits", lambda rows: scipy.special.softmax(rows, 1)),
    ],
)
def test_teachers_of_feddistill(x64, spec, name, soft):
    """Rows of S teach as they are, mean logits by their softmax; unseen classes say nothing."""
    rows, seen = scipy.special.softmax(numbers(5, 5, seed=6), 1), COUNTS != 4
    head = {"kernel": jnp.asarray(numbers(3, 5, seed=1)), "bias": jnp.zeros(5)}
    shared = parts.SoftLabels(jnp.asarray(rows), jnp.asarray(seen), history=(), rounds=1)
    found = seen_by(spec, "soft_labels", {"head": head}, shared={name: shared})
    student = scipy.special.softmax(numbers(4, 3) @ head["kernel"], 1)
    each = scipy.special.rel_entr(soft(rows)[LABELS], student).sum(1)
    close(found, each[seen[LABELS]].mean(), 1e-9)
    (part,) = registry.build(spec).parts
    assert part.name == name


def test_nearest_prototype_predicts(x64):
    means = numbers(5, 3)
    z = means + 0.01  # the first one is nearest to a class that nobody has shown
    known = parts.ClassMeans(jnp.asarray(means), jnp.asarray([False, True, True, True, True]))
    out = Outputs((), (), jnp.asarray(z), jnp.asarray(z), jnp.zeros((5, 5)))
    view = types.SimpleNamespace(shared={"prototypes": known})
    scores = registry.build("fedproto(predict='nearest')").predict(out, None, view)
    gaps = ((z[:, None] - means) ** 2).sum(-1)
    close(scores[:, 1:], -gaps[:, 1:], 1e-9)
    nearest = 1 + gaps[:, 1:].argmin(1)
    assert np.argmax(scores, 1).tolist() == nearest.tolist() and nearest[1:].tolist() == [
        1,
        2,
        3,
        4,
    ]
    assert np.argmax(registry.build("fedproto").predict(out, None, view)) == 0  # by the head


@pytest.mark.parametrize("factor", [True, False])
def test_fedblades_feature_alignment_with_and_without_class_counts(x64, factor):
    means, z = numbers(5, 3, seed=7), numbers(4, 3)
    shared = {"prototypes": parts.ClassMeans(jnp.asarray(means), jnp.ones(5, bool))}
    spec = f"fedblade(distribution_factor={factor})"
    found = seen_by(spec, "feature_alignment", {}, shared=shared)
    unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (z, means)]
    logits = unit[0] @ unit[1].T / 0.1 + factor * np.log(np.maximum(COUNTS, 1))
    close(found, cross_entropy(logits).mean(), 1e-9)


@pytest.mark.parametrize("absent, least", [("one", -2.0), ("remove", -1e9), ("epsilon", -200.0)])
def test_margins_of_absent_classes(x64, absent, least):
    """FedLC's margin tau n^(-1/4) of a class that the client does not have."""
    head = {"kernel": jnp.asarray(numbers(3, 5, seed=1)), "bias": jnp.zeros(5)}
    margins = np.array([-2.0 * n**-0.25 if n else least for n in COUNTS])
    found = seen_by(f"fedlc(tau=2.0, absent='{absent}')", "margin", {"head": head})
    close(found, cross_entropy(numbers(4, 3) @ head["kernel"] + margins).mean(), 1e-9)


@pytest.mark.parametrize("name", ["fedrod", "fedetf", "fedblade"])
@pytest.mark.parametrize("absent, count", [("one", 1.0), ("remove", 0.0), ("epsilon", 1e-8)])
def test_priors_of_absent_classes(x64, name, absent, count):
    """The balanced loss, and FedBlade's alignment beside it, count such a class so often."""
    head = {"kernel": jnp.asarray(numbers(3, 5, seed=1)), "bias": jnp.zeros(5)}
    prior = np.log(np.where(COUNTS > 0, COUNTS, max(count, 1e-300)))
    spec = f"{name}(absent='{absent}')"
    found = seen_by(spec, "balanced", {"head": head})
    close(found, cross_entropy(numbers(4, 3) @ head["kernel"] + prior).mean(), 1e-9)
    if name == "fedblade":
        shared = {"prototypes": parts.ClassMeans(jnp.eye(5, 3), jnp.ones(5, bool))}
        found = seen_by(spec, "feature_alignment", {}, shared=shared)
        z = numbers(4, 3)
        logits = z / np.linalg.norm(z, axis=1, keepdims=True) @ np.eye(5, 3).T / 0.1
        close(found, cross_entropy(logits + prior).mean(), 1e-9)


def test_fedetf_without_projector_has_features_on_the_frame(x64):
    spec = registry.build("fedetf(projector=False)").head
    params = init_head(jax.random.key(0), spec, features=6, classes=4)
    assert set(params) == {"head", "scale"}
    z = numbers(3, 6)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    close(apply_head(params, jnp.asarray(z), spec=spec)[1], unit @ params["head"]["kernel"], 1e-9)


def test_losses_of_local_training():
    plain, frame, regression = (
        registry.build(spec) for spec in ("local", "local(loss='ce_etf')", "local(loss='dr')")
    )
    assert frame.head == HeadSpec("etf", bias=False)
    assert regression.head == registry.build("dot_regression").head
    for method, name, groups in (
        (plain, "cross_entropy", None),
        (frame, "cross_entropy", None),  # the frame is where the head begins
        (regression, "dot_regression", ("body",)),
    ):
        (phase,) = method.phases
        assert ([term.name for term in phase.terms], phase.train) == ([name], groups)
        assert method.personal == ("body", "head") and not (method.finetune or method.parts)


@pytest.mark.parametrize(
    "groups, trained", [("all", None), ("body", ("body",)), ("head", ("head",))]
)
def test_groups_that_ft_trains(groups, trained):
    (phase,) = registry.build(f"fedavg | ft(groups='{groups}')").finetune
    assert phase.train == trained


def test_fedaligns_narrow_stage_with_all_channels_of_its_input(x64, tiny):
    """It is the wide stage whose layers are off beyond the first channels that they give."""
    t = tiny("fedalign(cut=False, relative=False, width=0.5)", norm="batch")
    weights, model = t.state().weights, t.task.trainer.model
    batch = t.task.trainer.make_batch(t.data.pool, jnp.arange(4), jnp.ones(4, bool), None)
    info = ClientInfo(4, jnp.ones(4), 1, 0.1, 0.0)
    lipschitz = t.task.method.phases[0].terms[1]

    @jax.jit
    def term_and_expected(weights):
        out, _ = model.apply(weights, batch.x, train=True, mask=batch.mask)
        before, after = out.blocks[-2:]
        channels = after.shape[-1] // 2
        assert before.shape[-1] > channels // 2  # of which half would be cut off

        def off(kernel):
            return kernel.at[..., channels:].set(0.0) if kernel.ndim == 4 else kernel

        body = weights.params["body"]
        body = {**body, "stage1": jax.tree.map(off, body["stage1"])}
        zeroed = weights._replace(params={**weights.params, "body": body})
        last = model.last_stage(zeroed, before, width=1.0, mask=batch.mask)[..., :channels]
        whole, part = (
            losses.spectral_norm(losses.transmitting_matrix(before, y)) for y in (after, last)
        )
        positions = after.shape[1] * after.shape[2]
        seen = Context(model, weights, weights, batch, out, {}, {}, info, jax.random.key(0))
        return lipschitz.fn(seen), jnp.mean((part - whole) ** 2) * positions**2

    found, expected = term_and_expected(weights)
    assert expected > 0
    close(found, expected, 1e-9)


def test_weights_of_fedrcls_terms(x64):
    """Its two default weights are equal; here they are not."""
    z = jnp.asarray(numbers(4, 3))
    batch = context({}, {}, z, jnp.asarray(LABELS))
    seen = dataclasses.replace(batch, out=batch.out._replace(levels=(z,)))

    def found(contrast, penalty):
        spec = f"fedrcl(contrast={contrast}, penalty={penalty}, tau=0.5)"
        return float(term_of(spec, "relaxed_contrast")(seen))

    pulls, keeps = losses.relaxed_contrast(
        z, seen.batch.y, mask=seen.batch.mask, tau=0.5, threshold=0.7, beta=1.0
    )
    assert abs(found(1.0, 0.0) - found(0.0, 1.0)) > 1e-3
    close(found(2.0, 0.0), 2 * np.mean(pulls), 1e-12)
    close(found(0.0, 3.0), 3 * np.mean(keeps), 1e-12)


@pytest.mark.parametrize(
    "spec, name, factor",
    [("fedsol(tau=2.0)", "proximal_kl", 1), ("fedavg | kd(tau=2.0)", "kd", 4)],
)
def test_temperatures_of_divergences(x64, spec, name, factor):
    """Distillation is scaled by the square of its temperature; FedSOL's divergence is not."""
    teacher, student = numbers(4, 5, seed=8), numbers(4, 5, seed=9)
    seen = context({}, {}, jnp.asarray(numbers(4, 3)), jnp.asarray(LABELS))
    seen = dataclasses.replace(
        seen,
        out=seen.out._replace(logits=jnp.asarray(student)),
        _teachers={"global": seen.out._replace(logits=jnp.asarray(teacher))},
    )
    given, own = (scipy.special.softmax(z / 2, 1) for z in (teacher, student))
    expected = factor * scipy.special.rel_entr(given, own).sum(1).mean()
    close(term_of(spec, name)(seen), expected, 1e-9)
