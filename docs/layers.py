"""Draws docs/layers.svg: who imports whom in the package, from the table in tests/test_layers.py.

`make docs` runs it. Left out are arrows where a longer way leads to the same layer, arrows to the
single files at the bottom, and imports of files that need the standard library alone, which are
lists of names and settings.
"""

import ast
import itertools
import re
import runpy
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fedjax_nc"
PICTURE = ROOT / "docs/layers.svg"
ROW, WIDE, HIGH = 1.25, 2.45, 0.85  # distance of rows, size of a box
Edges = dict[str, list[str]]  # layer -> layers it imports, lower layers first


def read() -> Edges:
    """Returns the import table by whole layers, without what needs the standard library alone."""
    tests = runpy.run_path(str(ROOT / "tests/test_layers.py"))
    light = {name.removesuffix(".py").replace("/", ".") for name in tests["ONLY_STANDARD_LIBRARY"]}
    return {
        layer: sorted({n.split(".")[0] for n in names if "." not in n or n not in light})
        for layer, names in tests["MAY_IMPORT"].items()
    }


def ground(edges: Edges) -> list[str]:
    """Lists the single files that import one another and no folder."""
    found: list[str] = []
    for layer, below in edges.items():
        if set(below) <= set(found) and _path(layer).name != "__init__.py":
            found.append(layer)
    return found


def direct(edges: Edges) -> Edges:
    """Returns the arrows that are drawn: to neighbours, to which no longer way leads."""
    low = ground(edges)
    above = {a: [b for b in edges[a] if b not in low] for a in edges if a not in low}

    def reached(layer: str) -> set[str]:
        return set(above[layer]).union(*map(reached, above[layer]))

    return {
        a: [b for b in below if not any(b in reached(other) for other in below)]
        for a, below in above.items()
    }


def summary(layer: str) -> str:
    """Returns the first words of a layer's docstring."""
    line = (ast.get_docstring(ast.parse(_path(layer).read_text())) or "").splitlines()[0]
    return re.split("[:;]", line.replace("`", ""))[0].rstrip(".")


def _path(layer: str) -> Path:
    folder = PACKAGE / layer
    return folder / "__init__.py" if folder.is_dir() else PACKAGE / f"{layer}.py"


def text() -> str:
    """Returns all that the picture shows, a line for each layer."""
    edges = read()
    lines = [f"{a} ({summary(a)}): {', '.join(below)}" for a, below in direct(edges).items()]
    return "\n".join([*lines, f"single files: {', '.join(ground(edges))}"])


def levels(edges: Edges) -> dict[str, int]:
    """Returns each layer's row, counted from the bottom: as high as those that import it allow."""
    heights: dict[str, int] = {}
    for layer in edges:  # lower layers first
        heights[layer] = 1 + max((heights[b] for b in edges[layer]), default=0)
    for layer in reversed(edges):
        users = [heights[a] for a in edges if layer in edges[a]]
        heights[layer] = min(users) - 1 if users else heights[layer]
    return heights


def places(edges: Edges) -> dict[str, tuple[float, float]]:
    """Returns where each box is: rows are ordered so that arrows are short."""
    heights = levels(edges)
    pairs = [(a, b) for a, below in edges.items() for b in below]
    rows = [[a for a in edges if heights[a] == h] for h in range(max(heights.values()), 0, -1)]
    x = {a: at for row in rows for a, at in _spread(tuple(row)).items()}

    def cost(row: tuple[str, ...]) -> float:
        at = x | _spread(row)
        return sum((at[a] - at[b]) ** 2 for a, b in pairs if a in row or b in row)

    for row in itertools.chain(*[rows, rows[::-1]] * 3):
        x |= _spread(min(itertools.permutations(row), key=cost))
    return {a: (x[a] * (WIDE + 0.35), heights[a] * ROW) for a in edges}


def _spread(row: tuple[str, ...]) -> dict[str, float]:
    return {a: i - (len(row) - 1) / 2 for i, a in enumerate(row)}


def draw() -> Figure:
    """Draws boxes by layer and arrows to direct neighbours."""
    low, edges = ground(read()), direct(read())
    at = places(edges)
    width = max(abs(x) for x, _ in at.values()) + WIDE / 2 + 0.2
    top = max(y for _, y in at.values()) + HIGH
    figure = Figure(figsize=(width * 1.4, (top + HIGH) * 0.7))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(-width, width), ylim=(-HIGH, top))
    axis.axis("off")
    for a, below in edges.items():
        for b in below:
            (x, y), (to_x, to_y) = at[a], at[b]
            style = {"arrowstyle": "-|>", "color": "0.35"}
            ends = (to_x, to_y + HIGH / 2), (x, y - HIGH / 2)
            axis.annotate("", *ends, arrowprops=style, zorder=1)
    for layer, (x, y) in at.items():
        _box(axis, layer, summary(layer), x=x, y=y, width=WIDE)
    about = "Single files that import no folder"
    _box(axis, "  ".join(low), about, x=0, y=0, width=2 * width - 0.4)
    return figure


def _box(axis: Any, name: str, about: str, *, x: float, y: float, width: float) -> None:
    style = {"facecolor": "#eef3f8", "edgecolor": "#3b6ea5", "zorder": 2}
    axis.add_patch(Rectangle((x - width / 2, y - HIGH / 2), width, HIGH, **style))
    axis.text(x, y + 0.37, name, ha="center", va="top", size=9, weight="bold", zorder=3)
    lines = "\n".join(textwrap.wrap(about, 33))
    axis.text(x, y + 0.1, lines, ha="center", va="top", size=6.5, zorder=3)


if __name__ == "__main__":
    with matplotlib.rc_context({"svg.hashsalt": "layers"}):  # the same file every time
        draw().savefig(PICTURE, metadata={"Date": None, "Description": text()})
