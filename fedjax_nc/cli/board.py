"""The `board` command: one HTML page to look at many finished or running runs."""

import dataclasses
import os
import statistics
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from fedjax_nc.cli import curves
from fedjax_nc.cli.exits import answered
from fedjax_nc.cli.reading import read
from fedjax_nc.cli.streams import say
from fedjax_nc.config import fingerprint
from fedjax_nc.errors import UserError, command, few
from fedjax_nc.inputs import MEGABYTE, check_path
from fedjax_nc.metrics import BY_NAME, METRICS, Metric, class_accuracy, columns

FILES = ("config.yaml", "metrics.jsonl", "summary.json")  # one of them makes a run directory
FORMATS = (".html", ".htm")


@answered
def board(argv: list[str]) -> int:
    """Reads the runs, writes their page, and names those that are damaged or not finished."""
    given = parse(argv)
    each = [directory for run in given.runs for directory in find(Path(run))]
    directories = list({os.path.realpath(one): one for one in each}.values())  # each once
    try:
        import bokeh  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f"board draws with Bokeh ({error}): run: pip install 'fedjax_nc[board]'"
        ) from error
    runs, left_out = open_all(directories)
    to = Path(given.to)
    _write(to, runs, left_out=left_out)
    for reason in left_out:
        say(f"left out: {reason}")
    unfinished = [str(run.directory) for run in runs if not run.summary]
    if unfinished:
        say(f"not finished, shown as far as they are: {few(unfinished)}")
    say(f"written: {to} ({_counted(runs)}, {to.stat().st_size / MEGABYTE:.1f} MB)")
    return 0


def find(path: Path) -> Iterator[Path]:
    """Yields a run directory, or those that are anywhere in a folder."""
    if not path.is_dir():
        raise UserError(
            f"{path} is no folder: give run directories, or folders with runs that "
            f"`{command('run')}` has left"
        )
    seen: set[str] = set()
    found = False
    for folder, inside, names in os.walk(path, onerror=_raise, followlinks=True):
        inside.sort()
        if (real := os.path.realpath(folder)) in seen:
            inside.clear()  # a link has led here again, maybe in a circle
            continue
        seen.add(real)
        if any(name in names for name in FILES):
            inside.clear()  # a run's own folders have no runs
            found = True
            yield Path(folder)
    if not found:
        raise UserError(f"no run is in {path}: give a folder that `{command('run')}` has written")


def _raise(error: OSError) -> None:
    raise error


def open_all(directories: Sequence[Path]) -> tuple[list[curves.Run], list[str]]:
    """Returns the runs that can be read, and of the others why not."""
    runs, left_out = [], []
    for directory in directories:
        try:
            runs.append(curves.open_run(directory))
        except UserError as error:
            left_out.append(str(error).removesuffix(": leave it out"))
    if not runs:
        raise UserError(f"none of {len(directories)} runs can be shown, such as: {left_out[0]}")
    return runs, left_out


def _write(to: Path, runs: Sequence[curves.Run], *, left_out: Sequence[str]) -> None:
    from fedjax_nc.figures import board as pages
    from fedjax_nc.io import files

    shown = [_shown(run, folder=to.absolute().parent) for run in runs]
    if len(set(prints := [fingerprint(run.config) for run in runs])) < len(runs):
        # runs that come twice are no seeds, whose interval they would make narrow
        copies = [prints[: i + 1].count(own) for i, own in enumerate(prints)]
        shown = [
            run._replace(settings={**run.settings, "copy": str(copy)})
            for run, copy in zip(shown, copies, strict=True)
        ]
    page = pages.page(_counted(runs), shown, choice=_choice(runs, shown), left_out=left_out)
    files.write_atomically(to, page.encode(errors="replace"))  # names may be no text


def _counted(runs: Sequence[Any]) -> str:
    return f"{len(runs)} runs" if len(runs) > 1 else "1 run"


def _choice(runs: Sequence[curves.Run], shown: Sequence[Any]) -> Any:
    """Returns the metrics that some of these runs have, and how they are written."""
    from fedjax_nc.figures import board as pages

    summaries = [run.values for run in shown]
    tested = {name for run in runs for row in run.rows for name in row}
    return pages.Choice(
        columns=[
            pages.Shown(m.name, m.label, digits=1 if m.percent else m.digits, factor=_factor(m))
            for m in columns(summaries)
            if m.name != "compile_seconds"
        ],
        curves=[
            pages.Shown(m.name, _in_words(m), digits=1 if m.percent else 3, factor=_factor(m))
            for m in METRICS
            if m.name in tested and m.of is not class_accuracy
        ]
        + [pages.Shown("loss", "training loss of clients", digits=3)] * ("loss" in tested),
        spreads=[
            (m.whose, m.label or m.whose.replace("_", " "))
            for m in METRICS
            if m.name == f"{m.whose}_accuracy"
            and f"{m.name}_worst" in BY_NAME
            and any(values.get(m.name) is not None for values in summaries)
        ],
    )


def _factor(metric: Metric) -> int:
    return 100 if metric.percent else 1


def _in_words(metric: Metric) -> str:
    """Returns a metric's name as the label of an axis."""
    text = metric.name.replace("_", " ")
    return f"{text}, per cent" if metric.percent else text


def _shown(run: curves.Run, folder: Path) -> Any:
    """Returns a run as the page shows it, linked from a folder."""
    from fedjax_nc.figures import board as pages

    cfg, done = run.config, run.rows[-1]["round"]
    told = {"method": cfg.method, "dataset": cfg.dataset}
    told |= {**curves.settings(cfg), "seed": cfg.seed}
    seconds = statistics.median(row["seconds"] for row in run.rows)
    report = run.directory / "analysis" / "report.html"
    return pages.Run(
        name=str(run.directory),
        link=link(run.directory, folder) + "/",
        report=link(report, folder) if report.is_file() else "",
        settings={name: _written(value) for name, value in told.items()},
        end=str(done) if run.summary else f"{done} of {cfg.rounds}",
        rows=run.rows,
        values={"seconds_per_round": seconds, **run.rows[-1], **run.summary},
    )


def link(path: Path, folder: Path) -> str:
    """Returns the address of a path as seen from a page in a folder."""
    return urllib.parse.quote(os.fsencode(os.path.relpath(path.absolute(), folder)))


def _written(value: Any) -> str:
    """Returns a setting as it is typed."""
    if isinstance(value, list):
        return " ".join(map(_written, value)) or "none"
    if value is None or value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse(argv: list[str]) -> Any:
    """Returns the run directories and where the page goes, checked."""
    import tyro

    prog = command("board")
    about = tyro.conf.arg(
        metavar="RUNS ...",
        help="Run directories, or folders: all runs anywhere in them.",
        help_behavior_hint="",
    )
    to = tyro.conf.arg(metavar="FILE", help="Write the page here.")
    shape = dataclasses.make_dataclass(
        "Board",
        [
            ("runs", Annotated[tyro.conf.Positional[tuple[str, ...]], about]),
            ("to", Annotated[str, to], "board.html"),
        ],
        frozen=True,
    )
    shape.__doc__ = (
        "Write one HTML page to filter, group, sort and draw many runs in a browser.\n\n"
        "It needs no other file and no network. Runs that are not finished are shown as far as "
        "they are, damaged ones are named.\n\n"
        f"Example: {prog} runs --to board.html"
    )
    given: Any = read(shape, argv, prog=prog)
    if not given.runs:
        raise UserError(
            f"no run directory was given: name some that `{command('run')}` has left, or a "
            "folder with them"
        )
    for run in given.runs:
        check_path("run directory", run)
    check_path("--to", given.to)
    if len({Path(run).absolute() for run in given.runs}) < len(given.runs):
        raise UserError("the same run directory was given twice: give each once")
    if Path(given.to).suffix not in FORMATS:
        raise UserError(f"--to={given.to}: give a file that ends in {', '.join(FORMATS)}")
    if not Path(given.to).absolute().parent.is_dir() or Path(given.to).is_dir():
        raise UserError(f"--to={given.to}: give a file in a folder that exists")
    return given
