"""How a paper's table is written: Markdown, LaTeX, CSV, JSON."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedjax_nc.errors import few, unknown
from fedjax_nc.paper_table import PROTOCOL, Made, missing
from fedjax_nc.statistics import LEVEL
from fedjax_nc.tables import Table, escaped
from fedjax_nc.tables import render as render_plain

_FIELDS = (
    *("row", "column", "method", "metric", "unit", "n", "mean", "sd", "low95", "high95"),
    *("paper", "paper_sd", "difference", "p", "p_wilcoxon", "p_holm", "better", "place"),
    *("lr", "lr_from", "last_rounds", "seeds", "values", "missing", "note"),
)
_SHOWN = 12  # cells of one reason that are named


def render(made: Made, form: str = "markdown") -> str:
    """Writes a table as markdown, latex (with booktabs' rules), csv or json."""
    if form not in FORMS:
        raise unknown("form of a table", form, allowed=FORMS)
    return FORMS[form](made)


def _markdown(made: Made) -> str:
    marks = {1: "**{}**", 2: "<u>{}</u>", None: "{}"}
    signs = {True: "⁺", False: "⁻", None: ""}

    def cell(entry: Made) -> str:
        text = marks[entry["place"]].format(spread(entry)) + signs[_sign(entry)]
        return text + (f" ({paper(entry)})" if entry["paper"] is not None else "")

    header, rows = _grid(made, cell)
    rows = [["`" + first.replace("|", "\\|") + "`", *rest] for first, *rest in rows]
    parts = [f"## {made['title']} ({made['recipe']}, {made['scale']})", _lines(header, rows)]
    parts += ["\n".join(f"- {note}" for note in notes(made, signs=signs))]
    header, rows = _details(made)
    if rows:
        parts += [_lines(header, rows)]
    return "\n\n".join(parts) + "\n"


def _latex(made: Made) -> str:
    marks = {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", None: "{}"}
    signs = {True: "$^{+}$", False: "$^{-}$", None: ""}

    def cell(entry: Made) -> str:
        text = marks[entry["place"]].format(escaped(spread(entry))) + signs[_sign(entry)]
        return text + (f" ({paper(entry)})" if entry["paper"] is not None else "")

    header, rows = _grid(made, cell)
    lines = [
        *(f"% {line}" for line in [made["title"], *notes(made, signs=signs)]),
        r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}",
        r"\toprule",
        " & ".join(map(escaped, header)) + r" \\",
        r"\midrule",
        *(" & ".join([escaped(first), *rest]) + r" \\" for first, *rest in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _csv(made: Made) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_FIELDS)
    for entry in made["cells"]:
        writer.writerow([_plain(entry[name]) for name in _FIELDS])
    return text.getvalue()


def _json(made: Made) -> str:
    return json.dumps(made, indent=1) + "\n"


FORMS: dict[str, Callable[[Made], str]] = {
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
}


def _plain(value: Any) -> Any:
    """Returns a number as it is, several of them in one cell, and nothing for None."""
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else value


def spread(entry: Made) -> str:
    """Returns our mean and sample standard deviation, or a dash."""
    if entry["mean"] is None:
        return "-"
    text = f"{entry['mean']:.{entry['digits']}f}"
    return text if entry["sd"] is None else f"{text} ± {entry['sd']:.{entry['digits']}f}"


def paper(entry: Made, *, spread: float | None = None) -> str:
    """Returns the paper's number with as many digits as ours, small ones with all of theirs."""
    value, digits = entry["paper"], entry["digits"]
    text = f"{value:.{digits}f}" if abs(value) >= 1 else f"{value:g}"
    return text if spread is None else f"{text} ± {spread:.{digits}f}"


def _share(p: float | None) -> str:
    """Returns a p for people; one that is too small for three digits is no zero."""
    return "" if p is None else "< 0.001" if p < 0.0005 else f"{p:.3f}"


def _sign(entry: Made) -> bool | None:
    """Returns whether a cell is better than the baseline, None where the tests do not tell."""
    p = entry["p_holm"]
    return entry["better"] if p is not None and p < LEVEL else None


def _grid(made: Made, cell: Callable[[Made], str]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows: a method, its numbers by column, its learning rates."""
    named = {(entry["row"], entry["column"]): entry for entry in made["cells"]}
    columns = [column["name"] for column in made["columns"]]
    rows = []
    for row in made["rows"]:
        entries = [named[row, c] for c in columns if (row, c) in named]
        rates = sorted({e["lr"] for e in entries if e["lr"] is not None})
        cells = [cell(named[row, c]) if (row, c) in named else "" for c in columns]
        rows.append([row, *cells, ", ".join(f"{rate:g}" for rate in rates) or "-"])
    return ["method", *_headings(made), "lr"], rows


def _headings(made: Made) -> list[str]:
    """Returns the names of the columns; those of a small scale stand for settings of the paper."""
    if made["scale"] == "full":
        return [column["name"] for column in made["columns"]]
    found = []
    for column in made["columns"]:
        more = f" and {len(column['same'])} more" if column["same"] else ""
        found.append(f"for {column['name']}{more}")
    return found


def _details(made: Made) -> tuple[list[str], list[list[str]]]:
    """Returns the header and a row of every cell of several seeds or beside a printed number."""
    header = ["method", "setting", "n", "mean ± sd", "95 % interval", "paper", "difference"]
    header += [f"p (t, {made['baseline']})", "p (Wilcoxon)", "p (Holm)"]
    rows = []
    for entry in made["cells"]:
        if entry["mean"] is None:
            continue
        digits = entry["digits"]
        span = ""
        if entry["low95"] is not None:
            span = f"{entry['low95']:.{digits}f} to {entry['high95']:.{digits}f}"
        gap = entry["difference"]
        own = [
            f"`{entry['row']}`",
            entry["column"],
            str(entry["n"]),
            spread(entry),
            span,
            "" if entry["paper"] is None else paper(entry, spread=entry["paper_sd"]),
            "" if gap is None else f"{gap:+.{digits}f}",
            *(_share(entry[name]) for name in ("p", "p_wilcoxon", "p_holm")),
        ]
        rows.append([text.replace("|", "\\|") for text in own])
    return header, rows


def notes(made: Made, *, signs: Mapping[bool | None, str]) -> list[str]:
    """Returns what is to be said below a table: what it shows, what is missing, what is odd."""
    said = [
        "Mean ± sample standard deviation over seeds; in parentheses the paper's number. Best in "
        "bold, second underlined. "
        f"{signs[True]} and {signs[False]}: better and worse than {made['baseline']} by a paired "
        f"t-test on common seeds, Holm's correction over the table, p < {LEVEL:g}."
    ]
    if made["scale"] != "full":
        said.append(
            "Not the paper's settings: columns are named by those, beside ours is the number "
            "of the one that is named, and what was run in their place is told by `Setting`."
        )
    said += [f"Setting: {setting}." for setting in made["settings"][:_SHOWN]]
    said.append(_reported(made))
    said.append(_rates(made))
    same = [f"{c['name']}: {'; '.join(c['same'])}" for c in made["columns"] if c["same"]]
    said += [f"Columns that are the same runs at this scale: {text}." for text in same]
    said += _ranked(made["ranks"])
    for reason, cells in missing(made).items():
        named = few(cells) if len(cells) > _SHOWN else ", ".join(cells)
        said.append(f"Missing ({reason}): {named}.")
    return [text for text in said if text] + [f"Of the paper: {text}." for text in made["quirks"]]


def _reported(made: Made) -> str:
    counts = sorted({e["last_rounds"] for e in made["cells"] if e["last_rounds"]})
    ours = " or ".join(f"the last {n} rounds" if n > 1 else "the last round" for n in counts)
    here = f"here {'the mean of ' * (counts[-1] > 1)}{ours}" if counts else ""
    return f"Global accuracy is of: {made['paper_reports']}{'; ' * bool(here)}{here}."


def _rates(made: Made) -> str:
    sources = sorted({e["lr_from"] for e in made["cells"] if e["lr_from"]})
    words = {PROTOCOL: "the protocol's, not tuned here"}
    if not sources:
        return ""
    said = " or ".join(words.get(source) or source for source in sources)
    return f"lr: the first round's learning rate, {said}."


def _ranked(ranks: Made | None) -> list[str]:
    if not ranks:
        return []
    order = sorted(ranks["average"], key=lambda name: ranks["average"][name])
    text = ", ".join(f"{name} {ranks['average'][name]:.2f}" for name in order)
    count = len(ranks["settings"])
    test = "" if ranks["p"] is None else f"Friedman p = {ranks['p']:.3g}; "
    left = f"; without {few(ranks['left_out'])}" if ranks["left_out"] else ""
    difference = f"Nemenyi's critical difference {ranks['critical_difference']:.2f}"
    return [f"Average ranks over {count} settings: {text} ({test}{difference}{left})."]


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def render_difference(found: Sequence[Made], names: tuple[str, str], form: str = "markdown") -> str:
    """Writes the cells in which two tables differ, those beyond their intervals first.

    Args:
      found: as `paper_table.difference` returns them.
      names: of the two tables.
      form: as of a table.
    """
    if form == "json":
        return json.dumps(list(found), indent=1) + "\n"
    told = [entry for entry in found if entry["difference"]]
    told.sort(key=lambda entry: (not entry["differs"], -abs(entry["difference"])))
    header = ["method", "setting", *names, "difference", "95 % interval", "differs"]
    rows = []
    for entry in told:
        digits, span = entry["digits"], ""
        if entry["low95"] is not None:
            span = f"{entry['low95']:+.{digits}f} to {entry['high95']:+.{digits}f}"
        numbers = [f"{entry[side]:.{digits}f}" for side in ("first", "second")]
        gap = f"{entry['difference']:+.{digits}f}"
        rows.append(
            [entry["row"], entry["column"], *numbers, gap, span, "yes" if entry["differs"] else ""]
        )
    equal = sum(entry["difference"] == 0 for entry in found)
    alone = sum(entry["difference"] is None for entry in found)
    note = (
        f"{len(rows)} of {len(found)} cells differ, {sum(e['differs'] for e in told)} of them "
        f"beyond the 95 % interval of the difference; {equal} are equal, {alone} are missing in "
        "one of the tables."
    )
    return render_plain(Table(header, rows, note=note), form)
