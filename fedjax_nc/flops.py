"""Floating-point operations counted on the jaxpr, with loop lengths multiplied in."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core


def count(fn: Callable[..., Any], *args: Any) -> int:
    """Multiply-adds (two operations each) of matrix products and convolutions in fn(*args)."""
    return _count(jax.make_jaxpr(fn)(*args).jaxpr)


def _count(jaxpr: core.Jaxpr) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        shapes: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        if name == "dot_general":
            (contract, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(shapes[0].shape[d] for d in contract)
            total += 2 * depth * shapes[-1].size
        elif name == "conv_general_dilated":
            numbers = eqn.params["dimension_numbers"]
            kernel = shapes[1].shape
            per_output = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
            total += 2 * per_output * shapes[-1].size
        elif name == "while":
            if _count(eqn.params["body_jaxpr"].jaxpr):
                raise ValueError("a while loop's length is unknown: count its body instead")
        elif name == "cond":
            total += max(_count(branch.jaxpr) for branch in eqn.params["branches"])
        else:
            times = eqn.params["length"] if name == "scan" else 1
            total += times * sum(_count(j) for j in _inner(eqn.params))
    return total


def _inner(params: dict[str, Any]) -> list[core.Jaxpr]:
    found = []
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, core.Jaxpr):
                found.append(item)
    return found
