"""Arithmetic on parameter trees; what optax.tree has is used from there."""

from typing import Any

import jax
import jax.numpy as jnp
from optax.tree_utils import tree_add as add
from optax.tree_utils import tree_scale as scale
from optax.tree_utils import tree_sub as sub
from optax.tree_utils import tree_zeros_like as zeros_like

__all__ = ["add", "all_finite", "dot", "num_bytes", "num_elements", "pick", "put", "repeat",
           "scale", "select", "sq_distance", "sub", "sum_leading", "take", "zeros",
           "zeros_like"]  # fmt: skip


def sq_distance(a: Any, b: Any) -> jax.Array:
    """Sum of squared differences over all leaves. A sum of squares, so smooth at a == b."""
    return sum((jnp.sum((x - y) ** 2) for x, y in _pairs(a, b)), start=jnp.zeros(()))


def dot(a: Any, b: Any) -> jax.Array:
    """Inner product over all leaves."""
    return sum((jnp.sum(x * y) for x, y in _pairs(a, b)), start=jnp.zeros(()))


def select(condition: jax.Array, a: Any, b: Any) -> Any:
    """`a` where the scalar condition holds, else `b`; never mixes in the other's NaN."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def pick(tree: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """The entries of a dict under these keys."""
    return {k: tree[k] for k in tree if k in keys}


def take(tree: Any, ids: Any) -> Any:
    """Rows `ids` of every leaf."""
    return jax.tree.map(lambda x: x[ids], tree)


def put(tree: Any, ids: Any, rows: Any) -> Any:
    """Copy of `tree` with rows `ids` replaced; numpy leaves (host memory) are written in place."""

    def one(x, r):
        if isinstance(x, jax.Array):
            return x.at[ids].set(r)
        x[ids] = r
        return x

    return jax.tree.map(one, tree, rows)


def repeat(tree: Any, count: int) -> Any:
    """So many copies of every leaf along a new leading axis."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def zeros(shapes: Any, *leading: int) -> Any:
    """Zeros of these shapes, with leading axes in front."""
    return jax.tree.map(lambda x: jnp.zeros((*leading, *x.shape), x.dtype), shapes)


def sum_leading(tree: Any) -> Any:
    """Sum over the leading axis of every leaf."""
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), tree)


def all_finite(tree: Any) -> jax.Array:
    """Whether no leaf holds a NaN or an infinity."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def num_elements(tree: Any) -> int:
    """Number of scalars in all leaves."""
    return sum(x.size for x in jax.tree.leaves(tree))


def num_bytes(tree: Any) -> int:
    """Memory of all leaves, also of abstract ones."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _pairs(a, b):
    return zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
