"""The board: one HTML file to filter, group, sort and draw many runs, with all of Bokeh in it."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

_NUMBERS = 190_000  # of all curves together: 1.2 MB of text beside Bokeh's 1.3
_FEWEST = 20  # points that a curve keeps in any case
_HERE = Path(__file__).parent


class Run(NamedTuple):
    """A run as the page shows it."""

    name: str
    link: str  # to its directory, from the page
    report: str  # to its report; empty if there is none
    settings: Mapping[str, str]
    end: str  # its last round, and of how many if it is not finished
    rows: Sequence[Mapping[str, Any]]  # the records of tested rounds
    values: Mapping[str, Any]  # what it came to


class Shown(NamedTuple):
    """A number of a run and how it is written."""

    name: str
    label: str
    digits: int = 2
    factor: int = 1


class Choice(NamedTuple):
    """The metrics among which the page's reader chooses."""

    columns: Sequence[Shown]  # of the table
    curves: Sequence[Shown]
    spreads: Sequence[tuple[str, str]]  # whose accuracies over clients, and how that is called


def page(title: str, runs: Sequence[Run], *, choice: Choice, left_out: Sequence[str] = ()) -> str:
    """Returns the board as one HTML file that needs no other.

    Args:
      title: of the page.
      runs: at least one.
      choice: what there is to look at.
      left_out: why some other runs cannot be shown, a line each.
    """
    every = list(runs[0].settings)
    values = {name: _in_order({run.settings[name] for run in runs}) for name in every}
    differing = [name for name in every if len(values[name]) > 1]
    most = max(_FEWEST, _NUMBERS // (len(runs) * len(choice.curves)))
    content = _content(runs, choice=choice, values={n: values[n] for n in differing}, most=most)
    resources = _bokeh().resources.Resources("inline", components=["bokeh"], log_level="error")
    bokeh = "\n".join(resources.js_raw)
    script = (_HERE / "board.js").read_text()
    shared = {name: values[name][0] for name in every if name not in differing}
    parts = {
        "title": escape(title),
        "style": (_HERE / "board.css").read_text(),
        "hashes": " ".join(_hash(text) for text in (bokeh, script)),
        "left_out": _left_out(left_out),
        "facets": "".join(
            _facet(i, name, values=values[name], runs=runs) for i, name in enumerate(differing)
        ),
        "groups": "".join(
            _box(name, f'value="{i}"' + " checked" * (name != "seed"))
            for i, name in enumerate(differing)
        ),
        "metrics": _options([(str(i), shown.label) for i, shown in enumerate(choice.curves)]),
        "whose": _options(choice.spreads),
        "head": "".join(
            [_head(name, name) for name in differing]
            + [_head("round", "round", number=True)]
            + [_head(shown.name, shown.label, number=True) for shown in choice.columns]
        ),
        "note": _note(runs, most),
        "shared": "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in shared.items()),
        "data": _json(content),
        "bokeh": bokeh,
        "script": script,
    }
    template = (_HERE / "board.html").read_text()
    return re.sub(r"\[\[(\w+)\]\]", lambda found: parts[found[1]], template)


def _content(
    runs: Sequence[Run], *, choice: Choice, values: Mapping[str, list[str]], most: int
) -> dict[str, Any]:
    """Returns what the page's script reads; settings are numbers of their values."""
    from scipy.special import stdtrit

    schedules: dict[tuple[int, ...], int] = {}
    found = []
    for run in runs:
        rows = _thinned(run, most)
        schedule = tuple(row["round"] for row in rows)
        numbers = [*choice.columns, *_over_clients(choice.spreads)]
        curves = {s.name: [_number(row.get(s.name), s) for row in rows] for s in choice.curves}
        found.append(
            {
                "name": run.name,
                "link": run.link,
                "report": run.report,
                "text": " ".join([run.name, *(run.settings[name] for name in values)]).lower(),
                "settings": [own.index(run.settings[name]) for name, own in values.items()],
                "end": run.end,
                "values": {s.name: _number(run.values.get(s.name), s) for s in numbers}
                | {"round": run.rows[-1]["round"]},
                "schedule": schedules.setdefault(schedule, len(schedules)),
                "curves": {k: c for k, c in curves.items() if any(v is not None for v in c)},
            }
        )
    return {
        "method": runs[0].settings["method"],
        "settings": [
            {"name": name, "values": own, "telling": _tells(name, runs)}
            for name, own in values.items()
        ],
        "columns": [[shown.name, shown.digits] for shown in choice.columns],
        "curves": [{"name": s.name, "label": s.label, "digits": s.digits} for s in choice.curves],
        "t": [round(float(stdtrit(n, 0.975)), 5) for n in range(1, len(runs))],
        "rounds": list(schedules),
        "runs": found,
        "pictures": {
            "curves": _bokeh().embed.json_item(_curves()),
            "clients": _bokeh().embed.json_item(_clients()),
        },
    }


def _over_clients(spreads: Sequence[tuple[str, str]]) -> list[Shown]:
    ends = ("", "_std", "_worst")
    return [Shown(f"{whose}_accuracy{end}", "", factor=100) for whose, _ in spreads for end in ends]


def _thinned(run: Run, most: int) -> list[Mapping[str, Any]]:
    """Returns at most so many records: the last tested one in each of equal spans of rounds."""
    span = max(1, math.ceil(run.rows[-1]["round"] / most))
    last = {(row["round"] - 1) // span: row for row in run.rows}
    return list(last.values())


def _number(value: Any, shown: Shown) -> float | None:
    """Returns a number as it is kept, with a digit more than is written; None for none."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(shown.factor * value, shown.digits + 1)


def _tells(name: str, runs: Sequence[Run]) -> bool:
    """Returns whether two runs of one method differ in a setting."""
    pairs = {(run.settings["method"], run.settings[name]) for run in runs}
    return len(pairs) > len({method for method, _ in pairs})


def _in_order(values: set[str]) -> list[str]:
    """Returns numbers by their size, and then other texts by the alphabet."""

    def place(text: str) -> tuple[bool, float, str]:
        try:
            return False, float(text), text
        except ValueError:
            return True, 0.0, text

    return sorted(values, key=place)


def _curves() -> Any:
    """Returns the empty picture of curves, whose sources the page fills."""
    models = _bokeh().models
    plot = _plot(height=360)
    plot.xaxis.axis_label = "round"
    plot.xaxis.ticker.mantissas = [1, 2, 5]
    plot.xaxis.ticker.min_interval = 1
    bands, lines = _source("bands", "xs ys colour"), _source("lines", "xs ys colour dash")
    points = _source("points", "x y colour alpha label text")
    plot.patches("xs", "ys", source=bands, fill_color="colour", fill_alpha=0.13, line_color=None)
    stroke: dict[str, Any] = {"color": "colour", "line_dash": "dash", "line_width": 2}
    drawn = plot.multi_line("xs", "ys", source=lines, **stroke)
    plot.y_range.renderers = [drawn]  # a band of two seeds can be many times as high
    plot.y_range.range_padding = 0.3
    look: dict[str, Any] = {"color": "colour", "hover_alpha": 0.9, "size": 9}
    dots = plot.scatter("x", "y", source=points, alpha="alpha", **look)
    told = [("row", "@label"), ("round", "@x"), ("value", "@text")]
    plot.add_tools(models.HoverTool(renderers=[dots], tooltips=told))
    plot.add_layout(models.Span(name="cursor", dimension="height", location=0, line_dash="dotted"))
    plot.name = "curves"
    return plot


def _clients() -> Any:
    """Returns the empty picture of accuracies over clients."""
    models = _bokeh().models
    plot = _plot(height=100, y_range=models.FactorRange(), x_range=(0, 100))
    ends = _source("ends", "y middle low high worst colour label text")
    bars: dict[str, Any] = {"line_width": 10, "line_alpha": 0.35}
    bar = plot.segment("low", "y", "high", "y", source=ends, color="colour", **bars)
    dots: dict[str, Any] = {"source": ends, "color": "colour", "size": 10}
    middle = plot.scatter("middle", "y", **dots)
    worst = plot.scatter("worst", "y", marker="triangle", **dots)
    told = [("row", "@label"), ("clients", "@text")]
    plot.add_tools(models.HoverTool(renderers=[bar, middle, worst], tooltips=told))
    plot.ygrid.visible = False
    plot.toolbar_location = None
    plot.name = "clients"
    return plot


def _plot(**options: Any) -> Any:
    plot = _bokeh().plotting.figure(
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset,save",
        active_drag=None,  # a finger on the picture scrolls the page
        background_fill_color=None,
        border_fill_color=None,
        **options,
    )
    plot.toolbar.logo = None
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.minor_tick_line_color = None
    return plot


def _bokeh() -> Any:
    """Returns the library, which is an extra, with the parts that are used."""
    import bokeh.embed  # pyright: ignore[reportMissingImports]
    import bokeh.models  # pyright: ignore[reportMissingImports]
    import bokeh.plotting  # pyright: ignore[reportMissingImports]
    import bokeh.resources  # pyright: ignore[reportMissingImports]

    return bokeh


def _source(name: str, columns: str) -> Any:
    return _bokeh().models.ColumnDataSource(
        data={column: [] for column in columns.split()}, name=name
    )


def _note(runs: Sequence[Run], most: int) -> str:
    """Returns what a reader of the curves should know."""
    text = (
        "A line is the mean over the runs of a row at the rounds that all of them have, its band "
        "the 95 % t interval of that mean, which may leave the picture; a single run has none."
    )
    tested = max(len(run.rows) for run in runs)
    kept = max(len(_thinned(run, most)) for run in runs)
    if kept < tested:
        text += f" Curves are thinned to {kept} of up to {tested} tested rounds."
    return text


def _left_out(reasons: Sequence[str]) -> str:
    if not reasons:
        return ""
    items = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
    return f"<details open><summary>Left out: {len(reasons)}</summary><ul>{items}</ul></details>"


def _facet(number: int, name: str, *, values: Sequence[str], runs: Sequence[Run]) -> str:
    """Returns the boxes that choose the values of a setting."""
    own = [run.settings[name] for run in runs]
    boxes = "".join(
        _box(value, f'name="{number}" value="{i}"', more=f"<small>{own.count(value)}</small>")
        for i, value in enumerate(values)
    )
    return (
        f'<details class="facet"><summary>{escape(name)}</summary>'
        f"<fieldset><legend>Only</legend>{boxes}</fieldset></details>"
    )


def _box(text: str, attributes: str, more: str = "") -> str:
    return f'<label><input type="checkbox" {attributes}> <span>{escape(text)}</span>{more}</label>'


def _options(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<option value="{escape(v)}">{escape(text)}</option>' for v, text in pairs)


def _head(column: str, text: str, *, number: bool = False) -> str:
    kind = ' class="number"' * number
    button = f'<button type="button">{escape(text)}</button>'
    return f'<th scope="col" data-column="{escape(column)}"{kind}>{button}</th>'


def _hash(script: str) -> str:
    """Returns the name by which the page's policy allows a script, and no other."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _json(content: Any) -> str:
    """Writes JSON that ends no script element, whatever is in it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
