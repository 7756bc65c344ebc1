"""How long cells will take: as long as those of their kind did, or by their operations."""

import dataclasses
import functools
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_nc.config import RunConfig, to_dict
from fedjax_nc.errors import UserError
from fedjax_nc.methods import catalogue
from fedjax_nc.sweep.cells import Task

# settings of which the time of a round depends little
_ALIKE = {"data": ("alpha", "rule", "seed"), "local": ("lr",)}


class Work(NamedTuple):
    """What is known of a round of a kind of cells before one of them is trained."""

    flops: float | None = None
    seconds: float | None = None  # as a step was measured


@functools.cache
def kind(cfg: RunConfig) -> str:
    """Returns a text that cells share whose rounds take about the same time."""
    content: dict[str, Any] = to_dict(dataclasses.replace(cfg, seed=0, rounds=1))
    for group, names in _ALIKE.items():
        content[group] = {k: v for k, v in content[group].items() if k not in names}
    try:
        pieces = catalogue.parse(cfg.method)
    except UserError:  # a method of a notebook
        return str(content)
    # weights of terms cost nothing; numbers of epochs, switches and words do
    content["method"] = [
        (entry.name, {k: v for k, v in kwargs.items() if not isinstance(v, float)})
        for entry, kwargs in pieces
    ]
    return str(content)


class Expected:
    """What cells are expected to take, better known the more of them are finished."""

    def __init__(self, works: Mapping[str, Work]) -> None:
        """Begins with what is known of each kind."""
        self._works = works
        self._took: dict[str, list[float]] = {}

    def learn(self, task: Task, seconds: float) -> None:
        """Keeps how long a cell has taken."""
        self._took.setdefault(kind(task.configs[0]), []).append(seconds / _rounds(task))

    def seconds(self, task: Task) -> float | None:
        """Returns what a whole cell is expected to take; None if nothing is known."""
        name = kind(task.configs[0])
        if name in self._took:
            return statistics.median(self._took[name]) * _rounds(task)
        work = self._works.get(name, Work())
        if work.seconds is not None:
            return work.seconds * _rounds(task)
        speeds = [
            statistics.median(took) / flops
            for other, took in self._took.items()
            if (flops := self._works.get(other, Work()).flops)
        ]
        if work.flops is not None and speeds:
            return work.flops * statistics.median(speeds) * _rounds(task)
        return None

    def order(self, task: Task) -> tuple[float, float]:
        """Returns what the longest cells have most of: seconds, else operations."""
        work = self._works.get(kind(task.configs[0]), Work())
        return self.seconds(task) or 0.0, (work.flops or 1.0) * _rounds(task)


def _rounds(task: Task) -> int:
    return task.configs[0].rounds * len(task.seeds)
