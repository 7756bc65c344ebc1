"""The records of recipes: a number of a paper, a table of them, and the run that stands for it."""

import csv
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

SCALES = ("smoke", "pocket", "full")
MISSING = "missing: "  # how the note of a number begins that the paper's text does not have
_VALUES = Path(__file__).parent / "values"


class Value(NamedTuple):
    """A number of a paper and the setting it belongs to, in that paper's words."""

    table: str
    method: str
    variant: str
    dataset: str
    model: str
    partition: str
    partition_param: str
    num_clients: str
    clients_per_round: str
    rounds: str
    local_epochs: str
    metric: str
    value: str = ""  # as printed; nothing where the text has no number
    std: str = ""
    note: str = ""

    @property
    def word(self) -> str:
        """The method without its variant, as the paper calls it."""
        return self.method

    @property
    def row(self) -> str:
        """The method as tables write it: `gradaug n=2`."""
        return f"{self.method} {self.variant}".strip()

    @property
    def printed(self) -> str:
        """The number and its deviation in the paper's digits, a dash where the text has none."""
        return (f"{self.value} ± {self.std}" if self.std else self.value) or "-"

    @property
    def number(self) -> float | None:
        """The number, None where the text has none."""
        return float(self.value) if self.value else None


class Measure(NamedTuple):
    """Which number of a run stands for a number of a paper."""

    name: str  # of summary.json
    scale: float = 100.0
    unit: str = "%"
    high: bool = True  # whether more is better
    digits: int = 1
    target: float | None = None  # of `rounds_to`, which is counted in the records


class Cell(NamedTuple):
    """A number of a table: the paper's, and the run that makes ours, or why there is none."""

    recipe: str
    scale: str
    row: str
    column: str
    spec: str  # of the method
    argv: tuple[str, ...]  # flags of `run`
    measure: Measure
    reported: float | None
    spread: float | None
    note: str = ""
    reason: str = ""  # why nothing is run, if nothing is
    printed: str = ""  # the paper's number in its own digits

    @property
    def name(self) -> str:
        """How the cell is named: `fedavg @ cifar10, Dir(0.1)`."""
        return f"{self.row} @ {self.column}"


class Table(NamedTuple):
    """A results table, or a figure of curves, of a paper."""

    name: str  # T1, F4
    title: str
    quirks: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()  # where they are not the paper's usual ones
    values: tuple[Value, ...] = ()  # of a figure, whose numbers are not in the text


class Paper(NamedTuple):
    """How the numbers of a paper become runs of this library."""

    name: str  # also of its protocol
    seeds: tuple[int, ...]
    reports: str  # which rounds the paper's numbers are of
    tables: tuple[Table, ...]
    datasets: Mapping[str, str]  # the paper's word -> name here
    models: Mapping[str, str]  # the same of networks
    specs: Mapping[str, str]  # a row -> method here; others have the method's name
    regime: Callable[[Value], str]
    measure: Callable[[Value], Measure | str]  # the number of a run, or why there is none
    pocket: Callable[[Value], dict[str, object]]  # settings of the small scale, by flag
    extra: Callable[[Value], dict[str, object]] = lambda value: {}  # further ones of `full`
    unfit: Callable[[Value], str] = lambda value: ""  # why `full` cannot be run, if so
    small_model: str = ""  # at small scales, where the usual one does not fit the methods
    quirks: tuple[str, ...] = ()  # of all its tables


@cache
def values_of(paper: str) -> tuple[Value, ...]:
    """Returns all numbers of a paper's tables, in the order of its text."""
    with (_VALUES / f"{paper}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(Value(**row) for row in csv.DictReader(file))


def grid(
    table: str,
    rows: Iterable[str | tuple[str, str]],
    *,
    like: Sequence[Value] = (),
    settings: Iterable[Mapping[str, str]] = ({},),
    metric: str = "global_acc",
) -> tuple[Value, ...]:
    """Returns the numbers of a figure or picture, which the text does not have.

    Args:
      table: its name.
      rows: methods, or pairs of method and variant.
      like: numbers whose settings it shares.
      settings: what is different, by field.
      metric: what is shown.
    """
    note = f"{MISSING}a picture, whose numbers are not in the text"
    found = []
    for row, base, own in itertools.product(rows, like, settings):
        method, variant = (row, "") if isinstance(row, str) else row
        named = {"table": table, "method": method, "variant": variant, "metric": metric}
        found.append(base._replace(**named, value="", std="", note=note)._replace(**own))
    return tuple(dict.fromkeys(found))


def settings_of(paper: str, table: str, **where: str) -> tuple[Value, ...]:
    """Returns one number of each setting of a table, for figures that share its settings."""
    found: dict[tuple[str, ...], Value] = {}
    for value in values_of(paper):
        plain = value.metric == "global_acc" and value.rounds
        if value.table == table and plain and all(getattr(value, k) == v for k, v in where.items()):
            found.setdefault(value[3:11], value)
    return tuple(found.values())
