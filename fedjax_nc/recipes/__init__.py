"""The papers' results tables and learning curves, as the runs that make them again.

A recipe is named by its paper and table: `feddw/T1`. It has a cell for every number of the table;
a cell that no run makes says why.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fedjax_nc.errors import UserError, unknown
from fedjax_nc.recipes import fedalign, fedblade, feddr_plus, feddw, fedetf, words
from fedjax_nc.recipes.base import SCALES, Cell, Measure, Paper, Table, Value, values_of
from fedjax_nc.recipes.scales import cell_of

__all__ = ["PAPERS", "SCALES", "Cell", "Measure", "Recipe", "get", "names", "runs"]

PAPERS = {module.NAME: module.PAPER for module in (fedetf, feddw, feddr_plus, fedalign, fedblade)}

_BASELINES = ("fedavg",)  # whom a table is tested against, where it has such a row


class Recipe(NamedTuple):
    """A table or figure of a paper, with the numbers it is made of."""

    paper: Paper
    table: Table
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The recipe's name: `feddw/T1`."""
        return f"{self.paper.name}/{self.table.name}"

    @property
    def title(self) -> str:
        """What the table is about."""
        return self.table.title

    @property
    def is_curve(self) -> bool:
        """True of a figure, whose runs are looked at round by round."""
        return self.table.name.startswith("F")

    @property
    def quirks(self) -> tuple[str, ...]:
        """What a reader of the paper's numbers should know."""
        return (*self.table.quirks, *self.paper.quirks)

    @property
    def baseline(self) -> str:
        """The row that others are tested against: FedAvg's, else the first."""
        rows = list(dict.fromkeys(value.row for value in self.values))
        return next((row for row in rows if row.split()[0] in _BASELINES), rows[0])

    def cells(self, scale: str = "full", *, only: Sequence[str] = ()) -> list[Cell]:
        """Returns the cells of a scale, in the order of the paper.

        Args:
          scale: one of `SCALES`.
          only: names of rows, columns or cells (`row @ column`); all if there are none.
        """
        if scale not in SCALES:
            raise unknown("scale", scale, allowed=SCALES)
        found = _cells(self.name, scale)
        if not only:
            return list(found)
        known = {name for cell in found for name in (cell.row, cell.column, cell.name)}
        for word in only:
            if word not in known:
                raise unknown(f"cell of {self.name}", word, allowed=known)
        return [cell for cell in found if {cell.row, cell.column, cell.name} & set(only)]


def names() -> list[str]:
    """Returns the names of all recipes, in the order of the papers."""
    return list(_all())


def get(name: str) -> Recipe:
    """Returns the recipe of a name, or refuses one that does not exist."""
    found = _all()
    if name in found:
        return found[name]
    paper = name.partition("/")[0]
    if paper in PAPERS:  # a name of that paper is what was meant
        near = {key.partition("/")[2]: key for key in found if key.startswith(f"{paper}/")}
        raise unknown(f"recipe of {paper}", name.partition("/")[2], allowed=near)
    raise unknown("recipe", name, allowed=found)


def runs(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Returns the flags of the runs that cells need, each once, in their order."""
    return list(dict.fromkeys(cell.argv for cell in cells if cell.argv))


@cache
def _all() -> dict[str, Recipe]:
    found = {}
    for paper in PAPERS.values():
        for table in paper.tables:
            values = table.values or tuple(
                value for value in values_of(paper.name) if value.table == table.name
            )
            if not values:
                raise UserError(f"recipe {paper.name}/{table.name} has no numbers")
            found[f"{paper.name}/{table.name}"] = Recipe(paper, table, values)
    return found


@cache
def _cells(name: str, scale: str) -> tuple[Cell, ...]:
    recipe = get(name)
    labels = words.columns(recipe.values)
    return tuple(
        cell_of(recipe.paper, value, table=recipe.table, column=column, scale=scale)
        for value, column in zip(recipe.values, labels, strict=True)
    )
