"""Floating-point operations counted on the jaxpr, with loop lengths multiplied in.

The count is a textbook's. Numbers that no result needs are left out, such as the gradient by the
images, which a layer's own rule computes unasked. The convolution of a gradient is not charged for
the zeros it multiplies.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval


def count(fn: Callable[..., Any], *args: Any) -> int:
    """Counts the operations of products and convolutions in fn(*args), two for a multiply-add."""
    return _count(used(fn, *args)[0])


def used(fn: Callable[..., Any], *args: Any) -> tuple[core.Jaxpr, Any]:
    """Returns what fn(*args) computes without what its result ignores, and what of args it reads.

    The second is shaped like the arguments, with a bool in place of each array.
    """
    closed: Any = jax.make_jaxpr(fn)(*args)
    plain = getattr(closed, "jaxpr", closed)  # one since jax 0.12
    jaxpr, reads = partial_eval.dce_jaxpr(plain, True)
    return jaxpr, jax.tree.unflatten(jax.tree.structure(args), reads)


def _count(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        shapes: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        if name == "dot_general":
            (contract, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(shapes[0].shape[d] for d in contract)
            total += 2 * depth * shapes[-1].size
        elif name == "conv_general_dilated":
            total += 2 * _convolution(eqn.params["dimension_numbers"], *shapes)
        elif name == "while":
            if _count(eqn.params["body_jaxpr"]):
                raise ValueError("a while loop's length is unknown: count its body instead")
        elif name == "cond":
            total += max(_count(branch) for branch in eqn.params["branches"])
        else:
            times = eqn.params["length"] if name == "scan" else 1
            total += times * sum(_count(j) for j in _inner(eqn.params))
    return total


def _convolution(numbers: Any, x: Any, kernel: Any, y: Any) -> int:
    """Counts multiply-adds; a tap of the kernel meets no more numbers than the input has."""
    taps = kernel.size // kernel.shape[numbers.rhs_spec[0]]
    batch, features, *sides = (y.shape[d] for d in numbers.out_spec)
    inputs = (x.shape[d] for d in numbers.lhs_spec[2:])
    return taps * batch * features * math.prod(map(min, sides, inputs))


def _inner(params: dict[str, Any]) -> list[core.Jaxpr | core.ClosedJaxpr]:
    found = []
    for value in params.values():
        items = value if isinstance(value, tuple | list) else (value,)
        found += [item for item in items if isinstance(item, core.Jaxpr | core.ClosedJaxpr)]
    return found
