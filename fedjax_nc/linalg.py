"""Linear algebra that stays finite, also for zero vectors and singular matrices."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float


def safe_norm(x: Float[Array, "*b d"], eps: float = 1e-12) -> Float[Array, "*b"]:
    """Computes the norm over the last axis, at least `eps`; its gradient at zero is zero."""
    return safe_sqrt(jnp.sum(x * x, axis=-1), eps)


def safe_sqrt(sq: Float[Array, "*b"], eps: float = 1e-12) -> Float[Array, "*b"]:
    """Computes the square root, at least `eps`; its gradient at zero is zero."""
    above = sq > eps * eps
    # the inner where keeps the derivative of sqrt away from zero, the outer one picks the value
    return jnp.where(above, jnp.sqrt(jnp.where(above, sq, 1.0)), eps)


def normalise(x: Float[Array, "*b d"], eps: float = 1e-12) -> Float[Array, "*b d"]:
    """Scales vectors along the last axis to length one; the zero vector stays zero."""
    return x / safe_norm(x, eps)[..., None]


def cosine(a: Float[Array, "*b d"], b: Float[Array, "*b d"]) -> Float[Array, "*b"]:
    """Computes the cosine similarity over the last axis; zero if a vector is zero."""
    return jnp.sum(normalise(a) * normalise(b), axis=-1)


def simplex_etf(seed: Float[Array, "d c"]) -> Float[Array, "d c"]:
    """Computes a simplex equiangular tight frame: unit columns with pairwise cosine -1/(C-1).

    V = sqrt(C/(C-1)) Q (I - 11^T/C), with Q the orthonormal factor of `seed` (FedETF, eq. 3). In
    C - 1 dimensions, the fewest that hold it, Q is left out: the rows are an orthonormal basis of
    what is orthogonal to the ones.
    """
    width, classes = seed.shape
    scale = jnp.sqrt(classes / (classes - 1.0))
    if width == classes - 1:
        ones = jnp.ones((1, classes), seed.dtype)
        return scale * orthonormal(jnp.concatenate([ones, seed]).T)[:, 1:].T
    centring = jnp.eye(classes, dtype=seed.dtype) - 1.0 / classes
    return scale * orthonormal(seed) @ centring


def _log_det(gram: Float[Array, "n n"], jitter: float) -> Float[Array, ""]:
    """Computes log det(gram + jitter I) of a positive semi-definite matrix, by Cholesky.

    If rounding makes that indefinite, as collinear features do in float32, the jitter grows to a
    hundred-thousandth of the trace: a coarser number instead of NaN.
    """
    return _log_det_fwd(gram, jitter)[0]


def _log_det_fwd(gram, jitter):
    eye = jnp.eye(len(gram), dtype=gram.dtype)
    root = jnp.linalg.cholesky(gram + jitter * eye)
    coarse = jnp.linalg.cholesky(gram + (jitter + 1e-5 * jnp.trace(gram)) * eye)
    root = jnp.where(jnp.all(jnp.isfinite(root)), root, coarse)
    return 2 * jnp.sum(jnp.log(jnp.diagonal(root))), root


def _log_det_bwd(jitter, root, cotangent):
    del jitter
    eye = jnp.eye(len(root), dtype=root.dtype)
    inverse_root = solve_triangular(root, eye, lower=True)
    return (cotangent * inverse_root.T @ inverse_root,)


# its own gradient, since that of the root not taken is NaN
log_det = jax.custom_vjp(_log_det, nondiff_argnums=(1,))
log_det.defvjp(_log_det_fwd, _log_det_bwd)


def orthonormal(seed: Float[Array, "d c"]) -> Float[Array, "d c"]:
    """Computes orthonormal columns that span those of `seed`."""
    q, _ = jnp.linalg.qr(seed)
    return q


# Under vmap the two below take one matrix after another: jaxlib 0.10.2 deals a batch of LAPACK
# calls to the very threads that wait for it, and a program on as many devices never ends.


def _root(covariance: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Computes R with R R^T = covariance, also for a singular one."""
    values, vectors = jnp.linalg.eigh(covariance)
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))


def _solve(a: Float[Array, "d d"], b: Float[Array, "d c"]) -> Float[Array, "d c"]:
    """Computes X with a X = b."""
    return jnp.linalg.solve(a, b)


root = jax.custom_batching.sequential_vmap(_root)
solve = jax.custom_batching.sequential_vmap(_solve)
