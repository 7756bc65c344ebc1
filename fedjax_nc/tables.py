"""Tables of runs, for people and for papers; standard library only, so that commands start fast."""

import csv
import io
import re
import statistics
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

from fedjax_nc.config import Data, RunConfig
from fedjax_nc.errors import UserError, quoted, unknown
from fedjax_nc.metrics import BY_NAME, Metric, class_accuracy, columns, curve, to_target

SPREAD = "sample standard deviation over seeds"


class Row(NamedTuple):
    """One configuration: its settings, and a summary per seed."""

    config: RunConfig
    summaries: Sequence[Mapping[str, Any]]
    records: Sequence[Sequence[Mapping[str, Any]]] = ()  # of each seed's rounds, for targets


class Table(NamedTuple):
    """A table as text, and what is to be said below it."""

    header: list[str]
    rows: list[list[str]]
    note: str


def compare(rows: Sequence[Row], names: Sequence[str] = (), targets: Sequence[float] = ()) -> Table:
    """Makes the table of several configurations: accuracies over seeds, cost of a round.

    Metrics of these names, if there are any, stand in place of the usual accuracies, and rounds to
    these targets in place of those to the accuracy that the runs stopped at.
    """
    check_targets(targets, [row.config for row in rows])
    found = [summary for row in rows for summary in row.summaries]
    shown = named(names) if names else [metric for metric in columns(found) if metric.percent]
    header = ["method", *(m.label or m.name for m in shown), "lr", "s/round", "kB up", "kB down"]
    body = [_cells(row, shown) for row in rows]
    aimed, reached = _reached(rows, targets)
    for headings, rounds in reached.items():
        header += headings
        means = [_mean_rounds(n, most=r.config.rounds) for n, r in zip(rounds, rows, strict=True)]
        body = [cells + _to_target(m, means[0]) for cells, m in zip(body, means, strict=True)]
    seeds = [str(summary["seed"]) for summary in rows[0].summaries]
    spread = f"mean ± {SPREAD} {', '.join(seeds)}" if len(seeds) > 1 else f"seed {seeds[0]}"
    note = (
        f"Accuracies in per cent, {spread}; worst: mean of the worst tenth of clients. lr: the "
        "first round's learning rate. Kilobytes per client and round."
    )
    if aimed:
        note += (
            f" Target: {' or '.join(map(_percent, aimed))} per cent, the mean over seeds of the "
            "first tested round; + counts seeds that did not reach it by all their rounds. "
            "Speed-up: beside the first method."
        )
    return Table(header, body, note=note)


def check_targets(targets: Any, configs: Sequence[RunConfig] = ()) -> None:
    """Refuses targets that are no shares, come twice, or lie above where these runs end."""
    if not isinstance(targets, Sequence) or isinstance(targets, str):
        raise UserError(f"targets={quoted(targets)}: give a tuple of shares, as (0.2, 0.3)")
    for target in targets:
        share = float(target) if isinstance(target, Real) else 0.0
        if not 0 < share < 1:
            raise UserError(
                f"target {quoted(target)}: give shares between 0 and 1, as 0.2 for 20 per cent"
            )
        for stop in (cfg.evaluation.stop_at for cfg in configs):
            if stop is not None and share > stop:
                raise UserError(
                    f"target {share:g} is above {stop:g}, where the runs end "
                    "(--evaluation.stop_at): give targets up to it, or runs without it"
                )
    if len(set(targets)) < len(targets):
        raise UserError(f"targets {' '.join(map(_percent, targets))} %: give each once")


def named(names: Sequence[str]) -> list[Metric]:
    """Returns the metrics of these names; refuses what is none, or is not one number."""
    numbers = {name: metric for name, metric in BY_NAME.items() if metric.of is not class_accuracy}
    for name in names:
        if name not in numbers:
            raise unknown("column", name, allowed=numbers)
    return [numbers[name] for name in names]


def _cells(row: Row, shown: Sequence[Metric]) -> list[str]:
    cells = [str(row.summaries[0]["method"])]
    for metric in shown:
        values = [s[metric.name] for s in row.summaries if s.get(metric.name) is not None]
        scale, digits = (100, 1) if metric.percent else (1, metric.digits)
        cells.append(mean_and_spread([scale * value for value in values], digits=digits))
    times = [(s["seeds_in_parallel"], s["seconds_per_round"]) for s in row.summaries]
    cells += [f"{row.config.local.lr:g}", seconds_in_words(times)]
    cells += [f"{row.summaries[0][f'bytes_{way}_per_client'] / 1e3:.0f}" for way in ("up", "down")]
    return cells


def _percent(share: float) -> str:
    return f"{100 * share:g}"


def _reached(rows: Sequence[Row], targets: Sequence[float]) -> tuple[list[float], dict[Any, Any]]:
    """Returns the targets of a table and, by the headings of its columns, the rounds to each.

    Rounds are the first tested ones of every row's seeds, None where the target is not reached.
    Without targets they are those to the accuracy that all runs stopped at, if they did.
    """
    found: dict[tuple[str, str], list[list[int | None]]] = {}
    for target in targets:
        headings = (f"rounds to {_percent(target)} %", f"speed-up to {_percent(target)} %")
        found[headings] = [
            [to_target(curve(records), target)["round"] for records in row.records] for row in rows
        ]
    summaries = [summary for row in rows for summary in row.summaries]
    if targets or not all(summary.get("stop_at") for summary in summaries):
        return list(targets), found
    own = [[summary["rounds_to_target"] for summary in row.summaries] for row in rows]
    stops = sorted({summary["stop_at"] for summary in summaries})
    return stops, {("rounds to target", "speed-up"): own}


def _mean_rounds(found: Sequence[int | None], most: int) -> tuple[bool, float]:
    """Returns whether a seed missed the target, and the mean rounds, which are then a bound."""
    return None in found, statistics.fmean(most if n is None else n for n in found)


def _to_target(mean: tuple[bool, float], first: tuple[bool, float]) -> list[str]:
    """Returns the mean rounds to a target, and how many times fewer than the first method's."""
    (missed, rounds), (never, base) = mean, first
    ratio = "-" if never else f"{'<' * missed}{base / rounds:.1f}x"
    return [f"{rounds:.0f}{'+' * missed}", ratio]


def render(table: Table, form: str = "markdown") -> str:
    """Writes a table as markdown, latex (with booktabs' rules) or csv."""
    forms = {"markdown": _markdown, "latex": _latex, "csv": _csv}
    if form not in forms:
        raise unknown("form of a table", form, allowed=forms)
    return forms[form](table)


def _markdown(table: Table) -> str:
    lines = [f"| {' | '.join(table.header)} |", "|---" * len(table.header) + "|"]
    for first, *rest in table.rows:
        name = "`" + first.replace("|", "\\|") + "`"  # a bare bar ends the cell
        lines.append(f"| {' | '.join([name, *rest])} |")
    return "\n".join([*lines, "", table.note]) + "\n"


def _latex(table: Table) -> str:
    lines = [
        f"% {table.note}",
        r"\begin{tabular}{l" + "r" * (len(table.header) - 1) + "}",
        r"\toprule",
        " & ".join(map(escaped, table.header)) + r" \\",
        r"\midrule",
        *(" & ".join(map(escaped, row)) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Writes text so that LaTeX prints it; ± is a symbol of mathematics."""
    text = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", r"\textbackslash "))
    return text.replace("|", r"\textbar{}").replace(" ± ", r" $\pm$ ")


def _csv(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.header, *table.rows])
    return text.getvalue()


def mean_and_spread(values: Sequence[float], *, digits: int = 1, sign: str = " ± ") -> str:
    """Returns the mean and, of several values, their sample standard deviation (n - 1)."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean}{sign}{statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def seconds_in_words(runs: Sequence[tuple[int, float]]) -> str:
    """Returns the mean seconds of a round; those of several seeds at once stand apart and say so.

    Each run is given as (seeds that ran at once, seconds of a round of all of them).
    """
    texts = []
    for count in sorted({count for count, _ in runs}):
        mean = statistics.fmean(seconds for other, seconds in runs if other == count)
        texts.append(f"{mean:.2f} ({count} seeds at once)" if count > 1 else f"{mean:.2f}")
    return ", ".join(texts)


def in_words(cfg: RunConfig) -> str:
    """Returns what a table or panel is about: `cifar10, dirichlet with alpha 0.1, cnn, ...`."""
    people = cfg.federation
    who = f"{people.participants} of {people.clients} clients"
    who += "".join(
        f", {name} {share:g}"
        for name, share in (("dropout", people.dropout), ("straggler", people.straggler))
        if share
    )
    limit = f" ({cfg.data.limit} examples)" if cfg.data.limit else ""
    partition = partition_in_words(cfg.data)
    return f"{cfg.dataset}{limit}, {partition}, {who}, {cfg.model}, {cfg.rounds} rounds"


def partition_in_words(data: Data) -> str:
    """Returns how the data is dealt: `dirichlet with alpha 0.1 (fedetf)`."""
    if data.partition_file:
        return f"partition of {data.partition_file}"
    if data.partition in ("shards", "classes"):
        return f"{data.per_client} {data.partition} per client"
    if data.partition == "quantity":
        return f"quantity with alpha {data.alpha:g}"
    if data.partition == "dirichlet":
        return f"dirichlet with alpha {data.alpha:g} ({data.rule}'s rule)"
    return data.partition
