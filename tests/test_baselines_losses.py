"""The baselines' equations against recorded numbers of public code and independent NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from recorded import close, everything, golden

from fedjax_nc import linalg, losses, tree
from fedjax_nc.methods import averaging, base, calibration, gradient, parts, personal, registry
from fedjax_nc.types import Batch, ClientInfo, Model, Outputs, Weights


def arrived(received, mean, **others):
    """What a server sees when two of three clients have answered."""
    facts = {"uploads": {}, "weight": jnp.ones(()), "clients": jnp.asarray(2.0),
             "num_clients": 3}  # fmt: skip
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
    return base.Context(model, Weights(params, {}), Weights(received, {}), batch, out, {},
                        client or {}, facts(counts), jax.random.key(0))  # fmt: skip


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
    total = jnp.stack([g["client0_cls0"] + g["client1_cls0"], g["client1_cls1"], g["client0_cls2"],
                       jnp.zeros(64)])  # fmt: skip
    sums = losses.ClassSums(total, jnp.array([2.0, 1, 1, 0]))
    part = parts.prototypes(weighted=False)
    assert part.reduce is not None
    new = part.reduce(old, sums, arrived({}, {}))
    close(new.mean, g["fedproto_global"])
    np.testing.assert_array_equal(new.seen, [True, True, True, False])


def test_fednh_server(x64):
    g = golden("fednh_server_fedetf_repo")
    total = jnp.stack([g["client0_cls0"] + g["client1_cls0"], g["client1_cls1"], g["client0_cls2"],
                       jnp.zeros(64)])  # fmt: skip
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
    sums = [losses.class_sums(g[f"rep{i}"], g[f"lab{i}"], everything(g[f"rep{i}"]), 5)
            for i in (1, 2)]  # fmt: skip
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
    sums = [losses.class_sums(g[f"logits{i}"], g[f"y{i}"], everything(g[f"logits{i}"]), 4)
            for i in (1, 2)]  # fmt: skip
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
        return {"scale": vector[a], "body": vector[b].reshape(8, 6),
                "head": {"kernel": vector[c].reshape(5, 6).T, "bias": vector[d]}}  # fmt: skip

    def total(vector):
        params = split(vector)
        seen = context(params, split(g["global_vector"]), params["body"], g["labels"],
                       client={"gradient": split(g["old_grad"])})  # fmt: skip
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
    updates = [tree.scale(w, tree.sub(c, received))
               for c, w in zip(clients, g["agg_weights"], strict=True)]  # fmt: skip
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


# ---- independent versions ------------------------------------------------------------------


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).randn(*shape)


def test_extrapolation_rules():
    expected = {"official": max(1.0, 8.0 / (2 * (0.5 + 4 * 0.1))), "feddecorr": 8 / (2 * 0.6),
                "feddr": min(1.0, 8 / (2 * (0.5**0.5 + 10)))}  # fmt: skip
    for rule, value in expected.items():
        close(averaging.extrapolation(8.0, 0.5, 4.0, 0.1, rule), value)


def slow_contrast(z, y, tau, threshold, beta):
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    s, n = unit @ unit.T, len(z)
    first, second = [], []
    for i in range(n):
        positive = min(s[i, j] for j in range(n) if y[j] == y[i])
        negatives = sorted((s[i, j] for j in range(n) if y[j] != y[i]), reverse=True)[:2]
        logits = [positive / tau, *((v + np.log(beta)) / tau for v in negatives)]
        first.append(scipy.special.logsumexp(logits) - logits[0])
        others = [s[i, j] for j in range(n) if y[j] == y[i] and j != i]
        logits = [1 / tau]
        if others:
            near = min(others) if min(others) >= threshold else -1.0
            logits.append((near + np.log(beta)) / tau)
        second.append(scipy.special.logsumexp(logits) - logits[0])
    return np.array(first), np.array(second)


@pytest.mark.parametrize("beta", [1.0, 0.7])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 0, 1, 3], [0] * 8, list(range(8))])
def test_relaxed_contrast(x64, labels, beta):
    z, y = numbers(8, 3), np.array(labels)
    z[1] = 1.1 * z[0] + 0.05 * z[2]  # close enough to be pushed away
    for got, want in zip(losses.relaxed_contrast(jnp.asarray(z), jnp.asarray(y), everything(z), 0.1,
                                                 0.7, beta),
                         slow_contrast(z, y, 0.1, 0.7, beta), strict=True):  # fmt: skip
        close(got, want, 1e-9)


def pair_losses(z, logits, y, mask):
    contrast = sum(losses.masked_mean(v, mask) for v in losses.relaxed_contrast(z, y, mask))
    return contrast + losses.uniformity(z, mask) + losses.class_variance(logits, mask)


def test_padding_changes_no_pair_loss(x64):
    z, logits, y = numbers(9, 4), numbers(9, 3, seed=1), np.arange(9) % 3
    mask = np.arange(9) < 6
    z[6:], logits[6:] = 1e6, -1e6
    fn = jax.value_and_grad(pair_losses, (0, 1))
    padded = fn(*map(jnp.asarray, (z, logits, y, mask)))
    short = fn(*(jnp.asarray(a[:6]) for a in (z, logits, y, mask)))
    close(padded[0], short[0], 1e-12)
    for a, b in zip(padded[1], short[1], strict=True):
        close(a[:6], b, 1e-12)
        assert not np.asarray(a[6:]).any()


@pytest.mark.parametrize("kind", ["one", "none", "equal", "dead"])
def test_pair_losses_are_finite_on_odd_batches(kind):
    z, logits = numbers(5, 4).astype(np.float32), numbers(5, 3, seed=1).astype(np.float32)
    mask = np.ones(5, bool)
    if kind in ("one", "none"):
        mask[int(kind == "one") :] = False
    z = {"equal": np.ones_like(z), "dead": np.zeros_like(z)}.get(kind, z)
    args = map(jnp.asarray, (z, logits, np.zeros(5, np.int32), mask))
    value, grads = jax.value_and_grad(pair_losses, (0, 1))(*args)
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in grads)


def test_feduv_against_numpy(x64):
    z, logits = numbers(7, 4), numbers(7, 5, seed=3)
    std = scipy.special.softmax(logits, 1).std(0, ddof=1)
    expected = np.maximum(0, np.eye(5).std(0, ddof=1).mean() - std).mean()
    close(losses.class_variance(jnp.asarray(logits), everything(z)), expected, 1e-12)
    z[1] = z[0]  # a distance of zero is not in the median
    d = np.array([((z[i] - z[j]) ** 2).sum() for i in range(7) for j in range(i + 1, 7)])
    above = np.sort(d[d > 0])
    expected = np.exp(-d / above[(len(above) - 1) // 2]).mean()
    close(losses.uniformity(jnp.asarray(z), everything(z)), expected, 1e-12)


def test_uniformitys_gradient(x64):
    z, mask = jnp.asarray(numbers(5, 3)), jnp.ones(5, bool)
    direction = jnp.asarray(numbers(5, 3, seed=9))
    slope = jnp.sum(jax.grad(losses.uniformity)(z, mask) * direction)
    step = 1e-6
    ends = [losses.uniformity(z + s * direction, mask) for s in (step, -step)]
    close(slope, (ends[0] - ends[1]) / (2 * step), 1e-6)


def test_ccvr_pools_exactly(x64):
    rng = np.random.RandomState(0)
    z, y, owner = rng.randn(60, 4), rng.randint(0, 3, 60), rng.randint(0, 5, 60)
    collect = registry.build("fedavg | ccvr").posthoc.collect
    sums = None
    for k in range(5):
        mine = owner == k
        out = Outputs((), (), jnp.asarray(z[mine]), jnp.asarray(z[mine]),
                      jnp.zeros((mine.sum(), 4)))  # fmt: skip
        new = collect(out, Batch(out.features, jnp.asarray(y[mine]), everything(y[mine])))
        sums = new if sums is None else tree.add(sums, new)
    moments = calibration.pooled_moments(*sums)
    for c in range(3):
        close(moments.mean[c], z[y == c].mean(0), 1e-10)
        close(moments.spread[c], np.cov(z[y == c].T), 1e-10)
    assert moments.count[3] == 0 and np.isfinite(moments.spread).all()
    # the paper's formula, from clients' own unbiased covariances
    n = np.array([((y == 0) & (owner == k)).sum() for k in range(5)])
    own = [z[(y == 0) & (owner == k)] for k in range(5)]
    mu = sum(n[k] * own[k].mean(0) for k in range(5)) / n.sum()
    sigma = sum((n[k] - 1) * np.cov(own[k].T) + n[k] * np.outer(own[k].mean(0), own[k].mean(0))
                for k in range(5))  # fmt: skip
    sigma = (sigma - n.sum() * np.outer(mu, mu)) / (n.sum() - 1)
    close(moments.spread[0], sigma, 1e-10)


def test_ccvrs_features_have_the_moments(x64):
    root = numbers(3, 3)
    moments = calibration.Moments(jnp.array([5.0, 0]), jnp.asarray(numbers(2, 3)),
                                  jnp.stack([root @ root.T, jnp.zeros((3, 3))]))  # fmt: skip
    z, y, valid = calibration.virtual_features(jax.random.key(0), moments, 20000)
    assert valid[y == 0].all() and not valid[y == 1].any()
    close(z[y == 0].mean(0), moments.mean[0], 0.05)
    close(np.cov(z[y == 0].T), moments.spread[0], 0.05)


def test_fedsols_perturbation(x64):
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
    away = gradient.perturbation(grads, 2.0)
    close(away["a"], [1.2, 0])
    close(away["b"], [[1.6]])
    noise = gradient.perturbation(tree.scale(1e-17, grads), 2.0)
    assert not any(np.any(x) for x in jax.tree.leaves(noise))


def test_fedala_by_hand(x64):
    old, new = {"w": jnp.zeros(3)}, {"w": jnp.array([0.25, 0.5, 1.0])}
    grads, share = {"w": jnp.array([1.0, -2.0, 3.0])}, {"w": jnp.array([0.5, 0.9, 0.1])}
    share = personal.adapted(share, grads, old, new, 1.0)
    close(share["w"], [0.25, 1.0, 0.0])
    mixed = personal.mixed(
        {"w": jnp.array([2.0])}, {"w": jnp.array([4.0])}, {"w": jnp.array([0.25])}
    )
    close(mixed["w"], [2.5])


def test_effective_steps(x64):
    # K equal gradients: momentum moves by sum_i sum_{j<=i} m^j
    for steps, m in ((1, 0.9), (7, 0.9), (4, 0.0), (3, 0.5)):
        expected = sum(sum(m**j for j in range(i + 1)) for i in range(steps))
        close(averaging.effective_steps(steps, m), expected, 1e-12)


def test_moving_prototypes_stay_unit(x64):
    w = linalg.normalise(jnp.asarray(numbers(3, 4)))
    mean = jnp.asarray(numbers(3, 4, seed=5)).at[2].set(0.0)
    new = losses.moving_prototypes(w, mean, 0.9)
    close(jnp.sum(new**2, -1), np.ones(3), 1e-12)
    close(new[2], w[2], 1e-12)  # nobody has the class


def test_halves_share_no_row():
    for count in range(6):
        mask = jnp.arange(5) < count
        first, second = gradient.halves(Batch(jnp.zeros((5, 1)), jnp.zeros(5, jnp.int32), mask))
        assert (first.mask | second.mask == mask).all()
        assert not (first.mask & second.mask).any() or count == 1
        assert abs(int(first.mask.sum()) - int(second.mask.sum())) <= 1
