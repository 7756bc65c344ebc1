"""Loss functions: equations on arrays, without parameters, model or state.

Most give one value per example, which `masked_mean` averages; those on a whole batch take its mask.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_nc.losses.classification import (
    Absent,
    balanced_softmax,
    cosine_mse,
    cross_entropy,
    dot_regression,
    log_prior,
    margin_softmax,
    prior_scaled,
    pull_push,
)
from fedjax_nc.losses.consistency import (
    class_relations,
    linearised_gram,
    soft_label_consistency,
    spectral_norm,
    transmitting_matrix,
)
from fedjax_nc.losses.decorrelation import frobenius, log_det, squared_correlation
from fedjax_nc.losses.distillation import (
    feature_l2,
    kd,
    logit_l2,
    model_contrastive,
    not_true_kd,
    soft_label_kl,
)
from fedjax_nc.losses.pairs import class_variance, relaxed_contrast, uniformity
from fedjax_nc.losses.prototype import (
    ClassSums,
    class_sums,
    moving_prototypes,
    projector_alignment,
    prototype_contrast,
    prototype_l2,
)

__all__ = ["Absent", "ClassSums", "balanced_softmax", "class_relations", "class_sums",
           "class_variance", "cosine_mse", "cross_entropy", "dot_regression", "feature_l2",
           "frobenius", "kd", "linearised_gram", "log_det", "log_prior", "logit_l2",
           "margin_softmax", "masked_mean", "model_contrastive", "moving_prototypes",
           "not_true_kd", "prior_scaled", "projector_alignment", "prototype_contrast",
           "prototype_l2", "pull_push", "relaxed_contrast", "soft_label_consistency",
           "soft_label_kl", "spectral_norm", "squared_correlation", "transmitting_matrix",
           "uniformity"]  # fmt: skip


def masked_mean(values: Float[Array, " b"], mask: Bool[Array, " b"]) -> Float[Array, ""]:
    """Computes the mean over the examples that are not padding; zero if all are.

    Args:
      values: one per example; those of padding may be anything, also NaN.
      mask: False on padding.
    """
    kept = jnp.where(mask, values, 0.0)  # where, not a product: NaN * 0 is NaN
    return jnp.sum(kept) / jnp.maximum(jnp.sum(mask), 1)
