"""Consistency of a network's parts: class vectors and soft labels, narrow and wide stages."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedjax_nc import linalg


def class_relations(vectors: Float[Array, "c d"]) -> Float[Array, "c c"]:
    """Computes FedDW's class-relation matrix: the softmax of every row of W W^T."""
    return jax.nn.softmax(vectors @ vectors.T, axis=-1)


def soft_label_consistency(
    soft_labels: Float[Array, "c c"], relations: Float[Array, "c c"], seen: Bool[Array, " c"]
) -> Float[Array, ""]:
    """Computes (1/C^2) |S - R|_F^2 over the rows of classes that were seen (FedDW, eq. 11)."""
    chex.assert_equal_shape([soft_labels, relations])
    rows = jnp.sum((soft_labels - relations) ** 2, axis=-1)
    return jnp.sum(jnp.where(seen, rows, 0.0)) / soft_labels.size


def linearised_gram(
    vectors: Float[Array, "c d"], reference: Float[Array, "c d"]
) -> Float[Array, "c c"]:
    """Computes W W^T to first order around a reference, for a convex term (FedDW, eq. 26-30).

    With A = W^T: A0^T A + A^T A0 - A0^T A0. The paper leaves the softmax out here.
    """
    chex.assert_equal_shape([vectors, reference])
    cross = reference @ vectors.T
    return cross + cross.T - reference @ reference.T


def transmitting_matrix(
    before: Float[Array, "b h w a"], after: Float[Array, "b k l f"]
) -> Float[Array, "b a f"]:
    """Correlates the channels before a stage with those after it (FedAlign, section 4).

    X = A F^T / (positions), with A averaged down to F's size if it is larger.
    """
    chex.assert_equal_shape_prefix([before, after], 1)
    rows, columns = (
        _averaging(n, m) for n, m in zip(before.shape[1:3], after.shape[1:3], strict=True)
    )
    pooled = jnp.einsum("kh,lw,bhwa->bkla", rows, columns, before)
    return jnp.einsum("bkla,bklf->baf", pooled, after) / (after.shape[1] * after.shape[2])


def spectral_norm(x: Float[Array, "b m n"], iterations: int = 10) -> Float[Array, " b"]:
    """Computes each matrix's largest singular value by power iteration on X X^T from ones.

    It is differentiated through the iterations, as in FedAlign's code.
    """
    gram = x @ jnp.swapaxes(x, 1, 2)
    vector, size = jnp.ones(x.shape[:2], x.dtype), jnp.ones(x.shape[0], x.dtype)
    for _ in range(iterations):
        vector = jnp.einsum("bij,bj->bi", gram, vector)
        size = linalg.safe_norm(vector)
        vector = vector / size[:, None]
    return jnp.sqrt(size)


def _averaging(size: int, target: int) -> Float[Array, "t s"]:
    """Returns the matrix of PyTorch's adaptive average pooling along an axis; never enlarges it."""
    target = min(size, target)
    matrix = np.zeros((target, size), np.float32)
    for i in range(target):
        start, end = i * size // target, -(-(i + 1) * size // target)
        matrix[i, start:end] = 1 / (end - start)
    return jnp.asarray(matrix)
