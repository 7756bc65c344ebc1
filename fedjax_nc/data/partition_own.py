"""Partitions by a function from outside the package."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_nc.data.partition import Partition
from fedjax_nc.errors import UserError


def deal(
    partitioner: Callable[..., Any], labels: np.ndarray, *, clients: int, seed: int
) -> Partition:
    """Calls a partitioner and refuses what is no partition.

    Args:
      partitioner: takes (labels, clients, seed), or fewer of them, and returns a list of indices
        for each client, no index twice. Examples may be left out.
      labels: of the training examples.
      clients: the number of clients.
      seed: of the partition.

    Returns:
      The indices of each client's examples.
    """
    name = getattr(partitioner, "__name__", "partitioner")
    parts = _call(partitioner, name, labels=labels.copy(), clients=clients, seed=seed)
    try:
        made = [np.asarray(part) if len(part) else np.zeros(0, np.int64) for part in parts]
    except (TypeError, ValueError):
        made = []
    if not made or any(part.ndim != 1 or part.dtype.kind not in "iu" for part in made):
        raise UserError(
            f"partition '{name}' returns {type(parts).__name__}: return a list with a list of "
            "indices for each client"
        )
    if len(made) != clients:
        raise UserError(
            f"partition '{name}' returns {len(made)} clients, the run has {clients}: pass "
            f"--federation.clients={len(made)}"
        )
    for client, part in enumerate(made):
        if len(part) and not 0 <= part.min() <= part.max() < len(labels):
            raise UserError(
                f"partition '{name}': client {client} has the indices {part.min()} to "
                f"{part.max()}: give 0 to {len(labels) - 1}"
            )
    made = [part.astype(np.int64) for part in made]
    count = np.bincount(np.concatenate(made), minlength=len(labels))
    if count.max() > 1:
        index = int(np.argmax(count > 1))
        holders = " and ".join(str(i) for i, part in enumerate(made) if index in part)
        raise UserError(
            f"partition '{name}': client {holders}: index {index} is repeated: give each example "
            "to one client, once"
        )
    return made


def _call(function: Callable[..., Any], name: str, labels: np.ndarray, **more: int) -> Any:
    """Calls a function with labels, clients and seed, as far as it takes them.

    Parameters without a default get them in this order, those with one by their names.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(labels, *more.values())
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in by_name]
    named = {p.name: p for p in parameters if p not in needed}
    lacking = {k for k, p in named.items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    if not 1 <= len(needed) <= 1 + len(more) or lacking - more.keys():
        raise UserError(
            f"partition '{name}' takes {inspect.signature(function)}: let it take (labels, "
            "clients, seed), or labels alone"
        )
    given = (labels, *more.values())[: len(needed)]
    return function(*given, **{k: v for k, v in more.items() if k in named})
