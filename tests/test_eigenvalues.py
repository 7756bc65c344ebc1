"""Traces, eigenvalues and densities of any symmetric matrix, and how rows of diagonals match."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import same

from fedjax_nc.analysis import curvature, hessian, lanczos
from fedjax_nc.types import Pool, Weights

KEY = jax.random.key(3)


def of_matrix(matrix):
    """Any symmetric matrix, as a Hessian."""
    weights = Weights({"body": jnp.zeros(len(matrix), matrix.dtype)}, matrix)
    pool = Pool(jnp.zeros((1, 1)), jnp.zeros(1, int))
    rows = hessian.in_batches([0], 1)
    return hessian.Hessian(weights, pool, rows, _multiply, ("body",), False)


def _multiply(weights, pool, rows, vectors, reduce):
    return reduce(vectors, {"body": vectors["body"] @ weights.stats})


def random_matrix(values, seed=0):
    """Symmetric, with these eigenvalues."""
    turn = np.linalg.qr(np.random.RandomState(seed).randn(len(values), len(values)))[0]
    return jnp.asarray((turn * np.asarray(values)) @ turn.T)


def test_hutchinson_covers_the_trace(x64):
    matrix = random_matrix(np.random.RandomState(4).randn(30))
    h, probes = of_matrix(matrix), 60
    covered = 0
    for trial in range(100):
        found = curvature.trace(
            curvature.probe(h, jax.random.key(trial), probes=probes, chunk=probes)
        )
        covered += abs(found.mean - float(jnp.trace(matrix))) < 2.0 * found.error  # Student's t
    assert 89 <= covered <= 99  # 95 +- 2.8 standard deviations, not all


def test_chunks_do_not_change_samples(x64):
    h = of_matrix(random_matrix(np.arange(7.0)))
    told = []
    found = [
        curvature.probe(h, KEY, probes=7, chunk=chunk, progress=lambda *n: told.append(n))
        for chunk in (7, 3, 20)
    ]
    same(found[0], found[1])
    same(found[0], found[2])
    assert told == [(7, 7), (3, 7), (6, 7), (7, 7), (7, 7)]
    diagonal = curvature.probe(of_matrix(jnp.diag(jnp.arange(5.0))), KEY, probes=2).diagonal
    np.testing.assert_allclose(diagonal["body"], np.arange(5.0), atol=1e-12)  # no noise


def test_pyhessian_stops_when_the_mean_hardly_changes():
    values = np.array([4.0, 8.0, 6.0, 2.0])  # means 4, 6, 6, 5
    samples = curvature.Samples(values[:, None], {})
    assert curvature.trace(samples, 1e-3)[::2] == (6.0, 3)
    assert curvature.trace(samples, 0.6)[::2] == (6.0, 2)
    assert curvature.trace(samples, 1e-9)[::2] == (6.0, 3)
    assert curvature.trace(samples) == (5.0, pytest.approx(np.std(values, ddof=1) / 2), 4)
    assert curvature.trace(curvature.Samples(values[:1, None], {})).error == np.inf
    falling = curvature.Samples(-values[:, None], {})  # FedAlign's copy would stop at once
    assert curvature.trace(falling, 0.6)[::2] == (-6.0, 2)


def test_power_iteration_finds_negative_eigenvalues(x64):
    h = of_matrix(random_matrix([-3.0, 2.0, 1.0, 0.5, -0.1]))
    told = []
    found = curvature.power_iteration(
        h, KEY, count=3, tol=1e-12, iterations=500, progress=lambda *n: told.append(n)
    )
    np.testing.assert_allclose(found.values, [-3.0, 2.0, 1.0], rtol=1e-5)
    assert told[-1] == (1500, 1500) and told[0] == (1, 1500)
    short = curvature.power_iteration(h, KEY, iterations=7, tol=0.0)
    assert short.products == 7


def test_density(x64):
    values = np.concatenate([np.linspace(-1, 1, 36), [4.0, 5.0, 5.0, 5.0]])
    h = of_matrix(random_matrix(values))
    told = []
    x, density = lanczos.density(h, KEY, probes=4, products=40, progress=lambda *n: told.append(n))
    np.testing.assert_allclose(np.trapezoid(density, x), 1, atol=1e-4)
    hutchinson = curvature.trace(curvature.probe(h, KEY, probes=4)).mean
    np.testing.assert_allclose(np.trapezoid(x * density, x), hutchinson / 40, atol=1e-4)
    many = lanczos.density(h, KEY, probes=200, products=40)
    np.testing.assert_allclose(np.trapezoid(x * density, x), values.mean(), atol=0.15)
    bulge = np.where(many.x > 4.5, many.density, 0)
    np.testing.assert_allclose(np.trapezoid(bulge, many.x), 3 / 40, atol=0.01)
    jax.effects_barrier()
    assert told == [(n + 1, 40) for n in range(40)]


def test_lanczos_where_the_krylov_space_ends():
    """Four distinct eigenvalues among thirty, in single precision; and no curvature at all."""
    values = np.repeat([-2.0, 1.0, 3.0, 0.0], [1, 4, 2, 23])
    h = of_matrix(random_matrix(values))
    found = lanczos.top(h, KEY, count=10, products=20)
    np.testing.assert_allclose(found.values, [3.0, -2.0, 1.0, 0.0], atol=1e-5)
    by_value = lanczos.top(h, KEY, count=4, products=20, by="value").values
    np.testing.assert_allclose(by_value, [3.0, 1.0, 0.0, -2.0], atol=1e-5)
    rows = np.asarray(found.vectors["body"])
    matrix = np.asarray(h.weights.stats)
    np.testing.assert_allclose(rows @ matrix, found.values[:, None] * rows, atol=1e-4)
    flat = of_matrix(jnp.zeros((5, 5)))
    assert lanczos.top(flat, KEY, products=4).values == [0.0]
    assert np.isfinite(lanczos.density(flat, KEY, probes=2, products=4).density).all()
    assert curvature.power_iteration(flat, KEY).values == [0.0]


def test_matching():
    close = np.testing.assert_allclose
    alike = jnp.tile(jnp.array([3.0, -4.0]), (5, 1))
    for others in (True, False):
        close(curvature.matching(alike, pairs_with_self=others), (0.0, 1.0), atol=1e-6)
    two = jnp.array([[3.0, 4.0], [0.0, 2.0]])  # norms 5 and 2, product 8
    close(curvature.matching(two, pairs_with_self=False), (9.0, 0.8), rtol=1e-6)
    close(curvature.matching(two), (4.5, 0.9), rtol=1e-6)
    squared = curvature.matching(two, squared=True, pairs_with_self=False)
    close(squared, (441.0, 0.08), rtol=1e-6)
    close(curvature.matching(two, squared=True), (220.5, (1 / 25 + 1 / 4 + 0.16) / 4), rtol=1e-6)
    with pytest.raises(AssertionError):
        curvature.matching(two[:1], pairs_with_self=False)
