"""The baselines' equations against independent NumPy versions and odd batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from recorded import close, everything

from fedjax_nc import linalg, losses, tree
from fedjax_nc.methods import averaging, calibration, gradient, personal, registry
from fedjax_nc.methods.base import View
from fedjax_nc.types import Batch, ClientInfo, Model, Outputs, Weights


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).randn(*shape)


def test_extrapolation_rules():
    expected = {
        "official": max(1.0, 8.0 / (2 * (0.5 + 4 * 0.1))),
        "feddecorr": 8 / (2 * 0.6),
        "feddr": 1.0,
    }
    for rule, value in expected.items():
        close(averaging.extrapolation(8.0, 0.5, 4.0, 0.1, rule), value)
    close(averaging.extrapolation(0.8, 0.5, 4.0, 0.1, "feddr"), 0.4 / (0.5**0.5 + 0.4))


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
    for got, want in zip(
        losses.relaxed_contrast(jnp.asarray(z), jnp.asarray(y), everything(z), 0.1, 0.7, beta),
        slow_contrast(z, y, 0.1, 0.7, beta),
        strict=True,
    ):
        close(got, want, 1e-9)


def pair_losses(z, logits, y, mask):
    contrast = sum(losses.masked_mean(v, mask) for v in losses.relaxed_contrast(z, y, mask))
    return contrast + losses.uniformity(z, mask) + losses.class_variance(logits, mask)


def test_padding_changes_no_pair_loss(x64):
    z, logits, y = numbers(9, 4), numbers(9, 3, seed=1), np.arange(9) % 3
    mask = np.arange(9) < 6
    z[6:], logits[6:] = 1e6, -1e6
    fn = jax.jit(jax.value_and_grad(pair_losses, (0, 1)))
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
    value, grads = jax.jit(jax.value_and_grad(pair_losses, (0, 1)))(*args)
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in grads)


def test_feduv_against_numpy(x64):
    z, logits = numbers(7, 4, seed=2), numbers(7, 5, seed=3)
    std = scipy.special.softmax(logits, 1).std(0, ddof=1)
    expected = np.maximum(0, np.eye(5).std(0, ddof=1).mean() - std).mean()
    close(losses.class_variance(jnp.asarray(logits), everything(z)), expected, 1e-12)
    z[1] = z[0]  # a distance of zero is not in the median
    d = np.array([((z[i] - z[j]) ** 2).sum() for i in range(7) for j in range(i + 1, 7)])
    above = np.sort(d[d > 0])
    assert above[9] < 0.95 * above[10] and len(above) == 20  # lower and upper median differ
    expected = np.exp(-d / above[9]).mean()
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
        out = Outputs(
            (), (), jnp.asarray(z[mine]), jnp.asarray(z[mine]), jnp.zeros((mine.sum(), 4))
        )
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
    sigma = sum(
        (n[k] - 1) * np.cov(own[k].T) + n[k] * np.outer(own[k].mean(0), own[k].mean(0))
        for k in range(5)
    )
    sigma = (sigma - n.sum() * np.outer(mu, mu)) / (n.sum() - 1)
    close(moments.spread[0], sigma, 1e-10)


def test_ccvr_in_fl_bench(x64):
    rng = np.random.RandomState(1)
    z, y, owner = rng.randn(40, 3), rng.randint(0, 2, 40), rng.randint(0, 4, 40)
    z, y, owner = np.append(z, z[:1], 0), np.append(y, 0), np.append(owner, 4)  # one example
    posthoc = registry.build("fedavg | ccvr(rule='flbench')").posthoc
    sums = None
    for k in range(5):
        features, mine = jnp.asarray(z[owner == k]), jnp.asarray(y[owner == k])
        out = Outputs((), (), features, features, jnp.zeros((len(mine), 3)))
        new = posthoc.upload(posthoc.collect(out, Batch(features, mine, everything(mine))))
        sums = new if sums is None else tree.add(sums, new)
    moments = calibration.pooled_moments(*sums)
    for c in range(2):
        own = [z[(y == c) & (owner == k)] for k in range(5)]
        own = [x for x in own if len(x)]
        n, mu = sum(map(len, own)), z[y == c].mean(0)
        sigma = sum(
            (len(x) - 1) * np.cov(x.T, bias=True) + len(x) * np.outer(x.mean(0), x.mean(0))
            for x in own
        )
        close(moments.spread[c], (sigma - n * np.outer(mu, mu)) / (n - 1), 1e-10)
        assert np.trace(moments.spread[c]) < 0.95 * np.trace(np.cov(z[y == c].T))


def test_ccvrs_head_in_fl_bench(x64):
    """One example makes no class, and the last batch of an epoch is a step, however small."""
    rng, samples, lr, key = np.random.RandomState(2), 70, 0.3, jax.random.key(5)
    z, y = jnp.asarray(rng.randn(15, 3)), jnp.asarray([*[0] * 8, *[1] * 6, 2])
    posthoc = registry.build(
        f"fedavg | ccvr(samples={samples}, epochs=2, lr={lr}, rule='flbench')"
    ).posthoc
    sums = posthoc.upload(
        posthoc.collect(Outputs((), (), z, z, jnp.zeros((15, 3))), Batch(z, y, everything(y)))
    )
    model = Model(lambda k: None, lambda *_: None, head=lambda p, z: (z, z @ p["head"]))
    first = jnp.asarray(rng.randn(3, 3))
    found = posthoc.solve(model, Weights({"head": first}, {}), sums, key)
    draw, order = jax.random.split(key)
    moments = calibration.pooled_moments(*sums)
    z, y, _ = map(np.asarray, calibration.virtual_features(draw, moments, samples))
    w = np.asarray(first)
    for epoch in jax.random.split(order, 2):
        shuffled = np.asarray(jax.random.permutation(epoch, 256))  # 210, in whole batches of 128
        drawn = shuffled[shuffled < 2 * samples]  # of two classes
        for rows in (drawn[:128], drawn[128:]):
            odds = np.exp(z[rows] @ w)
            error = odds / odds.sum(1, keepdims=True) - np.eye(3)[y[rows]]
            w = w - lr * z[rows].T @ error / len(rows)
    close(found.params["head"], w, 1e-10)


def test_ccvrs_features_have_the_moments(x64):
    root = numbers(3, 3)
    moments = calibration.Moments(
        jnp.array([5.0, 0]),
        jnp.asarray(numbers(2, 3)),
        jnp.stack([root @ root.T, jnp.zeros((3, 3))]),
    )
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
        info = ClientInfo(0, {}, steps, 0.1, momentum=m)
        close(averaging.effective_steps(info), expected, 1e-12)


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


def test_feddecorr_on_the_papers_scale(x64):
    z = numbers(9, 4)
    value = losses.squared_correlation(jnp.asarray(z), everything(z))
    close(value, (np.corrcoef(z.T) ** 2).sum() / 16, 1e-6)
    padded = np.append(z, 1e6 * np.ones((3, 4)), 0)
    close(losses.squared_correlation(jnp.asarray(padded), jnp.arange(12) < 9), value, 1e-12)
    (_, term) = registry.build("feddecorr(scale='paper')").phases[0].terms
    assert (term.name, term.weight) == ("correlation", 0.1)


# f(w) = a/2 |w - t|^2 with another t for every batch
CURVATURE, TARGETS = 2.0, numbers(4, 3, seed=4)


def slope(w, batch):
    return CURVATURE * (w - TARGETS[batch])


def test_pfedme_by_hand(x64):
    def value_and_grad(w, stats, batch, key):
        return (jnp.sum(w["a"]), (stats, {})), {"a": slope(w["a"], batch)}

    (phase,) = registry.build("pfedme(lam=3.0, steps=2, alpha=0.1)").phases
    start = numbers(3)
    args = {"a": jnp.asarray(start)}, {}, 1, jax.random.key(0)
    (loss, _), found = phase.grad(value_and_grad, None)(*args)
    once = start - 0.1 * slope(start, 1)
    twice = once - 0.1 * (slope(once, 1) + 3.0 * (once - start))
    close(found["a"], 3.0 * (start - twice), 1e-12)
    close(loss, once.sum(), 1e-12)  # of the last step


def test_per_fedavg_in_fedbabus_code(x64):
    """Two pairs of batches, and a fifth batch alone."""
    info = ClientInfo(5, jnp.ones(2), num_steps=5, lr=0.3, momentum=0.9)
    (phase,) = registry.build("per_fedavg(alpha=0.1, batches='pairs')").phases
    tx = phase.optimizer(View(None, None, shared={}, client={}, info=info))
    w = {"a": jnp.asarray(numbers(3))}
    state, seen = tx.init(w), []
    for batch in (0, 1, 2, 3, 0):
        step, state = tx.update({"a": slope(w["a"], batch)}, state, w)
        w = tree.sub(w, step)
        seen.append(w["a"])
    home, buffer = numbers(3), np.zeros(3)
    for first in (0, 2):
        buffer = 0.9 * buffer + slope(home, first)
        adapted = home - 0.1 * buffer
        buffer = 0.9 * buffer + slope(adapted, first + 1)
        home = home - 0.3 * buffer  # from before the inner step
        close(seen[first], adapted, 1e-12)
        close(seen[first + 1], home, 1e-12)
    close(seen[4], home, 1e-12)
