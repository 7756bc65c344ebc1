"""Hessian products, eigenvalues, traces, densities, and how clients' Hessians match."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from recorded import close, golden
from trees import identical, same

from fedjax_nc import losses, tree
from fedjax_nc.analysis import curvature, hessian, lanczos
from fedjax_nc.models import mlp, resnet
from fedjax_nc.models.base import from_body
from fedjax_nc.train.executors import make_executor
from fedjax_nc.types import Batch, HeadSpec, Model, Outputs, Pool, Weights

KEY = jax.random.key(3)
ORDER = ("l1_W", "l1_b", "l2_W", "l2_b")  # PyTorch's order of a recorded model's parameters
COUNT, CLASSES = 11, 3  # examples, of which batches of four leave a last one of three


def as_they_are(pool, indices, mask, key):
    return Batch(pool.x[indices], pool.y[indices], mask)


def recorded_hessian(case):
    """The recorded two-layer network of PyHessian, on its twenty examples."""
    g = golden("pyhessian")

    def apply(weights, x, *, train, mask=None):
        w = weights.params["body"]
        hidden = jnp.tanh(x @ w["0"].T + w["1"])
        return Outputs((), (), hidden, hidden, hidden @ w["2"].T + w["3"]), {}

    model = Model(golden, apply, golden)  # neither started nor cut
    at = hessian.make_hessian(model, as_they_are, make_executor("scan"), 7, ("body",))
    params = {str(i): g[f"{case}_{name}"] for i, name in enumerate(ORDER)}
    return g, at(Weights({"body": params}, {}), Pool(g["X"], g["Y"]), np.arange(20))


MLP = mlp.MLP(norm="running", widths=(4,)), (2, 3, 1)
CNN = resnet.ResNet((1,), conv="native", channels=(4,)), (4, 4, 2)  # has BatchNorm
TILED = resnet.ResNet((2,), channels=(12,)), (8, 8, 3)


def network(kind, *, executor="scan", batch_size=4, groups=("body", "head"), models=1):
    """Hessian of a small model at random weights, with statistics unlike the batches' own."""
    body, shape = kind
    model, rng = from_body(body, shape, CLASSES, HeadSpec()), np.random.RandomState(1)
    x, y = rng.randn(COUNT + 5, *shape), rng.randint(0, CLASSES, COUNT + 5)
    keys = jax.random.split(jax.random.key(0), models)
    weights = jax.vmap(model.init)(keys) if models > 1 else model.init(keys[0])
    weights = weights._replace(stats=jax.tree.map(lambda s: s + 0.3, weights.stats))
    how = make_executor(executor, chunk=2)
    at = hessian.make_hessian(model, as_they_are, how, batch_size, groups)
    indices = rng.permutation(COUNT + 5)[:COUNT]
    return model, at(weights, Pool(jnp.asarray(x), jnp.asarray(y)), indices, models > 1)


def by_jax(model, h):
    """The matrix as jax.hessian has it, of all examples at once."""
    indices = np.asarray(h.batches.indices)[np.asarray(h.batches.mask)]
    flat, unravel = ravel_pytree(h.point)

    def loss(flat):
        weights = h.weights._replace(params={**h.weights.params, **unravel(flat)})
        out, _ = model.apply(weights, h.pool.x[indices], train=False)
        return jnp.mean(losses.cross_entropy(out.logits, h.pool.y[indices]))

    return np.asarray(jax.jit(jax.hessian(loss))(flat))


def flat_rows(stacked):
    return np.asarray(jax.vmap(lambda row: ravel_pytree(row)[0])(stacked))


# recorded numbers


@pytest.mark.parametrize("case", ["A", "B"])
def test_pyhessian(x64, case):
    g, h = recorded_hessian(case)
    close(hessian.dense(h), g[f"{case}_exact_hessian"], 1e-9)
    exact = np.asarray(g[f"{case}_exact_eigs"])
    largest = exact[np.argsort(-np.abs(exact))]
    converged = 1 if case == "A" else 3  # A's second and third have like magnitudes
    found = curvature.power_iteration(h, KEY, count=converged, tol=1e-11, iterations=5000)
    close(found.values, g[f"{case}_top3_eigenvalues"][:converged], 1e-8)
    assert np.all(np.abs(found.values) < np.abs(largest[:converged]))  # by its 1e-6 on norms
    coarse = curvature.power_iteration(h, KEY)
    close(coarse.values, g[f"{case}_top1_default_tol"], 5e-3)
    assert coarse.products < 60
    close(lanczos.top(h, KEY, count=5, products=51).values, largest[:5], 1e-9)
    by_value = lanczos.top(h, KEY, count=3, products=51, by="value").values
    close(by_value, exact[::-1][:3], 1e-9)
    recorded = float(g[f"{case}_trace_mean_4000_probes"])
    estimate = curvature.trace(curvature.probe(h, KEY, probes=400, chunk=100))
    assert abs(estimate.mean - recorded) < 4 * estimate.error
    assert abs(estimate.mean - float(g[f"{case}_exact_trace"])) < 4 * estimate.error


def test_fedalign_diagonal(x64, monkeypatch):
    _, h = recorded_hessian("A")
    g = golden("fedalign_diag")
    _, unravel = ravel_pytree(h.point)
    recorded = jax.vmap(unravel)(g["rademacher_probes"])
    monkeypatch.setattr(curvature, "rademacher", lambda point, key, indices: recorded)
    samples = curvature.probe(h, KEY, probes=5, chunk=5)
    close(samples.tensors.sum(1), g["vHv"], 1e-9)
    close(samples.tensors.mean(0), g["diag_per_tensor"], 1e-9)
    exact = hessian.products(h, recorded)
    identical_mean = np.mean(flat_rows(recorded) * flat_rows(exact), 0)
    close(ravel_pytree(samples.diagonal)[0], identical_mean, 1e-9)


# against the whole matrix


@pytest.mark.parametrize("kind", [MLP, CNN], ids=["mlp", "cnn"])
def test_estimates_agree_with_the_whole_matrix(x64, kind):
    model, h = network(kind)
    matrix = by_jax(model, h)
    close(hessian.dense(h, chunk=50), matrix, 1e-9)
    values, vectors = np.linalg.eigh(matrix)
    largest = np.argsort(-np.abs(values))[:2]
    found = lanczos.top(h, KEY, count=2, products=40)
    close(found.values, values[largest], 1e-6)
    assert np.all(np.abs(found.values - values[largest]) <= found.errors + 1e-12)
    overlap = np.sum(flat_rows(found.vectors) * vectors[:, largest].T, 1)
    np.testing.assert_allclose(np.abs(overlap), 1, atol=1e-4)
    iterated = curvature.power_iteration(h, KEY, tol=1e-9, iterations=3000)
    close(iterated.values, values[largest[:1]], 1e-4)
    samples = curvature.probe(h, KEY, probes=6, chunk=3)
    signs = flat_rows(curvature.rademacher(h.point, KEY, jnp.arange(6)))
    close(samples.tensors.sum(1), np.sum(signs * (signs @ matrix), 1), 1e-9)


def test_trace_in_single_precision():
    model, h = network(MLP)
    matrix = by_jax(model, h)
    close(hessian.dense(h), matrix, 1e-5)
    signs = flat_rows(curvature.rademacher(h.point, KEY, jnp.arange(20)))
    expected = np.mean(np.sum(signs * (signs @ matrix), 1))
    np.testing.assert_allclose(
        curvature.trace(curvature.probe(h, KEY, probes=20)).mean, expected, rtol=1e-4
    )
    close(lanczos.top(h, KEY).values, np.linalg.eigvalsh(matrix)[-1:], 1e-4)


def test_product_of_a_tiled_network(x64):
    """Branches, tiles and rules of their own under linearize and map."""
    model, h = network(TILED, groups=("body",))
    assert list(h.point) == ["body"]
    indices = np.asarray(h.batches.indices)[np.asarray(h.batches.mask)]

    def gradient(params):
        def loss(params):
            weights = h.weights._replace(params={**h.weights.params, **params})
            out, _ = model.apply(weights, h.pool.x[indices], train=False)
            return jnp.mean(losses.cross_entropy(out.logits, h.pool.y[indices]))

        return jax.grad(loss)(params)

    vectors = curvature.rademacher(h.point, KEY, jnp.arange(2))
    second = tree.take(vectors, 1)
    expected = jax.jit(lambda p, v: jax.jvp(gradient, (p,), (v,))[1])(h.point, second)
    same(tree.take(hessian.products(h, vectors), 1), expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("executor", ["vmap", "chunked", "sharded"])
def test_executors_agree(x64, executor):
    expected, found = (network(MLP, executor=name)[1] for name in ("scan", executor))
    same(curvature.probe(found, KEY, probes=4, chunk=2), curvature.probe(expected, KEY, probes=4))
    top, other = (lanczos.top(h, KEY, count=2) for h in (expected, found))
    np.testing.assert_allclose(other.values, top.values, rtol=1e-9)
    found, expected = (curvature.power_iteration(h, KEY) for h in (found, expected))
    same(found.vectors, expected.vectors)


def test_batches_and_their_padding_change_nothing(x64):
    whole, cut = (network(MLP, batch_size=size)[1] for size in (COUNT, 4))
    assert not np.all(cut.batches.mask) and np.all(whole.batches.mask)
    vectors = curvature.rademacher(whole.point, KEY, jnp.arange(2))
    expected = hessian.products(whole, vectors)
    same(hessian.products(cut, vectors), expected)
    filled = jnp.where(cut.batches.mask, cut.batches.indices, 2)
    rows = cut.batches._replace(indices=filled)
    other = hessian.Hessian(cut.weights, cut.pool, rows, cut.apply, cut.groups, False)
    identical(hessian.products(other, vectors), hessian.products(cut, vectors))


def test_results_repeat_and_compile_once():
    _, h = network(MLP, executor="sharded")
    programs = curvature.probe_chunk, curvature._step, lanczos.tridiagonal, hessian._rows
    before = None
    found = []
    for factor in (1.0, 1.0, 1.5):
        weights = h.weights._replace(params=tree.scale(factor, h.weights.params))
        moved = hessian.Hessian(weights, h.pool, h.batches, h.apply, h.groups, False)
        found.append(
            (
                curvature.probe(moved, KEY, probes=5, chunk=2),
                hessian.dense(moved),
                curvature.power_iteration(moved, KEY, iterations=3, count=2).values,
                lanczos.density(moved, KEY, probes=2, products=3),
            )
        )
        sizes = [p._cache_size() for p in programs]  # type: ignore[attr-defined]
        before = before or sizes
        assert sizes == before
    identical(found[0], found[1])
    assert np.any(found[0][1] != found[2][1])


# clients


def test_several_models_at_once(x64):
    _, h = network(MLP, executor="sharded", models=3)
    samples = curvature.probe(h, KEY, probes=4, chunk=3)
    assert samples.tensors.shape == (3, 4, 4 + 2)
    for number in range(3):
        _, one = network(MLP)
        mine = hessian.Hessian(
            tree.take(h.weights, number), one.pool, one.batches, one.apply, one.groups, False
        )
        same(tree.take(samples, number), curvature.probe(mine, KEY, probes=4))
