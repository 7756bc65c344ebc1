"""Losses against a frozen model's outputs: one value per example, the caller averages."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_nc import linalg


def feature_l2(student: Float[Array, "*b d"], teacher: Float[Array, "*b d"]) -> Float[Array, "*b"]:
    """Squared distance of the raw features, divided by their dimension (FedDr+, section 3.2)."""
    chex.assert_equal_shape([student, teacher])
    return jnp.mean((student - teacher) ** 2, axis=-1)


def model_contrastive(
    z: Float[Array, "*b p"],
    z_global: Float[Array, "*b p"],
    z_previous: Float[Array, "*b p"],
    tau: float,
) -> Float[Array, "*b"]:
    """Pull towards the global model's projection, push from the previous local one (MOON, eq. 3).

    -log( e^{s+/tau} / (e^{s+/tau} + e^{s-/tau}) ) with cosine similarities s.
    """
    chex.assert_equal_shape([z, z_global, z_previous])
    positive, negative = linalg.cosine(z, z_global), linalg.cosine(z, z_previous)
    return jax.nn.softplus((negative - positive) / tau)
