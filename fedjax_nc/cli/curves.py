"""The `curves` command: the accuracy of finished or running runs in one picture and one table."""

import dataclasses
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fedjax_nc.cli.exits import answered
from fedjax_nc.cli.reading import read
from fedjax_nc.config import RunConfig, config_hash, to_dict
from fedjax_nc.errors import UserError, command
from fedjax_nc.inputs import check_path
from fedjax_nc.metrics import BY_NAME
from fedjax_nc.tables import SPREAD, mean_and_spread, partition_in_words, seconds_in_words

PERSONAL = [BY_NAME[f"{whose}_accuracy"] for whose in ("client", "personal", "finetuned")]
LAST = 10  # tested rounds whose mean is given beside the last one: single rounds swing
FORMATS = (".png", ".svg", ".pdf")


class Run(NamedTuple):
    """A run directory."""

    directory: Path
    config: RunConfig
    rows: list[dict[str, Any]]  # of tested rounds
    summary: dict[str, Any]  # empty while it runs


Panels = dict[str, dict[str, list[Run]]]  # title -> label -> a run per seed


@answered
def curves(argv: list[str]) -> int:
    """Reads the runs, prints their table, draws them."""
    given = parse(argv)
    panels = arrange([open_run(Path(directory)) for directory in given.runs])
    print(markdown(panels))
    if given.to:
        from fedjax_nc.figures.curves import together
        from fedjax_nc.io import files

        lines, panel_of = _lines(panels)
        figure, to = together(lines, title=given.title, panels=panel_of), Path(given.to)
        with files.replacing(to) as file:
            figure.savefig(file, format=to.suffix[1:], dpi=120)
        print(f"\nwritten: {given.to}", file=sys.stderr)
    return 0


def open_run(directory: Path) -> Run:
    """Returns a run's configuration, tested rounds and, if it is finished, summary."""
    from fedjax_nc.io import rundir

    cfg, (rows, summary) = rundir.read(directory), rundir.results(directory)
    tested = [row for row in rows if "global_accuracy" in row and "seconds" in row]
    if not tested:
        raise UserError(f"{directory} has no evaluated round yet: leave it out")
    return Run(directory, cfg, rows=tested, summary=summary)


def arrange(runs: list[Run]) -> Panels:
    """Returns the runs by dataset and, within it, by configuration: seeds of one stand together.

    A label is the method and what else tells two runs of it apart. Nothing is left out: a seed
    that comes twice, from two folders, has two lines.
    """
    datasets: dict[str, dict[Any, list[Run]]] = {}
    seen: Counter = Counter()
    for run in runs:
        name = (run.config.dataset, config_hash(run.config))
        turn = seen[(*name, run.config.seed)]
        seen[(*name, run.config.seed)] += 1
        datasets.setdefault(name[0], {}).setdefault((name[1], turn), []).append(run)
    return {
        _title([run for seeds in groups.values() for run in seeds]): _labelled(
            list(groups.values())
        )
        for groups in datasets.values()
    }


def _labelled(groups: list[list[Run]]) -> dict[str, list[Run]]:
    """Returns groups of seeds by a label that tells them apart."""
    every = [settings(seeds[0].config) for seeds in groups]
    names = [seeds[0].config.method for seeds in groups]
    pairs = [
        (every[i], every[j]) for i in range(len(groups)) for j in range(i) if names[i] == names[j]
    ]
    telling = [key for key in every[0] if any(a[key] != b[key] for a, b in pairs)]
    labels = [
        ", ".join([name, *(f"{key}={own[key]}" for key in telling)])
        for name, own in zip(names, every, strict=True)
    ]
    again = {label for label, count in Counter(labels).items() if count > 1}
    return {
        f"{label}, {seeds[0].directory}" if label in again else label: seeds
        for label, seeds in zip(labels, groups, strict=True)
    }


def settings(cfg: RunConfig) -> dict[str, Any]:
    """Returns what can set two runs of a method apart, by dotted name."""
    flat = {}
    for name, value in to_dict(cfg).items():
        flat |= (
            {f"{name}.{k}": v for k, v in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    left_out = ("method", "dataset", "seed", "data.dir")  # told elsewhere, or without effect
    left_out += ("data.partition_order", "execution.pool_mb")
    left_out += ("execution.checkpoint_every", "execution.save_seconds")
    return {name: value for name, value in flat.items() if name not in left_out}


def _title(runs: list[Run]) -> str:
    """Returns a panel's title: the dataset, and the partition and model if all have the same."""
    shared = [{partition_in_words(run.config.data) for run in runs}, {r.config.model for r in runs}]
    return ", ".join([runs[0].config.dataset, *(s.pop() for s in shared if len(s) == 1)])


def _lines(panels: Panels) -> tuple[dict[str, list[list[dict[str, Any]]]], dict[str, str]]:
    """Returns the records of every line's seeds, and its panel; a label names one line only."""
    often = Counter(label for groups in panels.values() for label in groups)
    lines, panel_of = {}, {}
    for title, groups in panels.items():
        for label, seeds in groups.items():
            name = f"{label} on {seeds[0].config.dataset}" if often[label] > 1 else label
            lines[name], panel_of[name] = [run.rows for run in seeds], title
    return lines, panel_of


def markdown(panels: Panels) -> str:
    """Returns a table with a row per configuration, accuracies in per cent over its seeds."""
    several = len(panels) > 1
    head = ["dataset"] * several + [
        "method",
        "seeds",
        "rounds",
        "last round",
        f"mean of last {LAST}",
    ]
    head += ["best", *(metric.label for metric in PERSONAL), "s/round"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for groups in panels.values():
        for label, seeds in groups.items():
            cells = [seeds[0].config.dataset] if several else []
            cells += ["`" + label.replace("|", "\\|") + "`"]  # a bare bar ends the cell
            cells += [", ".join(str(run.config.seed) for run in seeds), _rounds(seeds)]
            curves = [[100 * row["global_accuracy"] for row in run.rows] for run in seeds]
            for value in (lambda c: c[-1], lambda c: statistics.fmean(c[-LAST:]), max):
                cells.append(mean_and_spread([value(curve) for curve in curves]))
            own = [{**run.rows[-1], **run.summary} for run in seeds]
            for metric in PERSONAL:
                found = [one[metric.name] for one in own if one.get(metric.name) is not None]
                cells.append(mean_and_spread([100 * value for value in found]))
            cells.append(seconds_in_words([_seconds(run) for run in seeds]))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Accuracies in per cent; ±: {SPREAD}."])


def _rounds(seeds: list[Run]) -> str:
    first, *others = sorted({run.rows[-1]["round"] for run in seeds})
    return f"{first} to {others[-1]}" if others else str(first)


def _seconds(run: Run) -> tuple[int, float]:
    """Returns how many seeds ran at once, and the seconds of a round of all of them."""
    at_once = run.summary.get("seeds_in_parallel", 1)
    return at_once, statistics.median(row["seconds"] for row in run.rows)


def parse(argv: list[str]) -> Any:
    """Returns the run directories and where the picture goes, checked."""
    import tyro

    prog = command("curves")
    about = tyro.conf.arg(
        metavar="RUN_DIR ...",
        help="Run directories, of any seeds and datasets.",
        help_behavior_hint="",
    )
    to = tyro.conf.arg(
        metavar="FILE", help="Write the picture here: .png, .svg or .pdf.", help_behavior_hint=""
    )
    shape = dataclasses.make_dataclass(
        "Curves",
        [
            ("runs", Annotated[tyro.conf.Positional[tuple[str, ...]], about]),
            ("to", Annotated[str | None, to], None),
            (
                "title",
                Annotated[str, tyro.conf.arg(help="Title of the picture.", help_behavior_hint="")],
                "",
            ),
        ],
        frozen=True,
    )
    shape.__doc__ = (
        "Draw the accuracy of finished or running runs over each other and print their table.\n\n"
        "Seeds of one configuration become a mean with its spread; every dataset has a panel.\n\n"
        f"Example: {prog} runs/*/*/*/seed* --to curves.png"
    )
    given: Any = read(shape, argv, prog=prog)
    if not given.runs:
        raise UserError(f"no run directory was given: name one that `{command('run')}` has left")
    for run in given.runs:
        check_path("run directory", run)
    check_path("--to", given.to or "")
    if len({Path(run).absolute() for run in given.runs}) < len(given.runs):
        raise UserError("the same run directory was given twice: give each once")
    if given.title and not given.to:
        raise UserError("--title has no effect without --to: say where the picture goes")
    if given.to and Path(given.to).suffix not in FORMATS:
        raise UserError(f"--to={given.to}: give a file that ends in {', '.join(FORMATS)}")
    if given.to and not Path(given.to).absolute().parent.is_dir():
        raise UserError(f"--to={given.to}: give a file in a folder that exists")
    return given
