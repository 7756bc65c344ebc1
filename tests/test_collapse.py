"""Neural collapse: exact frames, hand-computed numbers, NumPy, and what must change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded import close, everything

from fedjax_nc import linalg
from fedjax_nc.analysis.collapse import (
    Collapse,
    class_means,
    collapse,
    prototype_consistency,
)

at_once = jax.jit(collapse)  # operation by operation, each shape has a hundred programs


def frame(classes, width):
    """Class vectors of a simplex ETF, one row per class."""
    return linalg.simplex_etf(jax.random.normal(jax.random.key(1), (width, classes))).T


def measure(features, y, vectors, mask=None, logits=None):
    features, y = jnp.asarray(features, float), jnp.asarray(y)
    vectors = jnp.asarray(vectors, float)
    logits = features @ vectors.T if logits is None else jnp.asarray(logits, float)
    return at_once(features, logits, y, everything(y) if mask is None else mask, vectors)


def example(seed=0, n=40, d=6, classes=5, unseen=()):
    """Unbalanced classes around random means, some unseen, some rows masked."""
    rng = np.random.RandomState(seed)
    y = rng.choice([c for c in range(classes) if c not in unseen], n)
    x = rng.randn(classes, d)[y] * 2 + rng.randn(n, d) + 1
    return x, y, rng.rand(n) < 0.8, rng.randn(classes, d), rng.randn(n, classes)


def in_numpy(x, y, mask, vectors, logits):
    """The definitions, matrix by matrix and pair by pair."""
    x, y, logits, classes = x[mask], y[mask], logits[mask], len(vectors)
    seen = sorted(set(y))
    means = {c: x[y == c].mean(0) for c in seen}
    centre = np.mean([means[c] for c in seen], axis=0)
    within = np.mean([np.cov(x[y == c].T, bias=True) for c in seen], axis=0)
    between = np.mean([np.outer(means[c] - centre, means[c] - centre) for c in seen], axis=0)
    norms = [np.linalg.norm(means[c] - centre) for c in seen]
    unit = {c: (means[c] - centre) / norm for c, norm in zip(seen, norms, strict=True)}

    def cos(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    pairs = [(i, j) for i in seen for j in seen if i != j]
    gaps = np.array([unit[i] @ unit[j] + 1 / (classes - 1) for i, j in pairs])
    errors = np.array([cos(means[i], means[j]) + 1 / (classes - 1) for i, j in pairs])
    head, frame = vectors[seen], np.stack([unit[c] for c in seen])
    nearest = [min(seen, key=lambda c: np.linalg.norm(row - means[c])) for row in x]
    return Collapse(
        nc1=np.trace(within @ np.linalg.pinv(between, rcond=1e-9)) / classes,
        within_share=np.trace(within) / np.trace(within + between),
        nc2_norms=np.std(norms) / np.mean(norms),
        nc2_angles=np.mean(np.abs(gaps)),
        nc2=np.sqrt(np.sum(gaps**2)),
        nc3=np.linalg.norm(head / np.linalg.norm(head) - frame / np.linalg.norm(frame)),
        nc4=np.mean(nearest != logits.argmax(1)),
        nc_error=np.mean(errors**2),
    )


def same(a, b, rtol=1e-5, but=()):
    for name in Collapse._fields:
        if name not in but:
            np.testing.assert_allclose(
                getattr(a, name), getattr(b, name), rtol=rtol, atol=rtol, err_msg=name
            )


# ---- numbers computed by hand --------------------------------------------------------------


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (3, 2), (4, 4), (5, 12), (10, 64)])
def test_zero_on_an_exact_frame(classes, width):
    vectors = frame(classes, width)
    y = np.arange(3 * classes) % classes
    for scale in (1.0, 7.0):  # of the features
        values = measure(scale * vectors[y], y, vectors)
        same(values, Collapse(*[0.0] * 8), rtol=2e-6)
    away = measure(vectors[y] + 3.0, y, vectors, logits=vectors[y] @ vectors.T)
    same(away, Collapse(*[0.0] * 8), rtol=1e-5, but=["nc_error"])
    assert away.nc_error > 0.1  # the only one of uncentred means


def test_variability_by_hand():
    # class means (2, 0) and (-2, 0): S_W = [[1, 1], [1, 1]], S_B = diag(4, 0), C = 2
    x, y = [[3, 1], [1, -1], [-3, -1], [-1, 1]], [0, 0, 1, 1]
    values = measure(x, y, [[1, 0], [-1, 0]])
    close(values.nc1, 1 / 8)
    close(values.within_share, 2 / 6)
    # only along the second axis, in which means do not differ: S_W = diag(0, 1)
    values = measure([[2, 1], [2, -1], [-2, 1], [-2, -1]], y, [[1, 0], [-1, 0]])
    np.testing.assert_allclose(values.nc1, 0, atol=1e-7)
    close(values.within_share, 1 / 5)


def test_rare_classes_weigh_as_much():
    # class 0 has variance 1 in four examples, class 1 none in one; S_B = 4
    x, y = [[3.0], [1], [3], [1], [-2]], [0, 0, 0, 0, 1]
    values = measure(x, y, [[1], [-1]])
    close(values.nc1, 0.5 / 4 / 2)
    close(values.within_share, 0.5 / 4.5)


def test_means_by_hand():
    # centred as they are; norms 2, 1, 1; cosines -1, -1, 1 where a simplex has -1/2
    x, unit = [[2, 0], [-1, 0], [-1, 0]], np.array([[1, 0], [-1, 0], [-1, 0]])
    values = measure(x, [0, 1, 2], 5 * unit)
    close(values.nc2_norms, np.sqrt(2) / 4)
    close(values.nc2_angles, (0.5 + 0.5 + 1.5) / 3)
    close(values.nc2, np.sqrt(2 * (0.25 + 0.25 + 2.25)))
    close(values.nc_error, (0.25 + 0.25 + 2.25) / 3)
    np.testing.assert_allclose(values.nc3, 0, atol=1e-6)
    close(measure(x, [0, 1, 2], -unit).nc3, 2)  # opposite unit vectors


def test_orthogonal_means():
    values = measure(np.eye(3), [0, 1, 2], np.eye(3))
    np.testing.assert_allclose(values.nc2, 0, atol=1e-6)  # a simplex once centred
    close(values.nc_error, 0.25)  # cosine 0 instead of -1/2


def test_nearest_mean_by_hand():
    # means 1 and -1; the head puts the border at 0.6 instead of 0
    x = np.array([[0.5], [1.5], [-1.0], [-1.0]])
    logits = np.concatenate([x - 0.6, 0.6 - x], axis=1)
    close(measure(x, [0, 0, 1, 1], [[1], [-1]], logits=logits).nc4, 1 / 4)


# ---- NumPy, invariances, corners -----------------------------------------------------------


@pytest.mark.parametrize("unseen", [(), (2,), (0, 4)])
@pytest.mark.parametrize("d", [2, 6, 9])
def test_against_numpy(x64, d, unseen):
    x, y, mask, vectors, logits = example(d=d, unseen=unseen)
    actual = measure(x, y, vectors, jnp.asarray(mask), logits)
    same(actual, in_numpy(x, y, mask, vectors, logits), rtol=1e-9)


def test_rotation_scale_and_shift(x64):
    x, y, mask, vectors, logits = example()
    base = measure(x, y, vectors, jnp.asarray(mask), logits)
    q, _ = np.linalg.qr(np.random.RandomState(1).randn(6, 6))
    turned = measure(3 * x @ q, y, 0.2 * vectors @ q, jnp.asarray(mask), logits)
    same(turned, base, rtol=1e-9)
    moved = measure(x + 5, y, vectors, jnp.asarray(mask), logits)
    same(moved, base, rtol=1e-9, but=["nc_error"])
    assert abs(moved.nc_error - base.nc_error) > 0.1


def test_far_from_the_origin_in_single_precision():
    """Rounding of a large common mean must not count as a direction between classes."""
    x, y, mask, vectors, logits = example(d=12)
    base = measure(x, y, vectors, jnp.asarray(mask), logits)
    far = measure(x + 300, y, vectors, jnp.asarray(mask), logits)
    same(far, base, rtol=1e-3, but=["nc_error"])


def test_means_on_a_line_in_single_precision():
    """As above for means of less rank than their number allows."""
    line, across = np.array([0.3, 0.7, -0.2]), np.array([0.4, 0.2, 0.85])
    x = np.array([a * line + b * across for a in (-2, 0, 1, 4) for b in (-1, 1)])
    values = measure(x, np.arange(8) // 2, np.ones((4, 3)))
    places = np.array([-2, 0, 1, 4]) - 0.75
    along = (across @ line) / (line @ line)  # of the deviations, in units of the line
    close(values.nc1, along**2 / np.mean(places**2) / 4, rtol=1e-4)


def test_masked_rows_change_nothing():
    x, y, mask, vectors, logits = example()
    base = measure(x[mask], y[mask], vectors, logits=logits[mask])
    x[~mask], logits[~mask] = np.nan, np.nan
    same(measure(x, y, vectors, jnp.asarray(mask), logits), base, rtol=1e-6)


def test_part_of_a_frame():
    vectors = frame(5, 8)
    y = np.array([0, 1, 3, 0, 1, 3])
    values = measure(vectors[y], y, vectors)
    np.testing.assert_allclose(values.nc_error, 0, atol=1e-6)
    close(values.nc2_angles, 1 / 2 - 1 / 4)  # three points' own simplex, for that of five
    close(values.nc2, np.sqrt(6) / 4)
    np.testing.assert_allclose([values.nc1, values.within_share, values.nc4], 0, atol=1e-6)


def test_what_does_not_exist_is_nan():
    one = measure([[1.0, 2], [3, 4]], [1, 1], np.eye(2))
    assert not np.isnan(one.nc4) and np.all(np.isnan(one._replace(nc4=np.nan)))
    nothing = measure(np.ones((2, 2)), [0, 1], np.eye(2), mask=jnp.zeros(2, bool))
    assert np.all(np.isnan(nothing))


def test_dead_features_are_finite_and_no_frame():
    values = measure(np.zeros((6, 4)), [0, 0, 1, 1, 2, 2], np.zeros((3, 4)))
    assert np.all(np.isfinite(values))
    close(values.nc2, np.sqrt(3 + 6 / 4))
    close(values.nc4, 0)  # both answer the first class


def test_class_means():
    x = jnp.array([[1.0, 2], [3, 4], [5, 6], [jnp.nan, 0]])
    y, mask = jnp.array([2, 2, 0, 1]), jnp.array([True, True, True, False])
    means, seen = class_means(x, y, mask, 3)
    np.testing.assert_allclose(means, [[5, 6], [0, 0], [2, 3]])
    np.testing.assert_array_equal(seen, [True, False, True])


# ---- clients -------------------------------------------------------------------------------


def test_consistency_by_hand():
    means = jnp.array(
        [
            [[1.0, 0], [3, 0], [1, 1]],
            [[0, 5], [2, 0], [9, 9]],
            [[-1, 0], [7, 7], [9, 9]],
        ]
    )
    seen = jnp.array([[True, True, True], [True, True, False], [True, False, False]])
    # class 0: cosines 0, 0, -1; class 1: 1; class 2: nobody to compare with
    close(prototype_consistency(means, seen), (-1 / 3 + 1) / 2)
    assert np.isnan(prototype_consistency(means, seen.at[1:].set(False)))


def test_consistency_against_numpy(x64):
    rng = np.random.RandomState(0)
    means, seen = rng.randn(6, 4, 3), rng.rand(6, 4) < 0.6
    means[0, 0] = 0  # a dead client's mean has cosine 0
    seen[0, 0] = True
    per_class = []
    for c in range(4):
        pairs = [(i, j) for i in range(6) for j in range(i) if seen[i, c] and seen[j, c]]
        norm = np.maximum(np.linalg.norm(means[:, c], axis=1), 1e-9)
        per_class.append(np.mean([means[i, c] @ means[j, c] / norm[i] / norm[j] for i, j in pairs]))
    actual = prototype_consistency(jnp.asarray(means), jnp.asarray(seen))
    close(actual, np.mean(per_class), rtol=1e-9)


def test_jit_and_vmap():
    clients = [example(seed, unseen=(seed,)) for seed in range(3)]
    x, y, mask, vectors, logits = (np.stack(v) for v in zip(*clients, strict=True))
    mask[1] = False  # a client without examples
    arguments = [
        jnp.asarray(v, None if v.dtype != float else "float32")
        for v in (x, logits, y, mask, vectors)
    ]
    together = jax.jit(jax.vmap(collapse))(*arguments)
    for k in range(3):
        alone = collapse(*(v[k] for v in arguments))
        same(jax.tree.map(lambda v, k=k: v[k], together), alone)
    assert not np.any(np.isnan(jax.tree.map(lambda v: v[jnp.array([0, 2])], together)))
