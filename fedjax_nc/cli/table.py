"""The `table` command: a paper's table from runs; what is missing is trained first."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from fedjax_nc import inputs, processes, recipes
from fedjax_nc.cli import console, flags, run
from fedjax_nc.cli.exits import answered
from fedjax_nc.cli.reading import read
from fedjax_nc.cli.streams import say
from fedjax_nc.errors import UserError, command, reason, unknown
from fedjax_nc.inputs import check_path
from fedjax_nc.recipes import Cell, Recipe

_FILE = 64 * inputs.MEGABYTE  # of a table's JSON form, which takes a kilobyte a cell
FORMS = ("markdown", "latex", "csv", "json")
_FIGURES = (".png", ".svg", ".pdf")


@answered
def table(argv: list[str]) -> int:
    """Trains the cells that are missing, then writes the table; or compares two tables."""
    given = parse(argv)
    if given.diff:
        _write(_difference(given), given.to)
        return 0
    recipe = recipes.get(given.recipe)
    cells = recipe.cells(given.scale, only=given.cells)
    rates = _rates(given.tuned) if given.tuned else {}
    _check(recipe, cells, given=given, rates=rates)
    commands = _commands(cells, rates=rates, seeds=given.seeds, out=given.out)
    problems = {} if given.only_report else _train(commands)
    if not processes.is_first():
        return 0
    from fedjax_nc import paper_forms, paper_table

    with console.waiting("reading runs"):
        runs = _found(commands, problems, rates=rates, tuned=given.tuned, cells=cells)
    made = paper_table.make(recipe, cells, runs=runs, baseline=given.baseline)
    _write(paper_forms.render(made, given.form), given.to)
    if given.figure:
        _draw(recipe, made, runs=runs, cells=cells, path=Path(given.figure))
    return 0


def _train(commands: Mapping[tuple[str, ...], list[str]]) -> dict[tuple[str, ...], str]:
    """Trains one run after another, finished ones not again; returns what kept some from it."""
    problems: dict[tuple[str, ...], str] = {}
    for done, (argv, words) in enumerate(commands.items()):
        try:
            run.execute(flags.parse(words, prog=command("run")))
        except UserError as error:
            problems[argv] = str(error)
            say(f"warning: {' '.join(words[:3])}: {error}")
        except KeyboardInterrupt as stop:
            told = f"{done} of {len(commands)} runs are done; the same command goes on"
            stop.args = (f"{told} with the others",)
            raise
    return problems


def _commands(
    cells: Sequence[Cell], *, rates: Mapping[str, float], seeds: Sequence[int], out: str
) -> dict[tuple[str, ...], list[str]]:
    """Returns the flags of every run by those of its cells: with tuned rates and other seeds."""
    found = {}
    for cell in cells:
        if not cell.argv or cell.argv in found:
            continue
        words = list(cell.argv)
        if seeds:
            words = [*words[: words.index("--seeds")], "--seeds", *map(str, seeds)]
            words += ["--seeds_parallel"] * ("--seeds_parallel" in cell.argv and len(seeds) > 1)
        rate = _rate(cell, rates)
        words += [f"--local.lr={rate:g}"] if rate else []
        found[cell.argv] = [*words, f"--out={out}"]
    return found


def _rate(cell: Cell, rates: Mapping[str, float]) -> float | None:
    """Returns the tuned learning rate of a cell: its own, its row's or its method's."""
    return next((rates[n] for n in (cell.name, cell.row, cell.spec) if n in rates), None)


def _rates(file: str) -> dict[str, float]:
    """Returns the learning rates of a file: {"fedavg": 0.05}, by row, method or cell."""
    try:
        content = inputs.read_json(Path(file), inputs.MEGABYTE)
    except (OSError, ValueError) as error:
        raise UserError(f"--tuned={file}: {reason(error)}: give a JSON file") from None
    good = isinstance(content, dict) and all(
        isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0
        for rate in content.values()
    )
    if not good:
        raise UserError(f'--tuned={file}: give learning rates by row, as {{"fedavg": 0.05}}')
    return content


def _check(
    recipe: Recipe, cells: Sequence[Cell], *, given: Any, rates: Mapping[str, float]
) -> None:
    """Refuses names that are none of the cells', before anything is trained."""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    if given.baseline and given.baseline not in rows:
        raise unknown(f"row of {recipe.name}", given.baseline, allowed=rows)
    known = {name for cell in cells for name in (cell.name, cell.row, cell.spec)}
    for name in rates:
        if name not in known:
            raise unknown(f"row in {given.tuned}", name, allowed=known)
    if given.figure and len(cells) == sum(bool(cell.reason) for cell in cells):
        raise UserError(f"--figure: no cell of {recipe.name} is run, see `list recipes`")


def _found(
    commands: Mapping[tuple[str, ...], list[str]],
    problems: Mapping[tuple[str, ...], str],
    *,
    rates: Mapping[str, float],
    tuned: str | None,
    cells: Sequence[Cell],
) -> dict[tuple[str, ...], Any]:
    """Returns what the runs have left, by the flags of their cells."""
    from fedjax_nc import paper_table
    from fedjax_nc.io import rundir

    tuned_ones = {cell.argv for cell in cells if _rate(cell, rates)}
    runs = {}
    for argv, words in commands.items():
        asked = flags.parse(words)
        results = [rundir.finished(rundir.path_of(asked.out, cfg)) for cfg in asked.configs]
        left = [one for one in results if one is not None]
        runs[argv] = paper_table.Run(
            asked.configs,
            summaries=[summary for _, summary in left],
            records=[rows for rows, _ in left],
            problem=problems.get(argv, ""),
            rate=f"tuned ({tuned})" if argv in tuned_ones else paper_table.PROTOCOL,
        )
    return runs


def _difference(given: Any) -> str:
    """Returns by how much two tables differ, as text."""
    from fedjax_nc import paper_forms, paper_table

    made = []
    for file in given.diff:
        try:
            content = inputs.read_json(Path(file), _FILE)
        except (OSError, ValueError) as error:
            raise UserError(f"{file}: {reason(error)}: give two tables of --form=json") from None
        made.append(paper_table.check(content, file))
    found = paper_table.difference(*made)
    names = (Path(given.diff[0]).name, Path(given.diff[1]).name)
    return paper_forms.render_difference(found, names, form=given.form)


def _draw(
    recipe: Recipe, made: Any, *, runs: Mapping[Any, Any], cells: Sequence[Cell], path: Path
) -> None:
    """Draws the accuracy over rounds of a figure's runs, or the average ranks of a table's."""
    from fedjax_nc.figures import curves, ranks
    from fedjax_nc.io import files

    title = f"{recipe.title} ({recipe.name}, {made['scale']})"
    if recipe.is_curve:
        shown = {column["name"] for column in made["columns"]}
        whole = [c for c in cells if c.column in shown and c.argv in runs and runs[c.argv].records]
        if not whole:
            raise UserError(f"--figure={path}: no run of {recipe.name} is finished")
        groups = {c.name: [list(rows) for rows in runs[c.argv].records] for c in whole}
        panels = {c.name: c.column for c in whole} if len(shown) > 1 else None
        names = {c.name: c.row for c in whole}
        figure = curves.together(groups, title, panels=panels, names=names)
    elif made["ranks"]:
        found = made["ranks"]
        figure = ranks.critical_difference(
            found["average"],
            found["critical_difference"],
            together=found["together"],
            title=title,
        )
    else:
        raise UserError(f"--figure={path}: ranks need two rows in two settings that are finished")
    with files.replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=120)


def _write(text: str, to: str | None) -> None:
    """Prints a text, or leaves it in a file."""
    if not to:
        print(text, end="")
        return
    from fedjax_nc.io.files import write_atomically

    write_atomically(Path(to), text)


def parse(argv: list[str]) -> Any:
    """Returns what is asked for; what is wrong with it is told before anything is trained."""
    import tyro

    prog = command("table")
    names = {
        "recipe": ("RECIPE", "A table or figure of a paper, as feddw/T1; see `list recipes`."),
        "cells": ("NAME ...", "Only these rows, columns or cells (`row @ column`)."),
        "seeds": ("SEED ...", "These seeds instead of the scale's own."),
        "baseline": ("ROW", "Whom the others are tested against; FedAvg, or the first row."),
        "tuned": ("FILE", 'JSON of learning rates by row, as {"fedavg": 0.05}.'),
        "to": ("FILE", "Where the table goes instead of the screen."),
        "figure": ("FILE", "Curves of a figure's runs, or ranks with the critical difference."),
        "diff": ("A B", "Two tables of --form=json: which cells differ, and by how much."),
    }
    marks = {
        name: tyro.conf.arg(metavar=metavar, help=about, help_behavior_hint="")
        for name, (metavar, about) in names.items()
    }
    scale = tyro.conf.arg(help="smoke: two rounds on digits; pocket: mnist5k; full: the paper's.")
    form = tyro.conf.arg(help="How it is written: markdown, latex, csv or json.")
    out = tyro.conf.arg(help="Directory under which runs are looked for and left.")
    only = tyro.conf.arg(help="Train nothing: the table of what is there.")
    shape = dataclasses.make_dataclass(
        "PaperTable",
        [
            ("recipe", Annotated[tyro.conf.Positional[str], marks["recipe"]], ""),
            ("scale", Annotated[str, scale], "pocket"),
            ("cells", Annotated[tuple[str, ...], marks["cells"]], ()),
            ("seeds", Annotated[tuple[int, ...], marks["seeds"]], ()),
            ("baseline", Annotated[str, marks["baseline"]], ""),
            ("form", Annotated[str, form], "markdown"),
            ("only_report", Annotated[bool, only], False),
            ("tuned", Annotated[str | None, marks["tuned"]], None),
            ("out", Annotated[str, out], "runs"),
            ("to", Annotated[str | None, marks["to"]], None),
            ("figure", Annotated[str | None, marks["figure"]], None),
            ("diff", Annotated[tuple[str, str] | None, marks["diff"]], None),
        ],
        frozen=True,
    )
    shape.__doc__ = (
        "Make a paper's table again: train what is missing, then write it beside the paper's.\n\n"
        f"Example: {prog} feddw/T1 --scale=pocket --cells fedavg feddw --to feddw.md"
    )
    given: Any = read(shape, argv, prog=prog)
    if given.form not in FORMS:
        raise unknown("form of a table", given.form, allowed=FORMS)
    if given.scale not in recipes.SCALES:
        raise unknown("scale", given.scale, allowed=recipes.SCALES)
    if given.diff and given.recipe:
        raise UserError(f"'{given.recipe}' has no effect with --diff: leave it out")
    if not given.diff and not given.recipe:
        raise UserError(f"no recipe was given: name one, as {prog} feddw/T1; `list recipes`")
    _check_files(given)
    return given


def _check_files(given: Any) -> None:
    """Refuses paths where nothing can be written."""
    check_path("--out", given.out)
    for name in ("to", "figure"):
        path = getattr(given, name)
        check_path(f"--{name}", path or "")
        if path and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
            raise UserError(f"--{name}={path}: give a file in a folder that exists")
    if given.figure and Path(given.figure).suffix not in _FIGURES:
        raise UserError(f"--figure={given.figure}: give a name that ends in .png, .svg or .pdf")
