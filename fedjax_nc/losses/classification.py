"""Classification losses: one value per example, the caller averages."""

from collections.abc import Callable
from typing import Literal

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_nc import linalg


def cross_entropy(logits: Float[Array, "*b c"], labels: Int[Array, "*b"]) -> Float[Array, "*b"]:
    """Computes the cross-entropy -log softmax(logits)_y."""
    chex.assert_equal_shape_prefix([logits, labels], labels.ndim)
    log_p = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]


Absent = Literal["one", "remove", "epsilon"]  # what is done about classes without samples
_REMOVED = -1e9  # log of nothing: a finite number, since 0 * inf is NaN in a gradient


def shift(
    counts: Float[Array, " c"], absent: Absent, of: Callable[[Array], Array] = jnp.log
) -> Float[Array, " c"]:
    """Computes what is added to the logits of a class with n_c samples on this client.

    Args:
      counts: samples of each class on this client; 0 is allowed.
      absent: what is done about a class without samples, in the three published ways. `one` counts
        it once (FedETF's code), `remove` takes it out of the softmax (FedETF in FedDr+'s code,
        FedLC in FedDecorr's), `epsilon` counts it 1e-8 times (FedNH, FL-bench).
      of: the function of the counts, by default their logarithm.
    """
    least = 1e-8 if absent == "epsilon" else 1.0
    values = of(jnp.where(counts > 0, counts, least))
    return values if absent != "remove" else jnp.where(counts > 0, values, _REMOVED)


def log_prior(counts: Float[Array, " c"], absent: Absent = "one") -> Float[Array, " c"]:
    """Computes log n_c; `absent` says how a class without samples counts, see `shift`."""
    return shift(counts, absent)


def balanced_softmax(
    logits: Float[Array, "*b c"],
    labels: Int[Array, "*b"],
    counts: Float[Array, " c"],
    gamma: float = 1.0,
    absent: Absent = "one",
) -> Float[Array, "*b"]:
    """Computes the cross-entropy of logits shifted by the class frequencies (FedETF, eq. 6).

    CE(z + gamma log n, y): a frequent class must win by a margin.

    Args:
      logits: scaled similarities, beta v_c . mu.
      labels: true classes.
      counts: samples of each class on this client; 0 is allowed.
      gamma: strength; 0 gives plain cross-entropy.
      absent: how a class without samples counts, see `shift`.
    """
    chex.assert_equal_shape_suffix([logits, counts], 1)
    return cross_entropy(logits + gamma * log_prior(counts, absent), labels)


def margin_softmax(
    logits: Float[Array, "*b c"],
    labels: Int[Array, "*b"],
    counts: Float[Array, " c"],
    tau: float = 1.0,
    absent: Absent = "remove",
) -> Float[Array, "*b"]:
    """Computes the cross-entropy of logits minus a margin for rare classes (FedLC).

    CE(z - tau n^(-1/4), y): the rarer a class, the larger the margin it must win by.

    Args:
      logits: of the head.
      labels: true classes.
      counts: samples of each class on this client; 0 is allowed.
      tau: strength; 0 gives plain cross-entropy.
      absent: how a class without samples counts, see `shift`.
    """
    chex.assert_equal_shape_suffix([logits, counts], 1)
    if not tau:
        return cross_entropy(logits, labels)
    return cross_entropy(logits + shift(counts, absent, of=lambda n: -tau * n**-0.25), labels)


def prior_scaled(
    logits: Float[Array, "*b c"], counts: Float[Array, " c"], temperature: float = 1.0
) -> Float[Array, "*b c"]:
    """Scales logits by class frequency (FedGELA): phi_c z_c / T with phi_c = C n_c / n.

    A class without samples gets the logit 0.
    """
    chex.assert_equal_shape_suffix([logits, counts], 1)
    share = counts / jnp.maximum(jnp.sum(counts), 1.0)
    return logits * (counts.shape[-1] * share) / temperature


def cosine_mse(cosines: Float[Array, "*b c"], labels: Int[Array, "*b"]) -> Float[Array, "*b"]:
    """Computes the mean over classes of (cos_c - [c = y])^2 (SphereFed, as FedDr+'s code)."""
    chex.assert_equal_shape_prefix([cosines, labels], labels.ndim)
    onehot = jax.nn.one_hot(labels, cosines.shape[-1], dtype=cosines.dtype)
    return jnp.mean((cosines - onehot) ** 2, axis=-1)


def dot_regression(
    features: Float[Array, "*b d"], targets: Float[Array, "*b d"]
) -> Float[Array, "*b"]:
    """Computes the dot-regression loss 1/2 (cos(f, v_y) - 1)^2 (FedDr+, section 2.2).

    v_y is the vector of the true class.
    """
    chex.assert_equal_shape([features, targets])
    return 0.5 * (linalg.cosine(features, targets) - 1.0) ** 2


def pull_push(
    features: Float[Array, "*b d"], vectors: Float[Array, "c d"], labels: Int[Array, "*b"]
) -> tuple[Float[Array, "*b d"], Float[Array, "*b d"]]:
    """Computes the two forces whose sum is minus the gradient of cross-entropy (FedDr+, prop. 1).

    F_pull = (1 - p_y) v_y draws a feature to its class vector, F_push = -sum_{c != y} p_c v_c
    drives it from the others.
    """
    chex.assert_equal_shape_prefix([features, labels], labels.ndim)
    p = jax.nn.softmax(features @ vectors.T, axis=-1)
    onehot = jax.nn.one_hot(labels, len(vectors), dtype=p.dtype)
    return ((1 - p) * onehot) @ vectors, -(p * (1 - onehot)) @ vectors
