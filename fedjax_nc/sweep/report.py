"""What a sweep leaves in its folder: every cell with its state, and one table of all."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_nc import tables
from fedjax_nc.io.files import write_atomically
from fedjax_nc.sweep import cells
from fedjax_nc.sweep.cells import FINISHED, Result, Task
from fedjax_nc.tables import Row, Table

LIST = "sweep.json"
_FORM = 1  # of that file


def folder_of(out: str, tasks: Sequence[Task], *, name: str | None = None) -> Path:
    """Returns where a sweep keeps what is its own; the same cells have the same folder."""
    places = sorted(str(d.relative_to(out)) for task in tasks for d in task.directories)
    short = hashlib.sha256("\n".join(places).encode()).hexdigest()[:8]
    return Path(out) / "sweeps" / (name or short)


def write_list(folder: Path, results: Sequence[Result], *, command: str) -> None:
    """Writes every cell with its flags, run directories and state, for other programs."""
    content = {
        "form": _FORM,
        "command": command,
        "started_in": os.getcwd(),
        "cells": [_record(result) for result in results],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / LIST, json.dumps(content, indent=1) + "\n")


def _record(result: Result) -> dict[str, Any]:
    return {
        "labels": dict(result.labels),
        "seeds": list(result.seeds),
        "argv": list(result.argv),
        "directories": [str(directory) for directory in result.directories],
        "state": result.state,
        "reason": result.reason,
    }


def write_table(folder: Path, results: Sequence[Result], *, columns: Sequence[str] = ()) -> str:
    """Writes the table as table.md and table.csv; returns the Markdown."""
    text, left = "", _left(results)
    if table := table_of(results, columns):
        text = tables.render(table)
        write_atomically(folder / "table.csv", tables.render(table, "csv"))
    text += "".join(f"\n{line}" for line in left) + "\n" * bool(left)
    write_atomically(folder / "table.md", text)
    return text


def table_of(results: Sequence[Result], columns: Sequence[str] = ()) -> Table | None:
    """Makes a row of each cell over its seeds, with its place on the axes; None of no cells.

    A method's name has its hyperparameters in it, so their axes need no columns.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for result in results:
        if result.state == FINISHED:
            groups.setdefault(tuple(result.labels.items()), []).append(result)
    if not groups:
        return None
    rows = [
        Row(found[0].configs[0], [summary for one in found for summary in one.summaries])
        for found in groups.values()
    ]
    table = tables.compare(rows, columns)
    shown = [n for n in axes_of(results) if n != "method" and not n.startswith("hp.")]
    places = [[dict(labels).get(name, "-") for name in shown] for labels in groups]
    counts = [len(row.summaries) for row in rows]
    header = [table.header[0], *shown, *table.header[1:]]
    body = [[row[0], *place, *row[1:]] for row, place in zip(table.rows, places, strict=True)]
    if len(set(counts)) > 1:  # some seeds failed
        header.append("seeds")
        body = [[*row, str(count)] for row, count in zip(body, counts, strict=True)]
    return Table(header, body, note=table.note)


def axes_of(results: Sequence[Result | Task]) -> list[str]:
    """Returns the names of all axes, in order."""
    return list(dict.fromkeys(name for result in results for name in result.labels))


def _left(results: Sequence[Result]) -> list[str]:
    """Returns a line for each cell that is not in the table."""
    return [
        f"- {cells.words(one.labels, one.seeds)}: {one.state}: {one.reason}"
        for one in results
        if one.state != FINISHED
    ]
