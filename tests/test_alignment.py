"""Alignment of local models with the global one: numbers by hand, and what must change nothing."""

import jax.numpy as jnp
import numpy as np
from recorded import close, everything
from test_geometry import normal

from fedjax_nc.analysis.alignment import alignment

VECTORS = jnp.array([[1.0, 0], [0, 2]])
OBSERVED = jnp.array([True, False])


def aligned(local, received, y, observed=OBSERVED, mask=None, vectors=VECTORS):
    y = jnp.asarray(y)
    mask = everything(y) if mask is None else mask
    local, received = jnp.asarray(local, float), jnp.asarray(received, float)
    return alignment(local, received, local, received, vectors, y, mask, observed)


def test_alignment_by_hand():
    local = [[3, 0], [0, 4], [1, 1], [-1, 1]]
    received = [[1, 0], [2, 0], [0, 2], [0, 1]]
    actual = aligned(local, received, [0, 0, 1, 1])
    half = np.sqrt(0.5)
    close(actual.cosine, [(1 + 0) / 2, half])
    close(actual.gap, [(0 - 1) / 2, half - 1])
    close(actual.distance, [(2 + np.sqrt(20)) / 2, (np.sqrt(2) + 1) / 2])
    close(actual.relative, [(2 + np.sqrt(5)) / 2, (half + 1) / 2])
    close(actual.angle, [(0 + 90) / 2, 45])
    np.testing.assert_array_equal(actual.count, [2, 2])


def test_equal_models():
    x = normal(20, 2)
    x = x.at[3].set(0.0)  # a dead feature
    actual = aligned(x, x, np.arange(20) % 2)
    for name in ("gap", "distance", "relative", "angle"):
        np.testing.assert_allclose(getattr(actual, name), 0, atol=1e-6, err_msg=name)
    y = np.arange(20) % 2
    cosines = np.array(x[np.arange(20), y] / jnp.maximum(jnp.linalg.norm(x, axis=1), 1e-9))
    close(actual.cosine, [cosines[y == 0].mean(), cosines[y == 1].mean()])


def test_small_and_straight_angles():
    """In single precision, where arccos would answer 0 or 0.02 degrees."""
    turn = np.deg2rad(0.001)
    received = [[1, 0], [1, 0]]
    actual = aligned([[np.cos(turn), np.sin(turn)], [-2, 0]], received, [0, 1])
    close(actual.angle, [0.001, 180], rtol=1e-3)


def test_cosines_after_the_projector_and_distances_before():
    features, projected = normal(6, 5), normal(6, 2, seed=1)
    actual = alignment(
        features,
        2 * features,
        projected,
        -projected,
        VECTORS,
        jnp.array([0, 1] * 3),
        everything(features),
        OBSERVED,
    )
    close(actual.gap, 2 * actual.cosine)
    close(actual.relative, [0.5, 0.5])
    np.testing.assert_allclose(actual.angle, 0, atol=1e-4)


def test_zero_features_have_no_angle():
    actual = aligned([[0, 0], [1, 1], [1, 0]], [[1, 0], [0, 0], [0, 1]], [0, 0, 0])
    close(actual.angle[0], 90)  # of the third alone
    close(actual.relative[0], (1 + np.sqrt(2)) / 2)  # of the first and the third
    close(actual.distance[0], (1 + 2 * np.sqrt(2)) / 3)
    close(actual.cosine[0], (0 + np.sqrt(0.5) + 1) / 3)


def test_alignment_masked_rows_and_empty_groups():
    local, received, y = normal(9, 2), normal(9, 2, seed=1), np.arange(9) % 2
    mask = jnp.arange(9) < 6
    base = aligned(local[:6], received[:6], y[:6])
    actual = aligned(local.at[6:].set(jnp.nan), received, y, mask=mask)
    for a, b in zip(actual, base, strict=True):
        close(a, b, rtol=1e-6)
    all_observed = aligned(local, received, y, observed=jnp.ones(2, bool))
    np.testing.assert_array_equal(all_observed.count, [9, 0])
    for value in all_observed[:-1]:
        assert np.isfinite(value[0]) and np.isnan(value[1])
