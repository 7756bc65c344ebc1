"""Equations on arrays: no parameters, no model, no state."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_nc.losses.classification import (
    balanced_softmax,
    cross_entropy,
    dot_regression,
    log_prior,
)
from fedjax_nc.losses.distillation import feature_l2, model_contrastive

__all__ = ["balanced_softmax", "cross_entropy", "dot_regression", "feature_l2", "log_prior",
           "masked_mean", "model_contrastive"]  # fmt: skip


def masked_mean(values: Float[Array, " b"], mask: Bool[Array, " b"]) -> Float[Array, ""]:
    """Mean over the rows that are not padding; zero when all are."""
    kept = jnp.where(mask, values, 0.0)  # where, not a product: a padding row may be NaN
    return jnp.sum(kept) / jnp.maximum(jnp.sum(mask), 1)
