"""Linear algebra that stays finite: the only norms the project uses."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def safe_norm(x: Float[Array, "*b d"], eps: float = 1e-12) -> Float[Array, "*b"]:
    """Euclidean norm over the last axis, at least `eps`; its gradient at zero is zero, not NaN."""
    sq = jnp.sum(x * x, axis=-1)
    above = sq > eps * eps
    # the inner where keeps the derivative of sqrt away from zero, the outer one picks the value
    return jnp.where(above, jnp.sqrt(jnp.where(above, sq, 1.0)), eps)


def normalise(x: Float[Array, "*b d"], eps: float = 1e-12) -> Float[Array, "*b d"]:
    """Unit vectors along the last axis; the zero vector stays zero."""
    return x / safe_norm(x, eps)[..., None]


def cosine(a: Float[Array, "*b d"], b: Float[Array, "*b d"]) -> Float[Array, "*b"]:
    """Cosine similarity over the last axis; zero when a vector is zero."""
    return jnp.sum(normalise(a) * normalise(b), axis=-1)


def simplex_etf(seed: Float[Array, "d c"]) -> Float[Array, "d c"]:
    """Simplex equiangular tight frame: unit columns with pairwise cosine -1/(C-1).

    V = sqrt(C/(C-1)) Q (I - 11^T/C), with Q the orthonormal factor of `seed` (FedETF, eq. 3).
    """
    classes = seed.shape[1]
    centring = jnp.eye(classes, dtype=seed.dtype) - 1.0 / classes
    return jnp.sqrt(classes / (classes - 1.0)) * orthonormal(seed) @ centring


def orthonormal(seed: Float[Array, "d c"]) -> Float[Array, "d c"]:
    """Orthonormal columns spanning those of `seed`."""
    q, _ = jnp.linalg.qr(seed)
    return q
