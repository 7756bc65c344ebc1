"""Classifier bias: how far the directions of clients' class vectors differ."""

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_nc import linalg


def pairwise_cosines(
    vectors: Float[Array, "k c d"], seen: Bool[Array, "k c"]
) -> Float[Array, "k k"]:
    """Computes the mean cosine of every two clients' vectors over the classes both have.

    That is figure 1 of FedETF, whose code takes the whole head as one vector: this function of
    `vectors` as [k, 1, c * d]. NaN where two clients share no class.
    """
    chex.assert_equal_shape_prefix([vectors, seen], 2)
    unit = jnp.where(seen[..., None], linalg.normalise(vectors), 0.0).reshape(len(vectors), -1)
    member = seen.astype(unit.dtype)
    return (unit @ unit.T) / (member @ member.T)


def mean_off_diagonal(matrix: Float[Array, "k k"]) -> Float[Array, ""]:
    """Computes the mean over pairs of different clients, without NaN; NaN if no pair is left."""
    chex.assert_rank(matrix, 2)
    pairs = ~jnp.eye(len(matrix), dtype=bool) & ~jnp.isnan(matrix)
    return jnp.sum(jnp.where(pairs, matrix, 0.0)) / jnp.sum(pairs)
