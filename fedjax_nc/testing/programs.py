"""Reading a traced program: what it rounds, what it draws, and whether it is traced alike again."""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from fedjax_nc.testing import compare

HERE = Path(__file__).parent


def equations(program: Any, *outer: JaxprEqn) -> Iterator[tuple[JaxprEqn, ...]]:
    """Yields every equation of a traced function, before it those that it is inside of."""
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    for equation in jaxpr.eqns:
        yield *outer, equation
        for inner in _inside(equation):
            yield from equations(inner, *outer, equation)


def roundings(program: ClosedJaxpr) -> list[str]:
    """Lists where a number in float64 is made a shorter float."""
    found = []
    for *outer, equation in equations(program):
        if equation.primitive.name == "convert_element_type":
            old: Any = equation.invars[0].aval
            new: Any = equation.outvars[0].aval
            shorter = jnp.issubdtype(new.dtype, jnp.floating) and new.dtype != np.float64
            if old.dtype == np.float64 and shorter and not old.weak_type:  # which is a literal
                lines = filter(None, map(_line_of, (equation, *reversed(outer))))
                found.append(f"{new.dtype} in {next(lines, 'some place')}")
    return list(dict.fromkeys(found))


def draws_for_rows(program: ClosedJaxpr, rows: int) -> bool:
    """Returns whether random numbers are drawn in an array with an axis of this length."""
    shapes: list[Any] = [
        equation.outvars[0].aval
        for *_, equation in equations(program)
        if equation.primitive.name == "random_bits"
    ]
    return any(rows in drawn.shape for drawn in shapes)


def first_difference(one: ClosedJaxpr, other: ClosedJaxpr) -> str:
    """Returns what is different in two programs, or nothing where they are alike."""
    before, after = (_text(program).splitlines() for program in (one, other))
    if before != after:
        changes = difflib.unified_diff(before, after, n=0, lineterm="")
        lines = [line for line in changes if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        old, new = ([x[1:].strip() for x in lines if x[0] == sign][:1] for sign in "-+")
        return f"'{''.join(old)}' became '{''.join(new)}'"
    for x, y in zip(_constants(one), _constants(other), strict=True):
        try:
            compare.identical(y, x)
        except AssertionError as error:
            return f"a constant is another: {error}"
    return ""


def _inside(equation: JaxprEqn) -> Iterator[Any]:
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr | Jaxpr):
                yield item


def _constants(program: ClosedJaxpr) -> list[Any]:
    """Lists the arrays that a program holds, in the order in which they occur."""
    found = list(program.consts)
    for *_, equation in equations(program):
        for inner in _inside(equation):
            found += inner.consts if isinstance(inner, ClosedJaxpr) else []
    return found


def _text(program: ClosedJaxpr) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(program))  # of functions


def _line_of(equation: JaxprEqn) -> str:
    """Returns the innermost line that an equation comes from, if possible outside the package."""
    inside = ""
    for frame in equation.source_info.traceback.frames if equation.source_info.traceback else ():
        path = Path(frame.file_name)
        if path.parent == HERE:  # who called what is traced
            break
        line = f"{path.name}, line {frame.line_num}"
        if HERE.parent in path.parents:
            inside = inside or line
        elif "site-packages" not in path.parts:
            return line
    return inside
