"""Classification losses: one value per example, the caller averages."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_nc import linalg


def cross_entropy(logits: Float[Array, "*b c"], labels: Int[Array, "*b"]) -> Float[Array, "*b"]:
    """-log softmax(logits)_y."""
    chex.assert_equal_shape_prefix([logits, labels], labels.ndim)
    log_p = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]


def log_prior(counts: Float[Array, " c"]) -> Float[Array, " c"]:
    """log n_c with absent classes counted once, as FedETF's released code does."""
    return jnp.log(jnp.maximum(counts, 1.0))


def balanced_softmax(
    logits: Float[Array, "*b c"],
    labels: Int[Array, "*b"],
    counts: Float[Array, " c"],
    gamma: float = 1.0,
) -> Float[Array, "*b"]:
    """Cross-entropy on logits shifted by the class frequencies (FedETF, eq. 6).

    CE(z + gamma log n, y): a frequent class must win by a margin.

    Args:
      logits: scaled similarities, beta v_c . mu.
      labels: true classes.
      counts: samples of each class on this client; 0 is allowed.
      gamma: strength; 0 gives plain cross-entropy.
    """
    chex.assert_equal_shape_suffix([logits, counts], 1)
    return cross_entropy(logits + gamma * log_prior(counts), labels)


def dot_regression(
    features: Float[Array, "*b d"], targets: Float[Array, "*b d"]
) -> Float[Array, "*b"]:
    """Half squared gap between the cosine to the true class vector and one (FedDr+, section 2.2).

    L_DR = 1/2 (cos(f, v_y) - 1)^2.
    """
    chex.assert_equal_shape([features, targets])
    return 0.5 * (linalg.cosine(features, targets) - 1.0) ** 2
