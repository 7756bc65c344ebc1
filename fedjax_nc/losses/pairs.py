"""Losses on pairs of a batch's vectors; padding rows take no part."""

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fedjax_nc import linalg

_NONE = -1e9  # a logit that is not there


def relaxed_contrast(
    z: Float[Array, "b d"],
    labels: Int[Array, " b"],
    mask: Bool[Array, " b"],
    tau: float = 0.05,
    threshold: float = 0.7,
    beta: float = 1.0,
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Computes FedRCL's supervised contrast and its penalty on collapsing classes, per anchor.

    The first sets the least similar vector of the anchor's class, which may be itself, against the
    two most similar ones of other classes. The second sets the anchor itself against the least
    similar other vector of its class, if that is closer than the threshold.

    Args:
      z: pooled maps of one level.
      labels: true classes.
      mask: rows that are not padding.
      tau: temperature of the cosines.
      threshold: cosine below which vectors of a class do not repel.
      beta: log(beta) / tau is added to the logits of negatives.
    """
    chex.assert_rank(z, 2)
    unit = linalg.normalise(jnp.where(mask[:, None], z, 0.0))
    cosines = unit @ unit.T
    valid, itself = mask[:, None] & mask, jnp.eye(len(z), dtype=bool)
    same = (labels[:, None] == labels) & valid
    positive = jnp.min(jnp.where(same, cosines, jnp.inf), axis=1)
    negatives = lax.top_k(jnp.where(valid & ~same, cosines, _NONE), min(2, len(z)))[0]
    nearest = jnp.min(jnp.where(same & ~itself, cosines, jnp.inf), axis=1)
    repelled = jnp.where(nearest >= threshold, nearest, -1.0)
    repelled = jnp.where(jnp.isinf(nearest), _NONE, repelled)
    own = jnp.diagonal(cosines)

    def against(positive, negatives):
        others = (negatives + jnp.log(beta)) / tau
        logits = jnp.concatenate([positive[:, None] / tau, others], axis=1)
        return jax.nn.logsumexp(logits, axis=1) - logits[:, 0]

    contrast = against(jnp.where(mask, positive, 0.0), negatives)
    return contrast, against(own, repelled[:, None])


def class_variance(logits: Float[Array, "b c"], mask: Bool[Array, " b"]) -> Float[Array, ""]:
    """Computes mean_c max(0, 1/sqrt(C) - std of the softmax output c in the batch) (FedUV, eq. 5).

    The standard deviation is unbiased, as in the code. The value is zero for a batch of one.
    """
    chex.assert_rank(logits, 2)
    count = jnp.sum(mask).astype(logits.dtype)
    p = jnp.where(mask[:, None], jax.nn.softmax(logits), 0.0)
    centred = jnp.where(mask[:, None], p - jnp.sum(p, 0) / jnp.maximum(count, 1.0), 0.0)
    std = linalg.safe_norm(centred.T) / jnp.sqrt(jnp.maximum(count - 1.0, 1.0))
    gap = jnp.mean(jnp.maximum(0.0, logits.shape[1] ** -0.5 - std))
    return jnp.where(count > 1, gap, 0.0)


def uniformity(z: Float[Array, "b d"], mask: Bool[Array, " b"]) -> Float[Array, ""]:
    """Computes mean_{i < j} exp(-D_ij / median D) of squared distances D (FedUV, eq. 7).

    The median is the lower one of the distances that are not zero, and the gradient flows through
    it. The value is zero for a batch of one.
    """
    chex.assert_rank(z, 2)
    rows, columns = jnp.triu_indices(len(z), 1)
    pairs = mask[rows] & mask[columns]
    # differences, not |a|^2 + |b|^2 - 2ab: equal vectors must be at distance zero
    distance = jnp.sum((z[rows] - z[columns]) ** 2, axis=-1)
    apart = pairs & (distance > 0)
    ordered = jnp.sort(jnp.where(apart, distance, jnp.inf))
    median = ordered[jnp.maximum(jnp.sum(apart) - 1, 0) // 2] if len(rows) else jnp.inf
    median = jnp.where(jnp.any(apart), median, 1.0)
    kernel = jnp.where(pairs, jnp.exp(-distance / median), 0.0)
    return jnp.sum(kernel) / jnp.maximum(jnp.sum(pairs), 1)
