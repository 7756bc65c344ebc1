"""Arithmetic on parameter trees; what optax.tree has is used from there."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from optax.tree_utils import tree_add as add
from optax.tree_utils import tree_scale as scale
from optax.tree_utils import tree_sub as sub
from optax.tree_utils import tree_zeros_like as zeros_like

__all__ = ["Packed", "add", "all_finite", "dot", "num_bytes", "num_elements", "pack", "pick",
           "put", "repeat", "scale", "select", "sq_distance", "sub", "sum_leading", "take",
           "unpack", "zeros", "zeros_like"]  # fmt: skip


@partial(jax.tree_util.register_dataclass, data_fields=("vectors",), meta_fields=("shape",))
@dataclass(frozen=True)
class Packed:
    """A tree as one vector of each dtype, and what it was.

    What is done to every leaf is an operation of its own in the program, which for hundreds of
    leaves takes longer to trace and to load than the network.
    """

    vectors: dict[str, Any]  # also of shapes alone
    shape: Any  # the structure, and shape and dtype of every leaf


def pack(tree: Any) -> Packed:
    """All leaves end to end."""
    leaves, structure = jax.tree.flatten(tree)
    shapes = tuple((x.shape, x.dtype.name) for x in leaves)
    vectors = {
        d: [lax.reshape(x, (x.size,)) for x in leaves if x.dtype == d]
        for d in sorted({d for _, d in shapes})
    }
    return Packed({d: lax.concatenate(v, 0) for d, v in vectors.items()}, (structure, shapes))


def unpack(packed: Packed) -> Any:
    """The tree that was packed."""
    (structure, shapes), begin, leaves = packed.shape, dict.fromkeys(packed.vectors, 0), []
    for shape, dtype in shapes:
        end = begin[dtype] + math.prod(shape)
        part = lax.slice_in_dim(packed.vectors[dtype], begin[dtype], end)
        leaves.append(lax.reshape(part, shape))
        begin[dtype] = end
    return jax.tree.unflatten(structure, leaves)


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
