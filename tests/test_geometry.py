"""Spectra, alignment of local models, FedDW's relations and classifier bias."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from recorded import close, everything

from fedjax_nc import linalg, losses
from fedjax_nc.analysis import bias, collapse, plane, relations, spectrum
from fedjax_nc.analysis.alignment import alignment


def normal(*shape, seed=0):
    return jnp.asarray(np.random.RandomState(seed).randn(*shape), float)


# ---- spectrum ------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_effective_rank_of_equal_singular_values(rank):
    q = linalg.orthonormal(normal(7, 5))
    matrix = 4 * q[:, :rank] @ linalg.orthonormal(normal(6, 5, seed=1))[:, :rank].T
    singular = spectrum.singular_values(matrix)
    np.testing.assert_allclose(singular, [4] * rank + [0] * (6 - rank), atol=1e-5)
    close(spectrum.effective_rank(singular), rank, rtol=1e-4)


def test_effective_rank_by_hand():
    close(spectrum.effective_rank(jnp.array([2.0, 1, 1])), 2**1.5)  # entropy 1.5 bits
    assert spectrum.effective_rank(jnp.zeros(3)) == 0


def test_identity_covariance():
    x = 3 * jnp.concatenate([jnp.eye(4), -jnp.eye(4)])  # variance 18/7 in every direction
    actual = spectrum.spectrum(x, everything(x))
    close(actual.singular, [18 / 7] * 4)
    close(actual.effective_rank, 4)
    close(actual.effective_rank_correlation, 4)


def test_isotropic_gaussian():
    ranks = [
        spectrum.spectrum(x, everything(x)).effective_rank
        for x in (normal(20, 8), normal(200, 8), normal(20000, 8))
    ]
    assert ranks[0] < 7.5 < ranks[1] < 7.95 < ranks[2] <= 8


def test_spectrum_against_numpy(x64):
    x = normal(30, 5) @ normal(5, 5, seed=1) + 2
    mask = jnp.arange(30) < 23
    kept = np.asarray(x)[:23]
    close(spectrum.covariance(x, mask), np.cov(kept.T), rtol=1e-9)
    close(spectrum.correlation(x, mask), np.corrcoef(kept.T), rtol=1e-6)  # 1e-8 in the variance
    actual = spectrum.spectrum(x.at[23:].set(jnp.nan), mask)
    singular = np.linalg.svd(np.cov(kept.T), compute_uv=False)
    close(actual.singular, singular, rtol=1e-9)
    close(actual.effective_rank, np.exp(scipy.stats.entropy(singular)), rtol=1e-9)
    of_correlation = np.exp(scipy.stats.entropy(np.linalg.eigvalsh(np.corrcoef(kept.T))))
    close(actual.effective_rank_correlation, of_correlation, rtol=1e-6)
    assert abs(actual.effective_rank - of_correlation) > 0.1


def test_fewer_rows_than_features():
    x = normal(5, 9)
    actual = spectrum.spectrum(x, everything(x))
    expected = np.linalg.eigvalsh(np.cov(np.asarray(x).T))[::-1]
    np.testing.assert_allclose(actual.singular, expected, atol=1e-5)
    assert np.all(actual.singular >= 0) and np.all(np.diff(actual.singular) <= 0)
    np.testing.assert_allclose(actual.singular[4:], 0, atol=1e-5)
    assert actual.effective_rank < 4 and actual.effective_rank_correlation < 4


def test_dead_units_and_few_rows():
    x = normal(50, 4) * jnp.array([1.0, 0, 1, 0]) + jnp.array([0, 0.3, 0, 0])
    actual = spectrum.spectrum(x, everything(x))
    np.testing.assert_allclose(spectrum.correlation(x, everything(x))[1], 0, atol=1e-6)
    assert 1.8 < actual.effective_rank <= 2 and 1.8 < actual.effective_rank_correlation < 2.01
    for rows in (0, 1):
        few = spectrum.spectrum(x, jnp.arange(50) < rows)
        assert np.all(few.singular == 0) and few.effective_rank == 0
        assert few.effective_rank_correlation == 0


# ---- soft labels and class relations -------------------------------------------------------


def test_soft_labels_by_hand():
    logits = jnp.log(jnp.array([[2.0, 1, 1], [1, 2, 1], [1, 1, 8], [1, 1, 1]]))
    y, mask = jnp.array([0, 0, 2, 1]), jnp.array([True, True, True, False])
    matrix, seen = relations.soft_label_matrix(logits, y, mask, 3)
    close(matrix, [[3 / 8, 3 / 8, 1 / 4], [0, 0, 0], [0.1, 0.1, 0.8]])
    np.testing.assert_array_equal(seen, [True, False, True])


def test_relation_distance_by_hand():
    # class vectors with W W^T = log 2 I, so relations 2/3 and 1/3
    head = jnp.sqrt(jnp.log(2.0)) * jnp.eye(2)
    expected = losses.class_relations(head)
    close(expected, [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])
    both = relations.relation_distance(jnp.eye(2), expected, jnp.ones(2, bool))
    close(both.frobenius, 2 / 3)  # four entries of 1/3
    close(both.consistency, 1 / 9)
    one = relations.relation_distance(jnp.eye(2), expected, jnp.array([True, False]))
    close(one.frobenius, np.sqrt(2) / 3)
    close(one.consistency, 1 / 18)
    same = relations.relation_distance(expected, expected, jnp.ones(2, bool))
    np.testing.assert_allclose(same, 0, atol=1e-6)


def test_relative_norms_by_hand():
    close(relations.relative_norms(jnp.array([[3.0, 4], [0, 0], [0, 15]])), [0.25, 0, 0.75])
    assert np.all(np.isfinite(relations.relative_norms(jnp.zeros((3, 2)))))


def test_norms_and_shares_against_scipy(x64):
    rng = np.random.RandomState(0)
    counts = rng.randint(0, 4, (5, 8)).astype(float)  # many equal ones
    counts[2] = 0  # an empty client
    vectors = rng.randn(5, 8, 3) * rng.rand(5, 1, 1) * 9  # each client's norms on their own scale
    vectors[0] *= np.exp(-counts[0])[:, None]  # as FedDW finds
    actual = relations.norm_share_correlation(jnp.asarray(vectors), jnp.asarray(counts))
    norms = np.linalg.norm(vectors, axis=-1)
    norms, there = norms / norms.sum(1, keepdims=True), np.array([0, 1, 3, 4])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    for k in there:
        close(actual.clients[k], scipy.stats.spearmanr(norms[k], shares[k]).statistic, rtol=1e-9)
    assert np.isnan(actual.clients[2]) and actual.clients[0] < -0.7
    pooled = scipy.stats.spearmanr(norms[there].ravel(), shares[there].ravel()).statistic
    close(actual.pooled, pooled, rtol=1e-9)


def test_fixed_head_and_equal_shares_have_no_correlation():
    etf = linalg.simplex_etf(jax.random.normal(jax.random.key(0), (16, 7))).T
    vectors = jnp.stack([etf, 2 * etf])  # norms equal up to rounding
    skewed = jnp.stack([jnp.arange(7.0), jnp.arange(7.0)[::-1]])
    fixed = relations.norm_share_correlation(vectors, skewed)
    assert np.all(np.isnan(fixed.clients)) and np.isnan(fixed.pooled)
    equal = relations.norm_share_correlation(normal(2, 7, 3), jnp.full((2, 7), 4.0))
    assert np.all(np.isnan(equal.clients)) and np.isnan(equal.pooled)


# ---- classifier bias -----------------------------------------------------------------------


def test_pairwise_cosines_by_hand():
    vectors = jnp.array([[[1.0, 0], [2, 0]], [[0, 3], [1, 0]], [[5, 5], [-1, 0]]])
    seen = jnp.array([[True, True], [True, True], [False, True]])
    actual = bias.pairwise_cosines(vectors, seen)
    close(actual, [[1, 0.5, -1], [0.5, 1, -1], [-1, -1, 1]])
    close(bias.mean_off_diagonal(actual), -0.5)


def test_clients_that_share_no_class():
    seen = jnp.array([[True, False, False], [False, True, True], [False, True, False]])
    vectors = normal(3, 3, 4)
    actual = bias.pairwise_cosines(vectors, seen)
    np.testing.assert_array_equal(np.isnan(actual), [[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    close(bias.mean_off_diagonal(actual), linalg.cosine(vectors[1, 1], vectors[2, 1]))
    nobody = bias.pairwise_cosines(vectors, jnp.eye(3, dtype=bool))
    assert np.isnan(bias.mean_off_diagonal(nobody))


def test_whole_head_as_one_vector():
    vectors = normal(4, 3, 5)
    actual = bias.pairwise_cosines(vectors.reshape(4, 1, 15), jnp.ones((4, 1), bool))
    flat = np.asarray(vectors).reshape(4, 15)
    norms = np.linalg.norm(flat, axis=1)
    close(actual, flat @ flat.T / norms / norms[:, None])


# ---- jit and vmap --------------------------------------------------------------------------


def cases():
    """Every function with arguments of three clients, or of three rounds."""
    y = jnp.asarray(np.random.RandomState(0).randint(0, 4, (3, 12)))
    mask = jnp.asarray(np.random.RandomState(1).rand(3, 12) < 0.7).at[1].set(False)
    x, z = normal(3, 12, 5), normal(3, 12, 4, seed=2)
    observed = jnp.arange(4) < jnp.array([[2], [0], [4]])
    heads, seen = normal(3, 3, 4, 5), normal(3, 3, 4, seed=4) > 0
    return {
        "spectrum": (spectrum.spectrum, (x, mask)),
        "alignment": (alignment, (x, x[::-1], z, z[::-1], normal(3, 4, 4), y, mask, observed)),
        "soft_label_matrix": (lambda *a: relations.soft_label_matrix(*a, 4), (z, y, mask)),
        "relation_distance": (
            relations.relation_distance,
            (z[:, :4], losses.class_relations(z[0, :4]) + z[:, 4:8], observed),
        ),
        "norm_share": (relations.norm_share_correlation, (heads, jnp.round(heads[..., 0] ** 2))),
        "pairwise_cosines": (bias.pairwise_cosines, (heads, seen)),
        "mean_off_diagonal": (bias.mean_off_diagonal, (normal(3, 4, 4),)),
        "consistency": (collapse.prototype_consistency, (heads, seen)),
    }


@pytest.mark.parametrize("name", cases())
def test_jit_and_vmap(name):
    function, arguments = cases()[name]
    together = jax.jit(jax.vmap(function))(*arguments)
    for k in range(3):
        alone = function(*(a[k] for a in arguments))
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-4, atol=1e-5)


def test_lapack_takes_one_matrix_after_another():
    """See `linalg`: batches of LAPACK calls never end on as many devices as threads."""
    x, mask = normal(3, 12, 5), jnp.ones((3, 12), bool)
    y, vectors = jnp.zeros((3, 12), int), normal(3, 4, 5)
    programs = [
        jax.make_jaxpr(jax.vmap(spectrum.spectrum))(x, mask),
        jax.make_jaxpr(jax.vmap(collapse.collapse))(x, x[..., :4], y, mask, vectors),
    ]
    for program, calls in zip(programs, (2, 1), strict=True):
        found = [e for e in equations(program.jaxpr) if str(e.primitive) == "svd"]
        assert [e.invars[0].aval.ndim for e in found] == [2] * calls


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(tuple(equation.params.values())):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


# ---- a map of directions --------------------------------------------------------------------


def test_map_has_heaps_of_directions_whatever_their_lengths():
    """Five clients whose vectors of three classes point nearly the same way."""
    centres = np.eye(3, 8) + 0.01 * normal(5, 3, 8)
    lengths = np.exp(normal(5, 3, 1, seed=1))
    places = plane.tsne((centres * lengths).reshape(15, 8), seed=0).reshape(5, 3, 2)
    within = np.linalg.norm(places - places.mean(0), axis=-1).max()
    between = min(np.linalg.norm(places.mean(0)[i] - places.mean(0)[i - 1]) for i in range(3))
    assert within < between
