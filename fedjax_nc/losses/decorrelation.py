"""Losses on the correlation of a batch's features: one value per batch, padding rows left out."""

from typing import Literal

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_nc import linalg

Features = Float[Array, "b d"]
Mask = Bool[Array, " b"]


def standardise(z: Features, mask: Mask) -> tuple[Features, Float[Array, ""]]:
    """Standardises every feature over the rows that are not padding; also counts these rows.

    The variance is unbiased and 1e-8 is added, as in FedDecorr's code. Padding rows and constant
    features become zero.
    """
    chex.assert_rank(z, 2)
    count = jnp.sum(mask).astype(z.dtype)
    kept = jnp.where(mask[:, None], z, 0.0)
    mean = jnp.sum(kept, 0) / jnp.maximum(count, 1.0)
    centred = jnp.where(mask[:, None], z - mean, 0.0)
    var = jnp.sum(centred**2, 0) / jnp.maximum(count - 1.0, 1.0)
    return centred * jax.lax.rsqrt(var + 1e-8), count


def frobenius(z: Features, mask: Mask) -> Float[Array, ""]:
    """Computes FedDecorr's (1/B) mean_{i != j} M_ij^2, M = Z^T Z of standardised features.

    This is the scale of the released code, to which its weight 0.1 belongs: with the correlation
    K = M / (B - 1) it is (B - 1)^2 / B times the mean of K_ij^2. It is zero for a batch of one.
    """
    z, count = standardise(z, mask)
    d = z.shape[1]
    m = z.T @ z
    off = m * (1 - jnp.eye(d, dtype=z.dtype))
    return jnp.sum(off**2) / (max(d * (d - 1), 1) * jnp.maximum(count, 1.0))


def squared_correlation(z: Features, mask: Mask) -> Float[Array, ""]:
    """Computes |K|_F^2 / d^2 of the features' correlation K, as FedDecorr is written.

    FedBlade has it as equation 8. The diagonal counts, which is constant; a batch of one gives
    zero.
    """
    z, count = standardise(z, mask)
    k = z.T @ z / jnp.maximum(count - 1.0, 1.0)
    return jnp.mean(k**2)


def log_det(
    z: Features,
    mask: Mask,
    jitter: float = 1e-4,
    side: Literal["smaller", "features", "samples"] = "smaller",
) -> Float[Array, ""]:
    """Computes -log det(K + jitter I) of the features' correlation K (LDDecorr, FedBlade, eq. 11).

    It is computed by Cholesky, as in the paper. With fewer samples than features the same number
    and gradient come from a B x B matrix:
    log det(Z^T Z + e I_d) = (d - B) log e + log det(Z Z^T + e I_B).

    Args:
      z: features; fewer than two rows give zero.
      mask: rows that are not padding.
      jitter: added to the diagonal.
      side: whether the matrix has a row per feature, a row per sample, or whichever is smaller.
    """
    z, count = standardise(z, mask)
    (b, d), z = z.shape, z / jnp.sqrt(jnp.maximum(count - 1.0, 1.0))
    samples = side == "samples" or (side == "smaller" and b < d)
    value = -linalg.log_det(z @ z.T if samples else z.T @ z, jitter)
    if samples:
        value = value - (d - b) * jnp.log(jitter)
    return jnp.where(count > 1, value, 0.0)
