"""From a specification string to a method; factories register themselves by decorator."""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

from fedjax_nc.errors import UserError
from fedjax_nc.methods import catalogue
from fedjax_nc.methods.base import Method, Regulariser
from fedjax_nc.methods.catalogue import Piece
from fedjax_nc.methods.entry import Entry, from_function

P = ParamSpec("P")
FACTORIES: dict[tuple[str, str, str], Callable[..., Any]] = {}  # by kind, name and origin


def base(factory: Callable[P, Method]) -> Callable[P, Method]:
    """Registers a method that stands alone, in the package or in any other file.

    The keyword arguments are its hyperparameters and the docstring is its manual page. The methods
    it returns are named by their specification.
    """
    entry = _entry(factory, "base")

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Method:
        piece = _piece(entry, factory, args=args, kwargs=kwargs)
        method = factory(**piece.kwargs)  # type: ignore[call-arg]
        if not isinstance(method, Method):
            raise UserError(f"{_place(entry)} returns {type(method).__name__}: return a Method")
        return method._replace(name=catalogue.show(piece))

    FACTORIES["base", entry.name, entry.origin] = make
    return make


def regulariser(factory: Callable[P, Regulariser]) -> Callable[P, Regulariser]:
    """Registers what may follow a bar: a factory of functions from a method to a method.

    A name ending in `_reg` leaves the plain one to the base method.
    """
    entry = _entry(factory, "regulariser")

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Regulariser:
        piece = _piece(entry, factory, args=args, kwargs=kwargs)
        change = factory(**piece.kwargs)  # type: ignore[call-arg]
        if isinstance(change, Method) or not callable(change):
            raise UserError(
                f"{_place(entry)} returns {type(change).__name__}: return a function of a Method"
            )

        def apply(method: Method) -> Method:
            changed = change(method)
            if not isinstance(changed, Method):
                raise UserError(
                    f"{_place(entry)} makes {type(changed).__name__} of a method: make a Method"
                )
            return changed._replace(name=f"{method.name} | {catalogue.show(piece)}")

        return apply

    FACTORIES["regulariser", entry.name, entry.origin] = make
    return make


def build(spec: str) -> Method:
    """Builds the method that "a(x=1) | b(y=2)" describes."""
    first, *rest = catalogue.parse(spec)
    method = factory_of(first.entry)(**first.kwargs)
    for piece in rest:
        method = factory_of(piece.entry)(**piece.kwargs)(method)
    return method


def factory_of(entry: Entry) -> Callable[..., Any]:
    """Returns the factory of an entry, after importing the file it lives in."""
    if entry.load:
        entry.load()
    key = (entry.kind, entry.name, entry.origin)
    if key not in FACTORIES:
        raise UserError(
            f"{_place(entry)} is decorated with a '{entry.kind}' of another library: use "
            f"fedjax_nc.{entry.kind}"
        )
    return FACTORIES[key]


def _entry(factory: Callable, kind: str) -> Entry:
    module = sys.modules.get(factory.__module__)
    path = getattr(module, "__file__", None)  # a notebook has none
    origin = str(Path(path).resolve()) if path else factory.__module__
    return catalogue.add(from_function(factory, kind, origin=origin))


def _piece(entry: Entry, factory: Callable, args: tuple, kwargs: dict[str, Any]) -> Piece:
    for name in kwargs:
        catalogue.checked(entry, name, value=kwargs[name])  # before Python complains of a typo
    given = inspect.signature(factory).bind(*args, **kwargs).arguments
    return Piece(entry, {k: catalogue.checked(entry, k, value=v) for k, v in given.items()})


def _place(entry: Entry) -> str:
    return f"{entry.function} in {entry.origin}"
