"""Prints the recipes, or one of them with its rows, columns, numbers and runs."""

from collections.abc import Sequence

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedjax_nc import recipes
from fedjax_nc.cli.console import Lasting
from fedjax_nc.errors import command
from fedjax_nc.recipes import Cell, Recipe

_HOURS = (
    "runs: different configurations, without their seeds. Hours depend on the machine, and nobody "
    "has measured all of them: --dry-run of one run's flags tells those of that run"
)


def overview() -> Table:
    """Returns the table of all recipes with their cells, and their runs at each scale."""
    table = Table(
        *("recipe", "what", "cells", "run", *recipes.SCALES),
        title="Recipes: tables and curves of papers",
        caption=f"run: cells that a run makes; {_HOURS}. One recipe: list recipes NAME",
    )
    table.columns[0].no_wrap = True
    paper = ""
    for name in recipes.names():
        recipe = recipes.get(name)
        if recipe.paper.name != paper:
            paper = recipe.paper.name
            table.add_section()
        cells = {scale: recipe.cells(scale) for scale in recipes.SCALES}
        count = sum(not cell.reason for cell in cells["full"])
        sizes = (len(recipes.runs(cells[scale])) for scale in recipes.SCALES)
        numbers = (len(cells["full"]), count, *sizes)
        table.add_row(name, escape(recipe.title), *map(str, numbers))
    return table


def show(asked: str) -> None:
    """Prints all there is to say about a recipe."""
    recipe, console = recipes.get(asked), Lasting()
    cells = recipe.cells("full")
    console.print(f"[bold]{escape(recipe.title)}[/]")
    count = {scale: len(recipes.runs(recipe.cells(scale))) for scale in recipes.SCALES}
    sizes = ", ".join(f"{number} at `{scale}`" for scale, number in count.items())
    facts = [
        f"Numbers are of {recipe.paper.reports}. Baseline: {recipe.baseline}.",
        f"{len(cells)} cells; runs, without their seeds: {sizes}.",
        *(f"- {quirk}" for quirk in recipe.quirks),
    ]
    console.print(Padding(escape("\n".join(facts)), (1, 0)))
    for part in _numbers(cells):
        console.print(part)
    for reason, names in _reasons(cells).items():
        console.print(Padding(escape(f"No run: {reason}: {len(names)} cells."), (1, 0, 0, 0)))
    console.print(_methods(recipe))
    console.print(_commands(recipe), soft_wrap=True)  # commands stay whole, to be copied


def _numbers(cells: Sequence[Cell]) -> list[Table]:
    """Returns the paper's numbers, a few columns at a time."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    found = {(cell.row, cell.column): cell for cell in cells}
    tables = []
    for start in range(0, len(columns), 4):
        part = columns[start : start + 4]
        table = Table("row", title="" if start else "The paper's numbers; x: no run")
        for column in part:
            table.add_column(escape(column), justify="right")
        for row in dict.fromkeys(cell.row for cell in cells):
            table.add_row(row, *(_number(found.get((row, column))) for column in part))
        tables.append(table)
    return tables


def _number(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"{cell.printed} x" if cell.reason else cell.printed


def _reasons(cells: Sequence[Cell]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell.reason:
            found.setdefault(cell.reason, []).append(cell.name)
    return found


def _methods(recipe: Recipe) -> Table:
    """Returns what each row is here, and which number of a run stands for the paper's."""
    table = Table("row", "method", "number", title="Methods")
    table.columns[0].no_wrap = True
    rows: dict[tuple[str, str], set[str]] = {}
    for cell in recipe.cells("full"):
        if not cell.reason:
            names = rows.setdefault((cell.row, cell.spec), set())
            names.add(cell.measure.name)
    for (row, spec), names in rows.items():
        table.add_row(row, escape(spec), ", ".join(sorted(names)))
    return table


def _commands(recipe: Recipe) -> Text:
    lines = [f"{command('table')} {recipe.name} --scale={scale}" for scale in recipes.SCALES]
    first = next((cell for cell in recipe.cells("full") if cell.argv), None)
    if first:
        words = " ".join(f'"{word}"' if " " in word else word for word in first.argv)
        lines.append(f"{command('run')} {words}  # {first.name}")
    return Text.assemble(("\nCommands\n", "italic"), "\n".join(lines))
