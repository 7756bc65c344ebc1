"""Federated learning under label skew, simulated in one jitted JAX round.

`import fedjax_nc as fnc`, then `fnc.run("fedetf")`. The names below are what is public; everything
else may change. They are imported when they are first used, so importing the package needs no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Every public name and where it lives; a name without a colon is a module.
PUBLIC = {
    # running
    "run": "fedjax_nc.api:run",
    "Result": "fedjax_nc.result:Result",
    "table": "fedjax_nc.result:table",
    "plot": "fedjax_nc.result:plot",
    "run_cells": "fedjax_nc.cli.sweep:run_cells",
    "Cell": "fedjax_nc.sweep.cells:Cell",
    "start": "fedjax_nc.devices:start",
    "UserError": "fedjax_nc.errors:UserError",
    # writing a method
    "Term": "fedjax_nc.methods.base:Term",
    "Phase": "fedjax_nc.methods.base:Phase",
    "Repeat": "fedjax_nc.methods.base:Repeat",
    "Part": "fedjax_nc.methods.base:Part",
    "Method": "fedjax_nc.methods.base:Method",
    "Context": "fedjax_nc.methods.base:Context",
    "HeadSpec": "fedjax_nc.types:HeadSpec",
    "Weights": "fedjax_nc.types:Weights",
    "add": "fedjax_nc.methods.base:add",
    "mix": "fedjax_nc.methods.base:mix",
    "per_example": "fedjax_nc.methods.base:per_example",
    "base": "fedjax_nc.methods.registry:base",
    "regulariser": "fedjax_nc.methods.registry:regulariser",
    "build": "fedjax_nc.methods.registry:build",
    "methods": "fedjax_nc.methods",
    "losses": "fedjax_nc.losses",
    # bringing data and networks along
    "model": "fedjax_nc.models.own:model",
    "register_dataset": "fedjax_nc.data.catalogue:register_dataset",
    "register_model": "fedjax_nc.models.catalogue:register_model",
    "partitioners": "fedjax_nc.data.partition",
    # writing one's own loop
    "prepare": "fedjax_nc.api:prepare",
    "first_state": "fedjax_nc.api:first_state",
    "evaluate": "fedjax_nc.api:evaluate",
    "make_round": "fedjax_nc.train.round:make_round",
    "make_hyper": "fedjax_nc.train.schedule:make_hyper",
    # checking what one wrote
    "testing": "fedjax_nc.testing",
}
__all__ = ["PUBLIC", "__version__", *PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from fedjax_nc import losses, methods, testing
    from fedjax_nc.api import evaluate, first_state, prepare, run
    from fedjax_nc.cli.sweep import run_cells
    from fedjax_nc.data import partition as partitioners
    from fedjax_nc.data.catalogue import register_dataset
    from fedjax_nc.devices import start
    from fedjax_nc.errors import UserError
    from fedjax_nc.methods.base import (
        Context,
        Method,
        Part,
        Phase,
        Repeat,
        Term,
        add,
        mix,
        per_example,
    )
    from fedjax_nc.methods.registry import base, build, regulariser
    from fedjax_nc.models.catalogue import register_model
    from fedjax_nc.models.own import model
    from fedjax_nc.result import Result, plot, table
    from fedjax_nc.sweep.cells import Cell
    from fedjax_nc.train.round import make_round
    from fedjax_nc.train.schedule import make_hyper
    from fedjax_nc.types import HeadSpec, Weights


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'fedjax_nc' has no attribute '{name}'")
    module, _, attribute = PUBLIC[name].partition(":")
    found = importlib.import_module(module)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names."""
    return sorted(__all__)
