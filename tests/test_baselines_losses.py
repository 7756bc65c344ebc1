"""The baselines' equations against numbers recorded from public code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded import close, everything, golden

from fedjax_nc import losses, tree
from fedjax_nc.methods import base, calibration, parts, personal, registry
from fedjax_nc.types import Batch, ClientInfo, Model, Outputs, Weights


def arrived(received, mean, **others):
    """What a server sees when two of three clients have answered."""
    facts = {"uploads": {}, "weight": jnp.ones(()), "clients": jnp.asarray(2.0), "num_clients": 3}
    return base.Arrived(Weights(received, {}), mean=Weights(mean, {}), **(facts | others))


def facts(counts=(1.0,)):
    size = jnp.asarray(8)
    return ClientInfo(size, jnp.asarray(counts, float), size, jnp.asarray(0.1), 0.0)


def context(params, received, features, labels, *, client=None, counts=(1.0,)):
    """What a term sees of a network whose features are a table of parameters."""
    out = Outputs((), (), features, features, jnp.zeros((len(labels), 5)))
    if "head" in params:
        out = out._replace(logits=features @ params["head"]["kernel"] + params["head"]["bias"])
    batch = Batch(features, labels, everything(labels))
    model = Model(Weights, Weights, Weights)
    return base.Context(
        model,
        Weights(params, {}),
        Weights(received, {}),
        batch,
        out,
        {},
        client or {},
        facts(counts),
        jax.random.key(0),
    )


def part(method, name):
    return next(p for p in method.parts if p.name == name)


# ---- recorded numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.1, 10])
@pytest.mark.parametrize("who", ["present", "absent1"])
def test_fedlc(x64, tau, who):
    g = golden("fedlc_feddecorr_repo")
    counts = g[f"counts_{who}"].astype(float)

    def loss(logits):
        return jnp.mean(losses.margin_softmax(logits, g["labels"], counts, float(tau), "remove"))

    value, grad = jax.value_and_grad(loss)(g["logits"])
    close(value, g[f"loss_{who}_tau{tau}"])
    close(grad, g[f"grad_{who}_tau{tau}"])


def test_fedproto(x64):
    g = golden("fedproto")
    known = jnp.array([True, True, False, True, False])
    table = jnp.stack([g["proto0"], g["proto1"], jnp.zeros(6), g["proto3"], jnp.zeros(6)])

    def loss(features, logits):
        y = g["labels"]
        pull = losses.prototype_l2(features, table[y], known[y])
        return jnp.mean(losses.cross_entropy(logits, y)) + g["lam"] * jnp.mean(pull)

    value, grads = jax.value_and_grad(loss, (0, 1))(g["features"], g["logits"])
    close(value, g["loss_total"])
    close(grads[0], g["grad_features"])
    close(grads[1], g["grad_logits"])


def test_fedproto_server(x64):
    g = golden("fednh_server_fedetf_repo")
    old = parts.ClassMeans(jnp.zeros((4, 64)), jnp.zeros(4, bool))
    total = jnp.stack(
        [g["client0_cls0"] + g["client1_cls0"], g["client1_cls1"], g["client0_cls2"], jnp.zeros(64)]
    )
    sums = losses.ClassSums(total, jnp.array([2.0, 1, 1, 0]))
    part = parts.prototypes(weighted=False)
    assert part.reduce is not None
    new = part.reduce(old, sums, arrived({}, {}))
    close(new.mean, g["fedproto_global"])
    np.testing.assert_array_equal(new.seen, [True, True, True, False])


def test_fednh_server(x64):
    g = golden("fednh_server_fedetf_repo")
    total = jnp.stack(
        [g["client0_cls0"] + g["client1_cls0"], g["client1_cls1"], g["client0_cls2"], jnp.zeros(64)]
    )
    body = {"body": jnp.ones(3)}
    method = registry.build("fednh(form='fedetf')")
    seen = arrived(body, body)
    sums = (total, jnp.array([2.0, 1, 1, 0]))
    vectors = part(method, "vectors").reduce(g["prototype"], sums, seen)
    new = method.server(seen, {"vectors": vectors})
    close(new.params["head"]["kernel"].T, g["new_prototype"])
    close(new.params["body"], 2 * np.ones(3))


def test_fedfm(x64):
    g = golden("fedfm")
    anchors, seen, y = g["centroids"], everything(g["centroids"]), g["labels"]

    def contrast(z):
        return jnp.mean(losses.prototype_contrast(z, y, anchors, seen, jnp.zeros(5), 0.1))

    def distance(z):
        return jnp.mean(losses.prototype_l2(z, anchors[y], seen[y], unit=True))

    for fn, name in ((contrast, "ce"), (distance, "l2")):
        value, grad = jax.value_and_grad(fn)(g["features"])
        close(value, g[f"loss_{name}"])
        close(grad, g[f"grad_{name}"])
    sums = [
        losses.class_sums(g[f"rep{i}"], g[f"lab{i}"], everything(g[f"rep{i}"]), 5) for i in (1, 2)
    ]
    for own, i in zip(sums, (1, 2), strict=True):
        close(own.mean, g[f"center{i}"])
        np.testing.assert_array_equal(own.count, g[f"count{i}"])
    reduce = part(registry.build("fedfm"), "anchors").reduce
    from fedjax_nc.methods.prototypes import Anchors

    old = Anchors(jnp.full((5, 6), 7.0), jnp.zeros(5, bool), jnp.zeros((), jnp.int32))
    new = reduce(old, tree.add(*sums), arrived({}, {}))
    weighted = np.array(g["global_centroids_weighted"])
    assert np.isnan(weighted[4]).all()  # a class nobody has: we keep the anchor
    close(new.mean[:4], weighted[:4])
    np.testing.assert_array_equal(new.mean[4], old.mean[4])
    np.testing.assert_array_equal(new.seen, [True, True, True, True, False])


def test_feddistill_fedgen_tracker():
    g = golden("feddistill_fedgen_tracker")
    sums = [
        losses.class_sums(g[f"logits{i}"], g[f"y{i}"], everything(g[f"logits{i}"]), 4)
        for i in (1, 2)
    ]
    both = tree.add(*sums)
    np.testing.assert_array_equal(both.count + 1, g["label_counts"])
    close(parts.mean_logits(both), g["avg"])


def test_fedrod(x64):
    g = golden("fedrod_fedetf_repo")
    counts, y = g["counts_used"].astype(float), g["labels"]
    weights = {"kernel": g["W"].T, "bias": g["b"]}
    start = {"body": g["features"], "head": weights, "own_head": weights}
    terms = registry.build("fedrod").phases[0].terms

    def objective(params, which):
        seen = context(params, start, params["body"], y, counts=counts)
        return sum(term.fn(seen) for term in terms[which])

    close(objective(start, slice(0, 1)), g["loss_generic"])
    close(objective(start, slice(1, 2)), g["loss_personal"])
    grads = jax.grad(objective)(start, slice(0, 2))
    close(grads["body"], g["grad_features"])
    close(grads["head"]["kernel"].T, g["grad_Wg"])
    close(grads["own_head"]["kernel"].T, g["grad_Wp"])
    close((start["head"]["kernel"] - 0.1 * grads["head"]["kernel"]).T, g["Wg_after"])
    close((start["own_head"]["kernel"] - 0.1 * grads["own_head"]["kernel"]).T, g["Wp_after"])


def test_ccvr_client_in_fedetfs_code(x64):
    g = golden("ccvr_client_fedetf_repo")
    collect = registry.build("fedavg | ccvr").posthoc.collect
    z, y = g["features"], g["labels"]
    classes = int(y.max()) + 1
    out = Outputs((), (), z, z, jnp.zeros((len(z), classes)))
    kept, mean, std, _ = calibration.diagonal_upload(*collect(out, Batch(z, y, everything(y))))
    np.testing.assert_array_equal(np.flatnonzero(kept), g["classes_kept"])
    close(mean[g["classes_kept"]], g["mean"])
    close(std[g["classes_kept"]], g["std"])


def test_feddyn_client_in_fedetfs_code(x64):
    g = golden("feddyn_client_fedetf_repo")
    terms = {t.name: t for t in registry.build("feddyn(squared=False)").phases[0].terms}
    order = (1, 48, 30, 5)  # scaling, features, head, bias

    def split(vector):
        a, b, c, d = np.split(np.arange(84), np.cumsum(order)[:-1])
        return {
            "scale": vector[a],
            "body": vector[b].reshape(8, 6),
            "head": {"kernel": vector[c].reshape(5, 6).T, "bias": vector[d]},
        }

    def total(vector):
        params = split(vector)
        seen = context(
            params,
            split(g["global_vector"]),
            params["body"],
            g["labels"],
            client={"gradient": split(g["old_grad"])},
        )
        return sum(t.weight * t.fn(seen) for t in terms.values())

    assert terms["pull"].weight == g["mu"]
    value, grad = jax.value_and_grad(total)(g["param_vector"])
    close(value, g["loss_total"])
    close(grad, g["grad_vector"])
    at_start = jax.grad(total)(g["global_vector"])  # the unsquared norm has no gradient there
    assert np.isfinite(at_start).all()


def test_feddyn_server_in_fedetfs_code(x64):
    g = golden("feddyn_server_fedetf_repo")
    method = registry.build("feddyn(weights='size')")
    clients = [{"W": g[f"client{i}_W"], "b": g[f"client{i}_b"]} for i in range(3)]
    received = {"W": g["global_W"], "b": g["global_b"]}
    updates = [
        tree.scale(w, tree.sub(c, received)) for c, w in zip(clients, g["agg_weights"], strict=True)
    ]
    seen = arrived(received, tree.add(tree.add(updates[0], updates[1]), updates[2]))
    old = {"W": g["state_W"], "b": g["state_b"]}
    reduce = part(method, "drift").reduce
    state = reduce(old, None, seen)
    new = method.server(seen, {"drift": state})
    for k in "Wb":
        close(state[k], g[f"new_state_{k}"])
        close(new.params[k], g[f"new_{k}"])


@pytest.mark.parametrize("case", ["random", "aligned", "diverse"])
def test_fedexp_in_feddecorrs_code(x64, case):
    g = golden("fedexp_feddecorr_repo")
    # the clients are not recorded; the step and the result give back the mean update
    eta = g[f"eta_g_{case}"]
    received = {k: g[f"w0_{k}"] for k in "Wb"}
    mean = {k: (g[f"new_{k}_{case}"] - received[k]) / eta for k in "Wb"}
    length = tree.dot(mean, mean)
    for lengths, expected in ((eta * 2 * (length + g["eps"]), eta), (0.0 * length, 1.0)):
        method = registry.build("fedexp(rule='feddecorr')")
        seen = arrived(received, mean, uploads={"lengths": lengths})
        new = method.server(seen, {})
        for k in "Wb":
            close(new.params[k], received[k] + expected * mean[k])


def test_fedprox_and_ditto_step(x64):
    g = golden("fedprox_ditto_pgd_step")
    pull = registry.build("fedprox(mu=0.3, plain=True)").phases[0].terms[1]

    def prox(w):
        seen = context({"w": w}, {"w": g["global_param"]}, jnp.zeros((1, 1)), jnp.zeros(1, int))
        return pull.weight * pull.fn(seen)

    step = g["param"] - g["lr"] * (g["grad"] + jax.grad(prox)(g["param"]))
    close(step, g["new_param"])


def test_per_fedavg_in_feddws_code(x64):
    g = golden("perfedavg_feddw_repo")
    method = registry.build("per_fedavg(alpha=0.01, beta=0.001, batches='same')")
    phase = method.phases[0]
    assert phase.optimizer == base.SGD(0.001)
    batch = Batch(g["h"], g["labels"], everything(g["labels"]))

    def objective(params, stats, batch, key, wanted=None):
        logits = params["h"] @ params["W"].T + params["b"]
        return losses.masked_mean(losses.cross_entropy(logits, batch.y), batch.mask), (stats, {})

    start = {"W": g["W_fc3"], "b": g["b_fc3"], "h": g["h"]}
    nothing = Weights({}, {})
    nobody = base.View(nothing, nothing, {}, {}, facts())
    gradient_at = phase.grad(jax.value_and_grad(objective, has_aux=True), nobody)
    _, grads = gradient_at(start, {}, batch, None)
    after = tree.sub(start, tree.scale(0.001, grads))
    close(after["W"], g["W_after"], 1e-7)
    close(after["b"], g["b_after"], 1e-7)
    close(after["h"], g["h_after"], 1e-7)


def test_fedexp_in_feddrs_code(x64):
    """Norms count alike whatever the sizes; eps counts all three clients, not the two present."""
    method = registry.build("fedexp(eps=0.1, rule='feddr')")
    received = {"w": jnp.zeros(2)}
    models = [{"w": jnp.array([3.0, 4.0])}, {"w": jnp.array([0.0, 1.0])}]  # norms 5 and 1

    def sent(model, size):
        own = finished(received, weight=jnp.asarray(size))._replace(weights=Weights(model, {}))
        return part(method, "lengths").collect(own)

    lengths = sent(models[0], 7.0) + sent(models[1], 1.0)
    mean = {"w": (7 * models[0]["w"] + models[1]["w"]) / 8}
    seen = arrived(received, mean, uploads={"lengths": lengths}, weight=jnp.asarray(8.0))
    eta = 3.0 / (2 * (np.linalg.norm(mean["w"]) + 3 * 0.1))
    assert eta < 1
    np.testing.assert_allclose(method.server(seen, {}).params["w"], eta * mean["w"], rtol=1e-12)


def finished(params, **others):
    """What a part sees of a client that has trained."""
    weights = Weights(params, {})
    known = {"shared": {}, "client": {}, "info": facts(), "weight": jnp.ones(()), "slots": {}}
    known |= {"opts": (), "over_data": None}
    return base.Finished(weights, weights, **(known | others))


def test_per_fedavg_learns_from_the_other_half(x64):
    """The slope of (w - x)^2 / 2 is taken on rows 1 and 3, after a step on rows 0 and 2."""
    (phase,) = registry.build("per_fedavg(alpha=0.1)").phases

    def value_and_grad(w, stats, batch, key):
        slope = w - jnp.mean(batch.x, where=batch.mask)
        return (slope, (stats, {})), slope

    batch = Batch(jnp.array([0.0, 2.0, 4.0, 6.0]), jnp.zeros(4, int), jnp.ones(4, bool))
    _, slope = phase.grad(value_and_grad, None)(jnp.zeros(()), {}, batch, None)
    close(slope, 0.2 - 4.0)


def test_statistics_of_fedala_stay_with_the_client():
    method = registry.build("fedala")
    head = {"kernel": jnp.zeros((2, 2))}
    share, fresh = {"kernel": jnp.ones((2, 2))}, jnp.ones((), bool)
    own = personal.Mixing(head, {"mean": jnp.asarray(2.0)}, share=share, fresh=fresh)
    received = Weights({"body": {}, "head": head}, {"mean": jnp.asarray(1.0)})
    assert method.start(received, {"mixing": own}).stats == {"mean": 2.0}


def test_prototypes_of_fednh_count_by_their_examples(x64):
    """A class with three examples counts three times; what counts is the direction of its mean."""
    sums = losses.ClassSums(jnp.array([[0.9, 1.2], [0.0, 0.5]]), jnp.array([3.0, 1.0]))
    upload = part(registry.build("fednh"), "vectors").collect
    total, count = upload(finished({}, over_data=lambda fn, augment: sums))
    close(total, [[1.8, 2.4], [0.0, 1.0]])
    close(count, [3.0, 1.0])


def test_soft_labels_once_seen_stay_seen(x64):
    """A class that no participant of a later round has keeps its row, and still counts."""
    rows = jnp.array([[0.8, 0.2], [0.4, 0.6]])
    old = parts.SoftLabels(jnp.eye(2), jnp.array([False, False]), history=(), rounds=0)
    first = parts.soft_labels_by_paper(old, losses.ClassSums(rows, jnp.array([1.0, 0.0])))
    second = parts.soft_labels_by_paper(first, losses.ClassSums(rows, jnp.array([0.0, 1.0])))
    assert first.seen.tolist() == [True, False] and second.seen.tolist() == [True, True]
    close(second.matrix, rows)
