"""Draws docs/layers.svg: who imports whom in the package, from the table in tests/test_layers.py.

`make docs` runs it. The picture leaves out an arrow where a longer way leads to the same layer, and
all arrows to the files at the bottom, which everything may import.
"""

import ast
import itertools
import re
import runpy
import textwrap
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fedjax_nc"
PICTURE = ROOT / "docs/layers.svg"
Edges = dict[str, dict[str, bool]]  # layer -> what it imports -> whether only a list of names there

ROW, WIDE, HIGH = 1.45, 2.45, 1.0  # distance of rows, size of a box
FULL, LIGHT = {"color": "0.35"}, {"color": "0.65", "linestyle": "--"}


def read() -> Edges:
    """Returns the import table, by whole layers."""
    table = runpy.run_path(str(ROOT / "tests/test_layers.py"))["MAY_IMPORT"]
    edges: Edges = {}
    for layer, names in table.items():
        found = edges.setdefault(layer, {})
        for name in sorted(names):
            below, _, part = name.partition(".")
            found[below] = bool(part) and found.get(below, True)
    return edges


def ground(edges: Edges) -> list[str]:
    """Lists the single files that import nothing but one another: what everything may import."""
    found: list[str] = []
    for layer, below in edges.items():  # in the table's order, lower layers first
        if set(below) <= set(found) and not (PACKAGE / layer).is_dir():
            found.append(layer)
    return found


def direct(edges: Edges) -> Edges:
    """Returns the arrows that are drawn: to neighbours, to which no longer way leads."""
    low = ground(edges)
    above = {
        a: {b: part for b, part in below.items() if b not in low}
        for a, below in edges.items()
        if a not in low
    }

    def reached(layer: str, parts: bool) -> set[str]:
        below = [b for b, part in above[layer].items() if parts or not part]
        return set(below).union(*(reached(b, parts) for b in below))

    return {
        a: {
            b: part
            for b, part in below.items()
            if not any(b in reached(other, part) for other in below if other != b)
        }
        for a, below in above.items()
    }


def summary(layer: str) -> str:
    """Returns the first words of a layer's docstring."""
    path = (
        PACKAGE / layer / "__init__.py" if (PACKAGE / layer).is_dir() else PACKAGE / f"{layer}.py"
    )
    line = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
    return re.split("[:;]", line.replace("`", ""))[0].rstrip(".")


def text() -> str:
    """Returns all that the picture shows, a line for each layer."""
    edges = read()
    lines = [
        f"{layer} ({summary(layer)}): {', '.join(b + '*' * part for b, part in below.items())}"
        for layer, below in direct(edges).items()
    ]
    return "\n".join([*lines, f"everything: {', '.join(ground(edges))}"])


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
    x = {a: float(i) for row in rows for i, a in enumerate(row)}

    def cost(row: tuple[str, ...]) -> float:
        at = x | _spread(row)
        mine = [(a, b) for a, b in pairs if a in row or b in row]
        return sum((0.1 if edges[a][b] else 1) * (at[a] - at[b]) ** 2 for a, b in mine)

    for row in itertools.chain(*[rows, rows[::-1]] * 3):
        x |= _spread(min(itertools.permutations(row), key=cost))
    return {a: (x[a] * (WIDE + 0.35), heights[a] * ROW) for a in edges}


def _spread(row: tuple[str, ...]) -> dict[str, float]:
    return {a: i - (len(row) - 1) / 2 for i, a in enumerate(row)}


def draw() -> Figure:
    """Draws boxes by layer and arrows to direct neighbours."""
    edges = direct(read())
    at, low = places(edges), ground(read())
    width = max(abs(x) for x, _ in at.values()) + WIDE / 2 + 0.2
    top = max(y for _, y in at.values()) + 0.7
    figure = Figure(figsize=(width * 1.5, (top + 0.7) * 0.75))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(-width, width), ylim=(-0.7, top))
    axis.axis("off")
    for a, below in edges.items():
        for b, part in below.items():
            (x, y), (to_x, to_y) = at[a], at[b]
            axis.annotate(
                "",
                (to_x, to_y + HIGH / 2),
                (x, y - HIGH / 2),
                arrowprops={"arrowstyle": "-|>", **(LIGHT if part else FULL)},
                zorder=1,
            )
    for layer, (x, y) in at.items():
        _box(axis, layer, summary(layer), x=x, y=y, width=WIDE)
    about = "What everything may import; a dashed arrow above: only some files of that folder"
    _box(axis, "   ".join(low), about, x=0, y=0, width=2 * width - 0.4)
    return figure


def _box(axis, name: str, about: str, *, x: float, y: float, width: float) -> None:
    style = {"facecolor": "#eef3f8", "edgecolor": "#3b6ea5", "zorder": 2}
    corner = (x - width / 2, y - HIGH / 2)
    axis.add_patch(Rectangle(corner, width, HIGH, **style))
    axis.text(x, y + 0.42, name, ha="center", va="top", size=10, weight="bold", zorder=3)
    lines = "\n".join(textwrap.wrap(about, 33 if width == WIDE else 200))
    axis.text(x, y + 0.15, lines, ha="center", va="top", size=6.5, zorder=3)


if __name__ == "__main__":
    with matplotlib.rc_context({"svg.hashsalt": "layers"}):  # the same file every time
        draw().savefig(PICTURE, metadata={"Date": None, "Description": text()})
