"""What a study is: a record of what it computes, and of how that is drawn and tabulated."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_nc.figures.canvas import Drawn
from fedjax_nc.figures.report import Table
from fedjax_nc.study.subject import Subject

Results = dict[str, Any]  # what a study computes for one run; JSON can hold it
Runs = dict[str, Results]  # the results of several runs, by the run's label
Rows = dict[str, Callable[[Results], str]]  # a table's rows: the row's name, and a run's cell in it


class Study(NamedTuple):
    """One way to look at a run. Each module named in `options.STUDIES` defines one as `STUDY`."""

    title: str
    intro: str  # opens its section of the report
    compute: Callable[[Subject], Results]
    draw: Callable[[Runs], list[Drawn]]
    rows: Callable[[Runs], Rows]
    uses: tuple[str, ...] = ("examples",)  # the fields of `Options` that change its results
    align: Callable[[Runs], Runs] = lambda runs: runs  # makes results of several runs comparable

    def table(self, runs: Runs) -> Table:
        """Returns the results as text, one column per run."""
        cells = self.rows(runs).items()
        return Table(["", *runs], [[name, *map(cell, runs.values())] for name, cell in cells])


def mean_and_error(values: list[float | None]) -> tuple[float | None, float | None]:
    """Returns the mean of the known values and its standard error, None where there is none."""
    known = [v for v in values if v is not None]
    if not known:
        return None, None
    mean = sum(known) / len(known)
    variance = sum((v - mean) ** 2 for v in known) / max(len(known) - 1, 1)
    return mean, (variance / len(known)) ** 0.5 if len(known) > 1 else None
