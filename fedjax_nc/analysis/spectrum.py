"""Dimensional collapse: in how many directions features vary (FedBlade, figures 2, 4, 5)."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Array, Bool, Float

from fedjax_nc.losses.decorrelation import standardise


class Spectrum(NamedTuple):
    """Singular values and effective ranks; FedBlade names both matrices (section 4.1, figure 4)."""

    singular: Float[Array, " d"]  # of the covariance, descending
    effective_rank: Float[Array, ""]  # of the covariance
    effective_rank_correlation: Float[Array, ""]


def spectrum(features: Float[Array, "n d"], mask: Bool[Array, " n"]) -> Spectrum:
    """Computes singular values and effective ranks of one model's features."""
    singular = singular_values(covariance(features, mask))
    of_correlation = singular_values(correlation(features, mask))
    return Spectrum(
        singular,
        effective_rank(singular),
        effective_rank_correlation=effective_rank(of_correlation),
    )


def covariance(features: Float[Array, "n d"], mask: Bool[Array, " n"]) -> Float[Array, "d d"]:
    """Computes the unbiased covariance over unmasked rows; zero with fewer than two rows."""
    chex.assert_equal_shape_prefix([features, mask], 1)
    count = jnp.sum(mask)
    mean = jnp.sum(jnp.where(mask[:, None], features, 0.0), 0) / jnp.maximum(count, 1)
    centred = jnp.where(mask[:, None], features - mean, 0.0)
    return centred.T @ centred / jnp.maximum(count - 1, 1)


def correlation(features: Float[Array, "n d"], mask: Bool[Array, " n"]) -> Float[Array, "d d"]:
    """Computes the matrix K of `losses.log_det`: rows and columns of dead units are zero."""
    chex.assert_equal_shape_prefix([features, mask], 1)
    z, count = standardise(features, mask)
    return z.T @ z / jnp.maximum(count - 1, 1)


def effective_rank(singular: Float[Array, " r"]) -> Float[Array, ""]:
    """Computes exp(-sum_i p_i log p_i) with p_i = s_i / sum_j s_j (FedBlade, definition 2).

    It is 0 if all singular values are 0.
    """
    chex.assert_rank(singular, 1)
    total = jnp.sum(singular)
    return jnp.where(total > 0, jnp.exp(jnp.sum(entr(singular / total))), 0.0)


def _singular_values(matrix: Float[Array, "m n"]) -> Float[Array, " r"]:
    """Returns the singular values, descending."""
    return jnp.linalg.svd(matrix, compute_uv=False)


# no batch of LAPACK calls, see `linalg`
singular_values = jax.custom_batching.sequential_vmap(_singular_values)
