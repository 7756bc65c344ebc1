"""Running properties one after another: what is shown meanwhile, and what is left to read."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

Property = Callable[[Any], str]  # of what is on trial; says in a few words what it saw


class Absent(Exception):
    """Says why a property does not apply."""


@dataclass(frozen=True)
class Row:
    """What came of one property."""

    seconds: float
    text: str


@dataclass(frozen=True)
class Report:
    """What came of every property, in order; it prints as a table."""

    name: str  # of what was checked
    rows: dict[str, Row] = field(default_factory=dict)

    def __str__(self) -> str:
        """Writes one line for each property."""
        seconds = sum(row.seconds for row in self.rows.values())
        width = max(map(len, self.rows), default=0)
        lines = [f"{n:<{width}}  {r.seconds:5.1f} s  {r.text}" for n, r in self.rows.items()]
        return "\n".join([f"{self.name}: {len(self.rows)} properties in {seconds:.0f} s", *lines])

    __repr__ = __str__  # what a notebook shows


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """Computes in float64 and compiles fast rather than well; both are put back afterwards."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with jax.enable_x64(True):
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def hold(fn: Property, trial: Any, *, what: str) -> str:
    """Checks one property; the error of one that does not hold says whose and which it is.

    Args:
      fn: the property.
      trial: what it is a function of.
      what: the property's name.
    """
    try:
        with double_precision():
            return fn(trial)
    except AssertionError as error:
        raise AssertionError(f"{trial.name}, '{what}': {error}") from error
    except Absent:
        raise
    except Exception as error:
        error.add_note(f"while checking '{what}' of {trial.name}")
        raise


def check(properties: Mapping[str, Property], make: Callable[[], Any]) -> Report:
    """Checks properties in order and shows on stderr which one is being computed.

    Args:
      properties: by their names.
      make: makes what they are functions of, an object with a name.
    """
    with double_precision():
        trial = make()
    report = Report(trial.name)
    for number, (what, fn) in enumerate(properties.items(), 1):
        with _shown(f"checking {trial.name}: {what} ({number}/{len(properties)})"):
            begin = time.perf_counter()
            try:
                text = hold(fn, trial, what=what)
            except Absent as reason:
                text = f"left out: {reason}"
            report.rows[what] = Row(time.perf_counter() - begin, text)
    return report


def as_tests(properties: Mapping[str, Property], make: Callable[[], Any]) -> Any:
    """Makes a parametrised pytest function, one test for each property."""
    import pytest

    trials = []

    @pytest.mark.parametrize("what", list(properties))
    def test(what: str) -> None:
        if not trials:
            with double_precision():
                trials.append(make())
        try:
            hold(properties[what], trials[0], what=what)
        except Absent as reason:
            pytest.skip(str(reason))

    return test


@contextlib.contextmanager
def _shown(text: str) -> Iterator[None]:
    """Shows a line while something is computed; a terminal forgets it afterwards."""
    terminal = sys.stderr.isatty()
    print(text, end="" if terminal else "\n", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
