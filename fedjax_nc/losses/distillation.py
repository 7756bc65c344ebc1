"""Losses against a frozen model's outputs: one value per example, the caller averages."""

from typing import Literal

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from fedjax_nc import linalg


def feature_l2(student: Float[Array, "*b d"], teacher: Float[Array, "*b d"]) -> Float[Array, "*b"]:
    """Computes the features' squared distance divided by their dimension (FedDr+, section 3.2)."""
    chex.assert_equal_shape([student, teacher])
    return jnp.mean((student - teacher) ** 2, axis=-1)


def model_contrastive(
    z: Float[Array, "*b p"],
    z_global: Float[Array, "*b p"],
    z_previous: Float[Array, "*b p"],
    tau: float,
    earlier: tuple[Float[Array, "*b p"], ...] = (),
    times: Num[Array, " n"] | None = None,
) -> Float[Array, "*b"]:
    """Computes the contrast of the global model against the previous local one (MOON, eq. 3).

    -log( e^{s+/tau} / (e^{s+/tau} + sum e^{s-/tau}) ) with s+ the cosine similarity to the global
    model's projection and s- that to the previous local model's, and to those `earlier`.

    Args:
      z: projections of the model that is trained.
      z_global: those of the global model.
      z_previous: those of the previous local model.
      tau: temperature of the similarities.
      earlier: projections of models before that.
      times: how often each of these local models is in the sum, by default once.
    """
    chex.assert_equal_shape([z, z_global, z_previous, *earlier])
    positive = linalg.cosine(z, z_global)
    gaps = [(linalg.cosine(z, old) - positive) / tau for old in (z_previous, *earlier)]
    if times is not None:
        gaps = [gap + jnp.log(often) for gap, often in zip(gaps, times, strict=True)]
    value = jax.nn.softplus(gaps[0])
    for gap in gaps[1:]:
        value = jnp.logaddexp(value, gap)
    return value


def kd(
    logits: Float[Array, "*b c"], teacher: Float[Array, "*b c"], tau: float = 1.0
) -> Float[Array, "*b"]:
    """Computes tau^2 KL( softmax(teacher / tau) || softmax(logits / tau) )."""
    chex.assert_equal_shape([logits, teacher])
    log_p, log_q = jax.nn.log_softmax(teacher / tau), jax.nn.log_softmax(logits / tau)
    return tau**2 * jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def not_true_kd(
    logits: Float[Array, "*b c"],
    teacher: Float[Array, "*b c"],
    labels: Int[Array, "*b"],
    tau: float = 1.0,
) -> Float[Array, "*b"]:
    """Computes `kd` over the classes that are not the true one (FedNTD, eq. 4)."""
    chex.assert_equal_shape([logits, teacher])
    true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    # far below every logit but finite: both distributions give the class nothing, and 0 * 0 is 0
    return kd(jnp.where(true, -1e9, logits), jnp.where(true, -1e9, teacher), tau=tau)


def logit_l2(logits: Float[Array, "*b c"], teacher: Float[Array, "*b c"]) -> Float[Array, "*b"]:
    """Computes the logits' squared distance divided by the number of classes (FedDr+'s LD)."""
    return feature_l2(logits, teacher)


def soft_label_kl(
    logits: Float[Array, "*b c"],
    targets: Float[Array, "*b c"],
    form: Literal["kl", "linear"] = "kl",
) -> Float[Array, "*b"]:
    """Computes the distance of the softmax to a target distribution.

    Args:
      logits: the student's.
      targets: probabilities of each row.
      form: `kl` is KL(targets || softmax); `linear` is what FedDW's code computes for Fedistill+ by
        giving PyTorch's KL probabilities instead of their logarithms: sum s (log s - p).
    """
    chex.assert_equal_shape([logits, targets])
    student = jax.nn.log_softmax(logits) if form == "kl" else jax.nn.softmax(logits)
    safe = jnp.where(targets > 0, targets, 1.0)
    return jnp.sum(targets * (jnp.log(safe) - student), axis=-1)
