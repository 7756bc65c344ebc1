"""The baselines as methods: identities, fixed points, and what stays with whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import after, calibrated, differ, identical, only, personal_of, plain, same

from fedjax_nc import losses, tree
from fedjax_nc.methods import catalogue, personal, registry
from fedjax_nc.methods.base import Phase, Term
from fedjax_nc.train import executors
from fedjax_nc.train.traffic import traffic

EMPTY, LARGEST = 1, 3  # clients of the tiny federation; the second misses classes

EQUAL_TO_FEDAVG = [
    "fedprox(mu=0.0)",
    "fedntd(beta=0.0)",
    "feduv(lam=0.0, mu=0.0)",
    "feddecorr(beta=0.0)",
    "mixup(gamma=0.0)",
    "fedlc(tau=0.0)",
    "fedproto(lam=0.0)",
    "fedfm(lam=0.0)",
    "fedfm(start=9)",
    "fedrcl(contrast=0.0, penalty=0.0, clip=0.0)",
    "fedsol(rho=0.0)",
    "per_fedavg(alpha=0.0, batches='same')",
    "pfedme(steps=1, lam=4.0, alpha=0.25, lr=0.0)",
    "fedavgm(momentum=0.0)",
    "centralised",  # of several clients, where nobody puts their data together
    "apfl(alpha=0.3)",
    "fedavg | ft",
    "fedavg | ccvr",
]


@pytest.mark.parametrize("spec", EQUAL_TO_FEDAVG)
def test_equals_fedavg(x64, spec):
    one, other = (after(s, 2, norm="none") for s in (spec, "fedavg"))
    same(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "spec",
    [
        "fedexp(rule='feddecorr')",
        "feddyn(squared=False)",
        "fedproto(average=False, predict='nearest')",
        "fedfm(matching='l2')",
        "fednh(scale=30.0)",
        "fedrod(form='joint')",
        "feddistill(rule='fedgen')",
        "fedlc(absent='one')",
        "fedrep(epochs='feddw')",
        "fedprox(plain=True)",
        "per_fedavg(batches='pairs')",
    ],
)
def test_variants_differ_and_stay_finite(spec):
    """A variant that no trajectory computes trains other weights than its default."""
    options = {"local_cfg": {"epochs": 3, "momentum": 0.9, "weight_decay": 1e-3}}
    one, other = (after(s, 2, **options) for s in (spec, spec.split("(")[0]))
    assert differ(one.params["body"], other.params["body"])


# ---- servers -------------------------------------------------------------------------------


def quadratic(spec):
    """The method on f_k(b) = a_k/2 |b - t_k|^2 instead of cross-entropy, b the head's bias."""

    def fn(c):
        counts = c.info.class_counts
        target, curvature = counts / jnp.maximum(jnp.sum(counts), 1.0), 1.0 + counts[0]
        return 0.5 * curvature * jnp.sum((c.weights.params["head"]["bias"] - target) ** 2)

    method = registry.build(spec)
    return method._replace(
        phases=tuple(
            p._replace(
                terms=tuple(t._replace(fn=fn) if t.name == "cross_entropy" else t for t in p.terms)
            )
            for p in method.phases
        )
    )


@pytest.mark.parametrize(
    "spec, arrives", [("fedavg", False), ("scaffold", True), ("feddyn(alpha=0.5)", True)]
)
def test_drift_on_quadratics(x64, tiny, spec, arrives):
    """Clients of unequal curvature and steps: only corrected ones meet at the global optimum."""
    t = tiny(
        quadratic(spec),
        norm="none",
        local_cfg={"lr": 0.05, "epochs": 4},
        federation={"weights": "equal"},
    )
    counts = np.asarray(t.data.class_counts)
    counts = counts[counts.sum(1) > 0]
    target, curvature = counts / counts.sum(1, keepdims=True), 1.0 + counts[:, :1]
    optimum = (curvature * target).sum(0) / curvature.sum()
    state, _ = t.run(300)
    gap = np.abs(np.asarray(state.weights.params["head"]["bias"]) - optimum).max()
    assert (gap < 1e-6) == arrives and gap < 0.5
    assert arrives or gap > 1e-2


def test_fednova_with_equal_steps_is_fedavg(x64, tiny):
    local = {"steps": 3, "momentum": 0.9}
    a, b = (tiny(spec, local_cfg=local).run(2)[0].weights for spec in ("fednova", "fedavg"))
    same(a, b)


def test_fednova_normalises(x64, tiny):
    """Clients that all pull by a constant gradient agree, however many steps they make."""

    def fn(c):
        return jnp.sum(c.weights.params["head"]["bias"])

    def bias(spec):
        method = registry.build(spec)
        method = method._replace(phases=(Phase((Term("cross_entropy", fn),)),))
        t = tiny(method, norm="none", local_cfg={"momentum": 0.5}, federation={"weights": "size"})
        start = np.asarray(t.state().weights.params["head"]["bias"])
        return np.asarray(t.run(1)[0].weights.params["head"]["bias"]) - start

    same(bias("fednova"), bias("fedavg"))  # tau_eff is the mean number of steps


def test_fedexp_of_one_client_is_fedavg(x64, tiny):
    a, b = (only(tiny(spec), LARGEST).run(2)[0].weights for spec in ("fedexp", "fedavg"))
    same(a, b)


def test_fedexp_steps_further_when_clients_disagree(x64, tiny):
    t, plain_t = tiny("fedexp(eps=0.0)", norm="none"), tiny(norm="none")
    start = plain(t.state().weights)
    state, _ = t.run(1)
    one, other = plain(state.weights), plain(plain_t.run(1)[0].weights)
    tested = t.task.method.tested(state.weights, state.shared)
    same(tested, tree.scale(0.5, tree.add(start, one)))  # the official code's
    far, near = (tree.sub(w, start) for w in (one, other))
    eta = np.sqrt(tree.dot(far, far) / tree.dot(near, near))
    assert eta > 1.2
    same(far, tree.scale(float(eta), near), rtol=1e-8)
    state, _ = t.run(1, state=state)
    tested = t.task.method.tested(state.weights, state.shared)
    same(tested, tree.scale(0.5, tree.add(one, plain(state.weights))))


def test_fednh_moves_unit_vectors(x64, tiny):
    t = tiny("fednh", widths=(6,))
    start = np.asarray(t.state().weights.params["head"]["kernel"])
    after = np.asarray(t.run(2)[0].weights.params["head"]["kernel"])
    np.testing.assert_allclose((after**2).sum(0), 1, rtol=1e-9)
    assert (np.abs(after - start).max(0) > 1e-4).all()


# ---- what stays at home --------------------------------------------------------------------


def test_ditto_without_pull_is_local(x64, tiny):
    own = tiny("ditto(lam=0.0, plain=False)").run(2)[0]
    alone = tiny("local").run(2)[0].clients["personal"]
    same(own.clients["own"], alone)
    same(own.weights, tiny("fedavg").run(2)[0].weights)


def test_dittos_pull_holds(x64, tiny):
    def distance(lam):
        state, _ = tiny(f"ditto(lam={lam})", norm="none").run(2)
        mine = jax.tree.map(lambda x: x[LARGEST], state.clients["own"])
        return float(tree.sq_distance(mine.params, state.weights.params))

    assert distance(5.0) < 0.5 * distance(0.0)


def test_fedper_of_one_client_is_local(x64, tiny):
    per, alone = (only(tiny(spec), LARGEST).run(2)[0] for spec in ("fedper", "local"))
    mine, his = per.clients["personal"].params, alone.clients["personal"]
    same(mine["head"], his.params["head"])
    same(per.weights.params["body"], tree.take(his.params["body"], 0))


def test_lg_fedavg_of_one_client_is_local(x64, tiny):
    lg, alone = (only(tiny(spec), LARGEST).run(2)[0] for spec in ("lg_fedavg", "local"))
    mine, his = lg.clients["personal"], alone.clients["personal"]
    same(mine.params["body"], his.params["body"])
    same(mine.stats, his.stats)
    same(lg.weights.params["head"], tree.take(his.params["head"], 0))


def test_fedbn_keeps_norms_at_home(x64, tiny):
    t = tiny("fedbn")
    state, _ = t.run(1)
    same(state.weights, tiny("fedavg").run(1)[0].weights)  # all begin alike
    kept = state.clients["norms"]
    (scale,) = (x for p, x in jax.tree.leaves_with_path(kept.params) if "scale" in str(p))
    # four trained ones and the start, where one example leaves it: normalised it is zero
    assert len(np.unique(np.asarray(scale), axis=0)) == 5
    mine = tree.take(kept, LARGEST)
    begun = t.task.method.start(state.weights, {"norms": mine})
    identical(personal.norms(begun.params["body"]), mine.params)
    identical(begun.stats, mine.stats)
    assert differ(begun.stats, state.weights.stats)
    dense = [x for x in jax.tree.leaves(begun.params) if x.ndim > 1]
    identical(dense, [x for x in jax.tree.leaves(state.weights.params) if x.ndim > 1])


def test_fedala_of_one_client_is_the_identity(x64, tiny):
    whole = {"batch_size": 12}  # the two methods shuffle differently
    a, b = (
        only(tiny(spec, norm="none", local_cfg=whole), LARGEST).run(3)[0].weights
        for spec in ("fedala", "fedavg")
    )
    same(a, b)  # the old head is the global one, whatever is mixed


def test_fedala_learns_its_mixture(x64, tiny):
    t = tiny("fedala(eta=50.0)")
    share = jax.tree.leaves(t.run(2)[0].clients["mixing"].share)
    share = np.concatenate([np.ravel(x[LARGEST]) for x in share])
    assert 0 <= share.min() < 1 and share.max() <= 1


def test_fedrods_generic_branch_is_balanced_fedavg(x64, tiny):
    def fn(c):
        values = losses.balanced_softmax(c.out.logits, c.batch.y, c.info.class_counts)
        return losses.masked_mean(values, c.batch.mask)

    balanced = registry.build("fedavg")._replace(phases=(Phase((Term("balanced", fn),)),))
    rod, expected = tiny("fedrod").run(2)[0], tiny(balanced).run(2)[0].weights
    shared = rod.weights._replace(params=tree.pick(rod.weights.params, ("body", "head")))
    same(shared, expected)
    own = np.asarray(rod.clients["personal"].params["own_head"]["kernel"])
    assert len(np.unique(own.reshape(6, -1), axis=0)) == 6  # five trained ones and the start


def test_fedproto_alone_shares_prototypes_only(x64, tiny):
    t = tiny("fedproto(average=False)")
    start = plain(t.state().weights)
    state, _ = t.run(2)
    identical(state.weights, start)
    assert bool(state.shared["prototypes"].seen.all())
    up, down = traffic(t.task, t.data.pool)
    assert up < tree.num_bytes(start) and down < tree.num_bytes(start)


def test_fedrep_deals_its_epochs():
    for rule, (head, body) in {
        "original": (4, 1),
        "fedbabu": (5, 1),
        "fedetf": (5, 5),
        "feddw": (1, 4),
    }.items():
        phases = registry.build(f"fedrep(epochs='{rule}')").phases
        counts = [
            p.epochs(5) if callable(p.epochs) else 5 if p.epochs is None else p.epochs
            for p in phases
        ]
        assert counts == [head, body] and [p.train for p in phases] == [("head",), ("body",)]


# ---- pFedMe, whose batches are a client's whole data ---------------------------------------

LAM, ALPHA, SPEED, BETA = 3.0, 0.2, 0.3, 0.4
PFEDME = f"pfedme(lam={LAM}, steps=2, alpha={ALPHA}, lr={SPEED}, beta={BETA})"
WHOLE = {"batch_size": 12, "epochs": 2}


def of_pfedme(t, client):
    """The examples of a client, and the mean loss on some examples as a function of parameters."""
    weights, model = t.state().weights, t.task.trainer.model

    def loss(params, numbers):
        x, y = t.data.pool.x[numbers] / 255.0 - 0.5, t.data.pool.y[numbers]
        params = jax.tree.map(jnp.asarray, params)
        out, _ = model.apply(weights._replace(params=params), x, train=False)
        return jnp.mean(losses.cross_entropy(out.logits, y))

    index, size = tree.take(t.data.train, client)
    return index[: int(size)], loss


def theta_of(loss, w, numbers):
    """The model near w that two steps on all of a client's examples lead to."""
    theta = w
    for _ in range(2):
        slope = jax.grad(loss)(theta, numbers)
        theta = jax.tree.map(lambda p, g, a: p - ALPHA * (g + LAM * (p - a)), theta, slope, w)
    return theta


def test_pfedmes_server_moves_by_beta(x64, tiny):
    """Three of six clients with two steps of w each, weighted by size."""
    t = tiny(PFEDME, norm="none", local_cfg=WHOLE, federation={"participants": 3})
    start, moved, total = plain(t.state().weights.params), 0.0, 0
    state, metrics = t.run(1)
    ids = np.asarray(metrics.ids).tolist()
    for client in ids:
        numbers, loss = of_pfedme(t, client)
        w = start
        for _ in range(2):
            theta = theta_of(loss, w, numbers)
            w = jax.tree.map(lambda p, q: p - SPEED * LAM * (p - q), w, theta)
        change = tree.scale(float(len(numbers)), tree.sub(w, start))
        moved = tree.add(moved, change) if total else change
        total += len(numbers)
    assert len(set(ids)) == 3 and EMPTY not in ids
    same(state.weights.params, tree.add(start, tree.scale(BETA / total, moved)))


def test_pfedmes_fine_tuning_is_theta(x64, tiny):
    """From the global model, whatever the run's learning rate; its loss on a client's own tests."""
    t = tiny(PFEDME, norm="none", local_cfg=WHOLE | {"lr": 7.0, "momentum": 0.9})
    state, _ = t.run(1)
    w, (numbers, loss) = plain(state.weights.params), of_pfedme(t, LARGEST)
    index, size = tree.take(t.data.client_test, LARGEST)
    how = executors.make_executor("scan")
    score = tree.take(personal_of(t, how, t.task.method.finetune, state=state), (-1, LARGEST))
    found, theta = score.loss / size, theta_of(loss, w, numbers)
    np.testing.assert_allclose(found, loss(theta, index[: int(size)]), rtol=1e-9)
    assert abs(found - loss(w, index[: int(size)])) > 1e-3


# ---- after the rounds ----------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["paper", "fedetf", "flbench"])
def test_ccvr_moves_the_head_only(tiny, rule):
    t = tiny(f"fedavg | ccvr(samples=20, rule='{rule}')")
    state, _ = t.run(2)
    weights = calibrated(t, executors.make_executor("scan"), state.weights, state.key)
    identical(weights.params["body"], state.weights.params["body"])
    assert differ(weights.params["head"], state.weights.params["head"])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(weights))


def test_fine_tuning_is_short_for_a_regulariser():
    assert registry.build("fedprox(mu=0.5)-ft").name == "fedprox(mu=0.5) | ft"
    assert catalogue.with_hyper("fedavg-ft", {"epochs": 2}) == "fedavg | ft(epochs=2)"
    (phase,) = registry.build("fedavg-ft | prox").finetune
    assert phase.epochs == 5 and phase.train is None and phase.optimizer is None


def test_second_exchange_is_counted(tiny):
    plain_t, fm = tiny(), tiny("fedfm")
    model = tree.num_bytes(plain_t.state().weights)
    up, down = traffic(fm.task, fm.data.pool)
    means = 4 * (4 * 5 + 4)  # four classes of five features, and counts
    assert up == model + means
    assert down == 2 * model + tree.num_bytes(fm.state().shared)
