"""Classifier bias: how far clients' class vectors point to different directions."""

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_nc import linalg


def pairwise_cosines(
    vectors: Float[Array, "k c d"], seen: Bool[Array, "k c"]
) -> Float[Array, "k k"]:
    """Mean cosine of two clients' vectors over the classes both have (FedETF, figure 1).

    NaN where they share none. FedETF's code takes the whole head as one vector, which is this
    function of `vectors` as [k, 1, c * d].
    """
    chex.assert_equal_shape_prefix([vectors, seen], 2)
    unit = jnp.where(seen[..., None], linalg.normalise(vectors), 0.0).reshape(len(vectors), -1)
    member = seen.astype(unit.dtype)
    return (unit @ unit.T) / (member @ member.T)


def mean_off_diagonal(matrix: Float[Array, "k k"]) -> Float[Array, ""]:
    """Mean over pairs of different clients, NaN ones left out; NaN if none is left."""
    chex.assert_rank(matrix, 2)
    pairs = ~jnp.eye(len(matrix), dtype=bool) & ~jnp.isnan(matrix)
    return jnp.sum(jnp.where(pairs, matrix, 0.0)) / jnp.sum(pairs)
