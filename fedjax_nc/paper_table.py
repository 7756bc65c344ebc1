"""A paper's table made again: our numbers beside the printed ones, with what seeds say of them."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from fedjax_nc import statistics
from fedjax_nc.config import RunConfig
from fedjax_nc.errors import UserError, unknown
from fedjax_nc.metrics import curve, to_target
from fedjax_nc.recipes import Cell, Measure, Recipe
from fedjax_nc.tables import in_words

Made = dict[str, Any]  # a table as its JSON form has it
PROTOCOL = "protocol"  # where a learning rate is from, unless it was tuned


class Run(NamedTuple):
    """A cell's run as it lies on disk: the summary and records of every finished seed."""

    configs: Sequence[RunConfig]  # of all seeds
    summaries: Sequence[Mapping[str, Any]] = ()
    records: Sequence[Sequence[Mapping[str, Any]]] = ()  # beside the summaries
    problem: str = ""  # why it could not be trained
    rate: str = PROTOCOL  # where its learning rate is from


def make(
    recipe: Recipe,
    cells: Sequence[Cell],
    *,
    runs: Mapping[tuple[str, ...], Run],
    baseline: str = "",
) -> Made:
    """Returns the table of cells, of one scale, from what their runs have left.

    Columns that are the same runs at a small scale are shown once. Every row is tested against the
    baseline on the seeds that both have.
    """
    rows = list(dict.fromkeys(cell.row for cell in cells))
    if baseline and baseline not in rows:
        raise unknown(f"row of {recipe.name}", baseline, allowed=rows)
    base = baseline or (recipe.baseline if recipe.baseline in rows else rows[0])
    columns = _columns(cells)
    shown = [cell for cell in cells if cell.column in columns]
    made = [_entry(cell, runs.get(cell.argv)) for cell in shown]
    _compare(made, base)
    _place(made)
    found = [runs[cell.argv] for cell in shown if cell.argv in runs]
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "scale": cells[0].scale,
        "baseline": base,
        "rows": rows,
        "columns": [{"name": name, "same": same} for name, same in columns.items()],
        "cells": made,
        "ranks": ranks(made, list(columns)),
        "settings": sorted({in_words(run.configs[0]) for run in found}),
        "paper_reports": recipe.paper.reports,
        "quirks": list(recipe.quirks),
    }


def _columns(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Returns the columns that are shown, and those that are the same runs at this scale."""
    runs: dict[str, dict[str, Any]] = {}
    for cell in cells:
        what = (cell.argv, cell.measure) if cell.argv else cell.column
        runs.setdefault(cell.column, {})[cell.row] = what
    shown: dict[str, list[str]] = {}
    for name, column in runs.items():
        first = next((other for other in shown if runs[other] == column), None)
        if first is None:
            shown[name] = []
        else:
            shown[first].append(name)
    return shown


def _entry(cell: Cell, run: Run | None) -> Made:
    """Returns what is known of a cell: ours, the paper's, and what is missing."""
    measure = cell.measure
    entry: Made = {
        "row": cell.row,
        "column": cell.column,
        "method": cell.spec,
        "metric": measure.name,
        "unit": measure.unit,
        "digits": measure.digits,
        "high": measure.high,
        "paper": cell.reported,
        "paper_sd": cell.spread,
        "note": cell.note,
        "missing": cell.reason,
        "seeds": [],
        "values": [],
        "n": 0,
        **dict.fromkeys(("mean", "sd", "low95", "high95", "difference", "lr", "lr_from")),
        **dict.fromkeys(("p", "p_wilcoxon", "p_holm", "better", "place", "last_rounds")),
    }
    if cell.reason:
        return entry
    if run is None or not run.summaries:
        problem = run.problem if run and run.problem else "not trained yet"
        return entry | {"missing": problem}
    pairs = zip(run.summaries, run.records or [()] * len(run.summaries), strict=True)
    found = {s["seed"]: number(measure, s, records=r) for s, r in pairs}
    values = {seed: value for seed, value in found.items() if value is not None}
    config, lacking = run.configs[0], len(run.configs) - len(values)
    span = statistics.interval(list(values.values())) or (None, None)
    mean = fmean(values.values()) if values else None
    entry |= {
        "seeds": list(values),
        "values": list(values.values()),
        "n": len(values),
        "mean": mean,
        "sd": statistics.deviation(list(values.values())),
        "low95": span[0],
        "high95": span[1],
        "lr": config.local.lr,
        "lr_from": run.rate,
        "last_rounds": run.summaries[0].get("averaged_rounds"),
    }
    if lacking:
        what = "did not reach it" if measure.target else "have no such number"
        missing = len(run.configs) - len(found)
        parts = [f"{missing} not trained yet"] * bool(missing)
        parts += [f"{lacking - missing} {what}"] * (lacking > missing)
        entry["missing"] = f"of {len(run.configs)} seeds {', '.join(parts)}"
    if cell.scale == "full" and None not in (mean, cell.reported):
        entry["difference"] = mean - cell.reported  # pyright: ignore[reportOperatorIssue]
    return entry


def number(
    measure: Measure, summary: Mapping[str, Any], *, records: Sequence[Mapping[str, Any]] = ()
) -> float | None:
    """Returns a run's number in the paper's unit; rounds to a target come from its records."""
    if measure.target is not None:
        value = to_target(curve(records), measure.target)["round"]
    else:
        value = summary.get(measure.name)
    return None if value is None else measure.scale * value


def _compare(made: Sequence[Made], baseline: str) -> None:
    """Tests every cell against the baseline's of its column, corrected over the whole table."""
    base = {entry["column"]: entry for entry in made if entry["row"] == baseline}
    tested = []
    for entry in made:
        other = base.get(entry["column"])
        if other is None or entry["row"] == baseline:
            continue
        ours, theirs = on_common(entry, other)
        if len(ours) < 2:
            continue
        test = statistics.paired_t(theirs, ours)
        entry["p"], entry["p_wilcoxon"] = test.p, statistics.wilcoxon(theirs, ours).p
        gap = fmean(ours) - fmean(theirs)
        entry["better"] = gap > 0 if entry["high"] else gap < 0
        tested.append(entry)
    for entry, p in zip(tested, statistics.holm([entry["p"] for entry in tested]), strict=True):
        entry["p_holm"] = p


def on_common(first: Made, second: Made) -> tuple[list[float], list[float]]:
    """Returns the numbers of two cells on the seeds that both have, in the same order."""
    other = dict(zip(second["seeds"], second["values"], strict=True))
    pairs = [
        (value, other[seed])
        for seed, value in zip(first["seeds"], first["values"], strict=True)
        if seed in other
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _place(made: Sequence[Made]) -> None:
    """Marks the best and the second mean of every column of several rows."""
    for column in {entry["column"] for entry in made}:
        found = [e for e in made if e["column"] == column and e["mean"] is not None]
        order = sorted({entry["mean"] for entry in found}, reverse=bool(found and found[0]["high"]))
        for entry in found if len(found) > 1 else ():
            place = order.index(entry["mean"]) + 1
            entry["place"] = place if place < 3 else None


def ranks(made: Sequence[Made], columns: Sequence[str]) -> Made | None:
    """Returns average ranks over settings with Friedman's test and Nemenyi's difference.

    Settings are columns in which a row has a number; rows without one in some of them are left out
    and named. None where fewer than two rows or two settings are left.
    """
    means = {(e["row"], e["column"]): e["mean"] for e in made if e["mean"] is not None}
    high = {entry["column"]: entry["high"] for entry in made}
    settings = [c for c in columns if any(column == c for _, column in means)]
    rows = list(dict.fromkeys(entry["row"] for entry in made))
    whole = [row for row in rows if all((row, c) in means for c in settings)]
    if len(whole) < 2 or len(settings) < 2:
        return None
    signed = [[means[row, c] * (1 if high[c] else -1) for row in whole] for c in settings]
    average = statistics.average_ranks(signed)
    difference = statistics.critical_difference(len(whole), len(settings))
    test = statistics.friedman(signed)
    return {
        "average": dict(zip(whole, average, strict=True)),
        "settings": settings,
        "left_out": [row for row in rows if row not in whole],
        "friedman": test.statistic,
        "p": test.p,
        "critical_difference": difference,
        "together": statistics.cliques(average, difference),
    }


def missing(made: Made) -> dict[str, list[str]]:
    """Returns the names of cells that have no number, or not of all seeds, by the reason."""
    found: dict[str, list[str]] = {}
    for entry in made["cells"]:
        if entry["missing"]:
            found.setdefault(entry["missing"], []).append(f"{entry['row']} @ {entry['column']}")
    return found


def difference(first: Made, second: Made) -> list[Made]:
    """Returns by how much the cells of two tables differ, second less first.

    The 95 % interval is of the seeds' own differences where both have the same seeds, else Welch's.
    Cells that only one of them has are listed without a difference.
    """
    sides = [{(e["row"], e["column"]): e for e in table["cells"]} for table in (first, second)]
    found = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        a, b = (side.get(key, {"mean": None, "n": 0}) for side in sides)
        entry: Made = {"row": key[0], "column": key[1], "first": a["mean"], "second": b["mean"]}
        entry |= {"difference": None, "low95": None, "high95": None, "differs": None}
        if a["mean"] is None or b["mean"] is None:
            found.append(entry)
            continue
        if set(a["seeds"]) == set(b["seeds"]):
            olds, news = on_common(a, b)
            span = statistics.interval([y - x for x, y in zip(olds, news, strict=True)])
        else:
            span = statistics.welch(a["values"], b["values"])
        gap = b["mean"] - a["mean"]
        differs = gap != 0 if span is None else not span[0] <= 0 <= span[1]
        low, high = span or (None, None)
        entry |= {"difference": gap, "low95": low, "high95": high, "differs": differs}
        found.append(entry | {"digits": a["digits"]})
    return found


def check(content: Any, where: str) -> Made:
    """Returns a table that was read from a file, or refuses what is none."""
    needed = {"recipe", "scale", "cells"}
    if not isinstance(content, dict) or not needed <= content.keys():
        raise UserError(f"{where} is no table: give one that `table --form=json` wrote")
    keys = {"row", "column", "mean", "seeds", "values", "digits"}
    cells: Iterable[Any] = content["cells"] if isinstance(content["cells"], list) else [None]
    if not all(isinstance(entry, dict) and keys <= entry.keys() for entry in cells):
        raise UserError(f"{where} is damaged, a cell lacks something: make it again")
    return content
