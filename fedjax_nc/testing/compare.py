"""Comparing states and other trees: which leaf differs, and by how much."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc.types import State

RTOL, ATOL = 1e-9, 1e-12  # what orders of summation may differ by in float64


class Copy(NamedTuple):
    """A state in numpy arrays; it outlives the donated one."""

    round: Any
    key: Any  # its bits
    weights: Any
    shared: Any
    clients: Any


def plain(value: Any) -> Any:
    """Returns any tree as numpy arrays; of a state, a copy."""
    if isinstance(value, State):
        own: Any = value
        value = Copy(
            own.round,
            own.key,
            weights=own.weights,
            shared=dict(own.shared),
            clients=dict(own.clients),
        )
    return jax.tree.map(_in_numpy, value)


def fresh(state: Any) -> Any:
    """Returns a copy that a round may donate."""
    return jax.tree.map(jnp.copy, state)


def identical(found: Any, expected: Any, when: str = "") -> None:
    """Asserts that two trees agree bit for bit; a NaN equals a NaN.

    Args:
      found: any tree of arrays, or a state.
      expected: another.
      when: what the message says before the leaf and the difference.
    """
    same(found, expected, when=when, rtol=0.0, atol=0.0)


def same(
    found: Any, expected: Any, when: str = "", *, rtol: float = RTOL, atol: float = ATOL
) -> float:
    """Asserts that two trees agree up to rounding, and returns the largest difference.

    Args:
      found: any tree of arrays, or a state.
      expected: another.
      when: what the message says before the leaf and the difference.
      rtol: allowed difference relative to the expected value.
      atol: allowed difference besides.
    """
    found, expected = plain(found), plain(expected)
    like(found, expected, when=when)
    bad, largest = [], 0.0
    for (path, x), y in zip(_leaves(found), jax.tree.leaves(expected), strict=True):
        close = np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=True)
        with np.errstate(invalid="ignore", over="ignore"):
            gaps = np.abs(np.subtract(x, y, dtype=np.result_type(x, y, float)))
        gap = float(np.max(gaps, initial=0.0, where=~np.isnan(gaps)))
        largest = max(largest, gap)
        if not close.all():
            at = int(np.argmax(~close))
            bad.append((path, gap, x.flat[at], y.flat[at]))
    if bad:
        path, gap, x, y = max(bad, key=lambda entry: entry[1])
        raise AssertionError(
            f"{_start(when)}{path} differs by up to {gap:.3g} ({x:.6g} instead of {y:.6g})"
            f"{_others(len(bad))}"
        )
    return largest


def like(found: Any, expected: Any, when: str = "") -> None:
    """Asserts that two trees have the same structure, shapes and dtypes."""
    found, expected = plain(found), plain(expected)
    names = [[path for path, _ in _leaves(tree)] for tree in (found, expected)]
    if names[0] != names[1]:
        odd = sorted(set(names[0]) ^ set(names[1]))
        raise AssertionError(f"{_start(when)}only one of the two has {', '.join(odd[:3])}")
    for (path, x), y in zip(_leaves(found), jax.tree.leaves(expected), strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise AssertionError(f"{_start(when)}{path} is {show(x)} instead of {show(y)}")


def differ(a: Any, b: Any) -> bool:
    """Returns whether any number of two trees differs."""
    leaves = zip(jax.tree.leaves(plain(a)), jax.tree.leaves(plain(b)), strict=True)
    return any(np.any(x != y) for x, y in leaves)


def not_finite(tree: Any) -> list[str]:
    """Lists the leaves that hold a NaN or an infinity."""
    return [path for path, x in _leaves(plain(tree)) if not np.isfinite(x).all()]


def show(x: Any) -> str:
    """Writes dtype and shape of an array: float64[3, 2]."""
    weak = " (weak)" if getattr(x, "weak_type", False) else ""
    return f"{x.dtype}[{', '.join(map(str, x.shape))}]{weak}"


def paths(tree: Any) -> list[str]:
    """Lists the names of a tree's leaves, such as weights/params/head/bias."""
    return [path for path, _ in _leaves(tree)]


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/") or "the value", leaf)
        for path, leaf in found
    ]


def _in_numpy(x: Any) -> np.ndarray:
    is_key = jnp.issubdtype(getattr(x, "dtype", float), jax.dtypes.prng_key)
    return np.array(jax.random.key_data(x) if is_key else x, copy=True)


def _start(when: str) -> str:
    return f"{when}, " if when else ""


def _others(count: int) -> str:
    return "" if count == 1 else f", and {count - 1} other arrays do"
