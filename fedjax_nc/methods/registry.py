"""From a specification string to a method; factories register themselves by decorator."""

import importlib
from collections.abc import Callable

from fedjax_nc.methods import catalogue
from fedjax_nc.methods.base import Method, Regulariser

BASES: dict[str, Callable[..., Method]] = {}
REGULARISERS: dict[str, Callable[..., Regulariser]] = {}


def base(factory: Callable[..., Method]) -> Callable[..., Method]:
    """Register a method that stands alone."""
    BASES[factory.__name__] = factory
    return factory


def regulariser(factory: Callable[..., Regulariser]) -> Callable[..., Regulariser]:
    """Register what may follow a bar; a name ending in _reg leaves the plain one to the method."""
    REGULARISERS[factory.__name__.removesuffix("_reg")] = factory
    return factory


def build(spec: str) -> Method:
    """The method "a(x=1) | b(y=2)" describes."""
    first, *rest = catalogue.parse(spec)
    for piece in (first, *rest):
        importlib.import_module(f"fedjax_nc.methods.{piece.entry.family}")
    method = BASES[first.entry.name](**first.kwargs)
    for piece in rest:
        method = REGULARISERS[piece.entry.name](**piece.kwargs)(method)
    return method._replace(name=catalogue.with_hyper(spec, {}))
