"""Several seeds as one program: states and results always have a leading axis of seeds."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_nc.types import FederatedData

_SHARED: Any = None  # `jax.vmap`'s word for an input that has no axis of seeds


class Seeds(NamedTuple):
    """How many seeds a program runs, and which tables of the data each seed has of its own."""

    count: int = 1
    data: FederatedData = FederatedData(*[_SHARED] * 5)  # axes, as `jax.vmap` takes them

    def over(self, fn: Callable[..., Any], axes: Sequence[Any]) -> Callable[..., Any]:
        """Maps a function of one seed over all of them.

        A single seed is computed without the axis, which is taken off the inputs and put on the
        outputs: its program, and so every bit of its numbers, is that of the plain function.

        Args:
          fn: a function of one seed's inputs.
          axes: for each input 0 where it has an axis of seeds, else None (prefixes are allowed).
        """
        if self.count > 1:
            return jax.vmap(fn, tuple(axes))

        def alone(*args: Any) -> Any:
            own = [first(x) if axis == 0 else x for x, axis in zip(args, axes, strict=True)]
            return lead(fn(*own))

        return alone

    def one_by_one(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Applies a function to each seed's inputs in turn, for what cannot be batched."""
        return lead(fn(first(inputs))) if self.count == 1 else lax.map(fn, inputs)


ONE = Seeds()


def own_tables() -> FederatedData:
    """Returns the axes of data in which every seed has its own partition."""
    own: Any = 0
    return FederatedData(pool=_SHARED, train=own, client_test=own, test=_SHARED, class_counts=own)


def first(arrays: Any) -> Any:
    """Takes the axis of a single seed off every leaf."""
    return jax.tree.map(lambda x: jnp.squeeze(x, 0), arrays)


def lead(arrays: Any) -> Any:
    """Puts the axis of a single seed in front of every leaf."""
    return jax.tree.map(lambda x: jnp.expand_dims(x, 0), arrays)


def take(arrays: Any, seed: int) -> Any:
    """Returns one seed's part of arrays that have the axis."""
    return jax.tree.map(lambda x: x[seed], arrays)
