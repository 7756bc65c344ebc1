"""Arithmetic on parameter trees; what optax has is imported from there."""

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
    """A tree as one vector per dtype, with what is needed to unpack it.

    An operation on a tree is one operation per leaf in the program, and hundreds of them take
    longer to trace and to load than the network itself.
    """

    vectors: dict[str, Any]  # by dtype; arrays or their shapes
    shape: Any  # the structure, and shape and dtype of every leaf


def pack(tree: Any) -> Packed:
    """Puts all leaves of a dtype end to end."""
    leaves, structure = jax.tree.flatten(tree)
    shapes = tuple((x.shape, x.dtype.name) for x in leaves)
    vectors = {
        d: [lax.reshape(x, (x.size,)) for x in leaves if x.dtype == d]
        for d in sorted({d for _, d in shapes})
    }
    return Packed({d: lax.concatenate(v, 0) for d, v in vectors.items()}, (structure, shapes))


def unpack(packed: Packed) -> Any:
    """Returns the tree that was packed."""
    (structure, shapes), begin, leaves = packed.shape, dict.fromkeys(packed.vectors, 0), []
    for shape, dtype in shapes:
        end = begin[dtype] + math.prod(shape)
        part = lax.slice_in_dim(packed.vectors[dtype], begin[dtype], end)
        leaves.append(lax.reshape(part, shape))
        begin[dtype] = end
    return jax.tree.unflatten(structure, leaves)


def sq_distance(a: Any, b: Any) -> jax.Array:
    """Computes the sum of squared differences over all leaves, which is smooth at a == b."""
    return sum((jnp.sum((x - y) ** 2) for x, y in _pairs(a, b)), start=jnp.zeros(()))


def dot(a: Any, b: Any) -> jax.Array:
    """Computes the inner product over all leaves."""
    return sum((jnp.sum(x * y) for x, y in _pairs(a, b)), start=jnp.zeros(()))


def select(condition: jax.Array, a: Any, b: Any) -> Any:
    """Returns `a` if the scalar condition holds, else `b`; NaN in the other does no harm."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def pick(tree: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Returns the entries of a dict under these keys, in the dict's order."""
    return {k: tree[k] for k in tree if k in keys}


def take(tree: Any, ids: Any) -> Any:
    """Returns rows `ids` of every leaf."""
    return jax.tree.map(lambda x: x[ids], tree)


def put(tree: Any, ids: Any, rows: Any) -> Any:
    """Replaces rows `ids` of every leaf: in a copy, but in place if it is numpy's (host memory)."""

    def put_leaf(x, new):
        if isinstance(x, jax.Array):
            return x.at[ids].set(new)
        x[ids] = new
        return x

    return jax.tree.map(put_leaf, tree, rows)


def repeat(tree: Any, count: int) -> Any:
    """Repeats every leaf `count` times along a new leading axis."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def zeros(shapes: Any, *leading: int) -> Any:
    """Returns zeros in the shapes of a tree's leaves, with `leading` axes in front."""
    return jax.tree.map(lambda x: jnp.zeros((*leading, *x.shape), x.dtype), shapes)


def sum_leading(tree: Any) -> Any:
    """Sums every leaf over its leading axis."""
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), tree)


def all_finite(tree: Any) -> jax.Array:
    """Returns whether no leaf holds a NaN or an infinity."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def num_elements(tree: Any) -> int:
    """Counts the scalars in all leaves."""
    return sum(x.size for x in jax.tree.leaves(tree))


def num_bytes(tree: Any) -> int:
    """Computes the memory of all leaves, arrays or their shapes, in bytes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _pairs(a, b):
    return zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
