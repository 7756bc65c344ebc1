"""What all figures share: colours of runs, panels, bars, curves, heat maps, files."""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers tell apart, without yellow, faint on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# SVG files are the same bytes for the same numbers, and keep their text as text; whatever the
# user has set, a figure is laid out by its own engine or not at all
SETTINGS: Any = {
    "svg.hashsalt": "fedjax_nc",
    "svg.fonttype": "none",
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}
HATCHED: Any = {"alpha": 0.4, "hatch": "////", "edgecolor": "white", "linewidth": 0}
WIDTH = 9.6  # inches, as wide as the report
DOTS = 110  # per inch


class Drawn(NamedTuple):
    """A figure, the stem of its file, and what a reader needs to know about it."""

    name: str
    figure: "Figure"
    caption: str


class Mark(NamedTuple):
    """An entry of a legend that stands for no run: a line style, a marker or a filling."""

    label: str
    options: dict[str, Any]


def encoded(drawn: Sequence[Drawn]) -> Iterator[tuple[str, bytes]]:
    """Yields the name and content of every figure's files: PNG and SVG, in one layout."""
    import matplotlib

    for name, figure, _ in drawn:
        made = []
        with matplotlib.rc_context(SETTINGS):
            figure.draw_without_rendering()
            figure.set_layout_engine(None)  # the layout is found once: it takes longer than drawing
            for kind, about in (("png", None), ("svg", {"Date": None})):
                content = io.BytesIO()
                figure.savefig(content, format=kind, dpi=DOTS, metadata=about)
                made.append((f"{name}.{kind}", content.getvalue()))
        yield from made


def colours(runs: dict[str, dict]) -> dict[str, str]:
    """Returns each run's colour, by its place; a run without results, {}, has a colour too."""
    return {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(runs)}


def present(runs: dict[str, dict]) -> dict[str, dict]:
    """Returns the runs that have results."""
    return {label: study for label, study in runs.items() if study}


def as_array(values: Any) -> np.ndarray:
    """Converts JSON's numbers to an array; None becomes NaN, which matplotlib leaves out."""
    return np.array([] if values is None else values, dtype=float)


def as_float(value: float | int | None) -> float:
    """Converts one of JSON's numbers; None becomes NaN."""
    return math.nan if value is None else float(value)


def show(value: float | int | None, error: float | int | None = None, *, digits: int = 4) -> str:
    """Writes a number for people, with as many digits as its error allows; a dash for none."""
    if value is None or math.isnan(value):
        return "-"
    if error is not None and not math.isnan(error):
        places = max(0, 1 - _exponent(error)) if error else 3
        return f"{value:,.{places}f} ± {error:,.{places}f}"
    if isinstance(value, int) or value == 0 or math.isinf(value):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if not -4 <= _exponent(value) < 7:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(power)}"
    return f"{value:,.{max(0, digits - 1 - _exponent(value))}f}"


def _exponent(value: float) -> int:
    """Returns the power of ten of the first digit."""
    return math.floor(math.log10(abs(value)))


def plain(label: str, width: int = 26) -> str:
    """Breaks a label into lines; a dollar in it is a dollar and starts no formula."""
    return textwrap.fill(label, width).replace("$", r"\$")


def panels(
    rows: int, columns: int, height: float, *, width: float = WIDTH, **options: Any
) -> "tuple[Figure, list[Any]]":
    """Makes a figure of rows of panels; returns it and its axes in reading order."""
    from fedjax_nc.figures.picture import Picture

    figure = Picture(figsize=(width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def grid(
    count: int, columns: int, height: float, *, width: float = 3.2, **options: Any
) -> "tuple[Figure, list[Any]]":
    """Makes a figure of `count` panels, at most `columns` in a row; returns it and its axes."""
    columns = min(count, columns)
    height *= 1.2 if count == 1 else 1.0
    whole = max(columns * width, 4.5)
    figure, axes = panels(
        math.ceil(count / columns), columns, height=height, width=whole, **options
    )
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def legend(figure: "Figure", runs: dict[str, str], marks: Sequence[Mark] = ()) -> None:
    """Puts one legend below all panels: runs by colour, then what else is drawn."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c, linewidth=2.5, label=plain(k, 40)) for k, c in runs.items()]
    handles += [_handle(mark) for mark in marks]
    longest = max(
        (len(line) for h in handles for line in str(h.get_label()).split("\n")), default=0
    )
    fitting = int(figure.get_figwidth() * 12 / (longest + 7))
    if handles:
        columns = max(1, min(len(handles), fitting))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def _handle(mark: Mark) -> Any:
    """Returns what stands before a mark's label in the legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if "facecolor" in mark.options:
        return Patch(label=mark.label, **mark.options)
    return Line2D([], [], **{"color": "0.3", **mark.options}, label=mark.label)


def bar_marks(first: str, second: str) -> list[Mark]:
    """Returns the legend of `bars` with two series."""
    return [
        Mark(first, {"facecolor": "0.3"}),
        Mark(second, {"facecolor": "0.3", **HATCHED}),
    ]


def bars(
    axis: Any,
    series: Sequence[dict[str, float]],
    shades: dict[str, str],
    errors: dict[str, float] | None = None,
) -> None:
    """Draws horizontal bars with their values: a group per run, the second series hatched."""
    thick = 0.8 / len(series)
    for j, values in enumerate(series):
        for i, label in enumerate(values):
            value, error = values[label], (errors or {}).get(label, math.nan)
            place = i + (j - (len(series) - 1) / 2) * thick
            end = 0.0 if math.isnan(value) else max(value, 0) + (0 if math.isnan(error) else error)
            axis.barh(
                place,
                value,
                thick * 0.92,
                color=shades[label],
                capsize=3,
                xerr=None if math.isnan(error) else error,
                **(HATCHED if j else {}),
            )
            axis.annotate(
                show(value, digits=3),
                (end, place),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
    name_rows(axis, list(series[0]))
    axis.margins(x=0.3)
    axis.set_xlim(left=min(0, axis.get_xlim()[0]) if _negative(series) else 0)
    axis.locator_params(axis="x", nbins=4)


def _negative(series: Sequence[dict[str, float]]) -> bool:
    """Returns whether any bar points to the left."""
    return any(value < 0 for values in series for value in values.values())


def name_rows(axis: Any, labels: list[str]) -> None:
    """Names the runs along the y axis, the first on top."""
    axis.set_yticks(range(len(labels)), [plain(label, 20) for label in labels], fontsize=8)
    axis.set_ylim(len(labels) - 0.45, -0.55)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)


def curve(axis: Any, rows: list[dict], key: str, colour: str, dashed: bool = False) -> None:
    """Draws one of the tracked values against the round."""
    x = as_array([row.get("round") for row in rows])
    y = as_array([row.get(key) for row in rows])
    axis.plot(
        x,
        y,
        color=colour,
        linestyle="--" if dashed else "-",
        marker="o",
        markersize=3 if len(rows) < 30 else 0,
    )
    axis.set_xlabel("round", fontsize=9)
    axis.locator_params(axis="x", integer=True)
    axis.grid(alpha=0.3)


def square_pairs(count: int, names: Sequence[Any]) -> "tuple[Figure, list[tuple[Any, Any]]]":
    """Makes two square panels for each of `count` runs, two runs in a row.

    Args:
      count: of runs.
      names: of rows and columns, which need room.
    """
    across = min(2, count)
    height = (2.4 if across == 2 else 4.2) + 0.05 * max(len(str(name)) for name in names)
    figure, axes = panels(math.ceil(count / across), 2 * across, height=height)
    figure.set_layout_engine("compressed")  # squares leave gaps that labels of the next row need
    for spare in axes[2 * count :]:
        spare.remove()
    return figure, [(axes[2 * i], axes[2 * i + 1]) for i in range(count)]


def heat(axis: Any, matrix: Any, names: Sequence[Any], what: str, scale: Any) -> None:
    """Draws a square matrix by colour; a dozen of its rows and columns are named."""
    axis.imshow(as_array(matrix), norm=scale, cmap="viridis")
    shown = range(0, len(names), math.ceil(len(names) / 12))
    axis.set_xticks(shown, [plain(str(names[i])) for i in shown], rotation=90, fontsize=7)
    axis.set_yticks(shown, [plain(str(names[i])) for i in shown], fontsize=7)
    axis.set_xlabel(what, fontsize=8)
    axis.set_ylabel(what, fontsize=8)


def colour_bar(figure: "Figure", scale: Any, label: str, colours: str = "viridis") -> None:
    """Adds one colour scale for all panels, at the right."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator, NullFormatter

    shared = ScalarMappable(scale, colours)
    long = 6 * figure.get_figheight()  # as wide in every figure
    bar = figure.colorbar(shared, ax=figure.axes, label=label, aspect=long, pad=0.02, fraction=0.04)
    if isinstance(scale, LogNorm):
        low, high = bar.ax.get_ylim()
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        bar.ax.yaxis.set_major_formatter("{x:g}")
        bar.ax.yaxis.set_minor_formatter(NullFormatter())


def span(values: Sequence[Any]) -> tuple[float, float]:
    """Returns the smallest and the largest finite number of all arrays; 0 and 1 without any."""
    flat = np.concatenate([as_array(v).ravel() for v in values] or [np.zeros(0)])
    flat = flat[np.isfinite(flat)]
    return (float(flat.min()), float(flat.max())) if flat.size else (0.0, 1.0)
