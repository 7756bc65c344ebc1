"""Checksums of the arrays of a state."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np


def of(content: Any) -> dict[str, str]:
    """Returns dtype, shape and sha256 of every array, by its place in the tree.

    Of one that is divided over processes it is that of the rows which this process has, whose
    numbers are in the name: all processes together tell of all rows.
    """
    return {
        name + rows: f"{_kind(x)} {_checksum(part)}"
        for name, x in _named(content)
        for rows, part in _parts(x)
    }


def changed(saved: Mapping[str, str], content: Any) -> str:
    """Returns the name of an array that is not what was saved, or nothing."""
    arrays = dict(_named(content))
    for name, told in saved.items():
        base, _, rows = name.removesuffix("]").partition("[")
        if base not in arrays:
            return name
        x = np.asarray(arrays[base])
        try:
            part = x[slice(*map(int, rows.split(":")))] if rows else x
        except (ValueError, TypeError, IndexError):  # they are no rows
            return name
        if f"{_kind(x)} {_checksum(part)}" != told:
            return name
    return ""


def other_kind(saved: Mapping[str, str], like: Any) -> str:
    """Returns how saved arrays are of another dtype or shape than those that are wanted, if any."""
    wanted = None if like is None else {name: _kind(x) for name, x in _named(like)}
    kinds = {name.partition("[")[0]: text.rpartition(" ")[0] for name, text in saved.items()}
    if wanted is None or wanted == kinds:
        return ""
    name = min(n for n in wanted.keys() | kinds.keys() if wanted.get(n) != kinds.get(n))
    return f"other arrays ({name} was {kinds.get(name)}, is {wanted.get(name)})"


def _parts(x: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what this process tells of an array, with the rows it is of."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        yield "", np.asarray(x)
        return
    for shard in x.addressable_shards:
        if shard.replica_id == 0:
            first, end, _ = shard.index[0].indices(len(x))
            yield f"[{first}:{end}]", np.asarray(shard.data)


def _named(content: Any) -> list[tuple[str, Any]]:
    """Returns the arrays by their place, the same for a record and for the dict it is read as."""

    def part(key: Any) -> str:
        return str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))))

    leaves = jax.tree_util.tree_leaves_with_path(content)
    return [("/".join(map(part, path)), x) for path, x in leaves]


def _checksum(x: np.ndarray) -> str:
    flat = np.ascontiguousarray(x).reshape(-1).view(np.uint8)  # bfloat16 has no buffer
    return hashlib.sha256(flat.data).hexdigest()


def _kind(x: Any) -> str:
    return f"{x.dtype} {'x'.join(map(str, x.shape)) or 'scalar'}"
