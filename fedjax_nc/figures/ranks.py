"""Average ranks of methods over settings with the critical difference (Demsar, JMLR 2006)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedjax_nc.figures import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEP = 0.32  # inches of height that a method's name takes


def critical_difference(
    ranks: Mapping[str, float],
    difference: float,
    *,
    together: Sequence[tuple[float, float]] = (),
    title: str = "",
) -> "Figure":
    """Draws average ranks along a line, the best on the left, bars over those that do not differ.

    Args:
      ranks: of each method.
      difference: how far apart two ranks differ.
      together: spans of ranks within which no two methods differ.
      title: of the figure.
    """
    order = sorted(ranks, key=lambda name: ranks[name])
    half = (len(order) + 1) // 2
    deep = 0.35 + 0.28 * len(together)  # from the axis to the first name, in inches
    height = deep + half * _STEP + 1.1
    figure, (axis,) = canvas.panels(1, 1, height=height, width=8.0)
    high = max(len(order), 2)
    axis.set(xlim=(0.6, high + 0.4), ylim=(-deep - half * _STEP, 0.75))
    axis.axis("off")
    axis.plot([1, high], [0, 0], color="black", linewidth=1)
    for tick in range(1, high + 1):
        axis.plot([tick, tick], [0, 0.07], color="black", linewidth=1)
        axis.annotate(f"{tick}", (tick, 0.1), ha="center", va="bottom", fontsize=9)
    start = 1.0
    axis.plot([start, start + difference], [0.55, 0.55], color="black", linewidth=1.5)
    for end in (start, start + difference):
        axis.plot([end, end], [0.49, 0.61], color="black", linewidth=1.5)
    text = f"critical difference {difference:.2f}"
    axis.annotate(text, (start + difference, 0.55), (6, 0), textcoords="offset points", va="center")
    for i, (low, top) in enumerate(together):
        line = -0.2 - 0.28 * i
        axis.plot([low - 0.04, top + 0.04], [line, line], color=canvas.COLOURS[0], linewidth=4)
    for place, name in enumerate(order):
        left = place < half
        below = -deep - _STEP * (place if left else len(order) - 1 - place)
        edge = 0.95 if left else high + 0.05
        axis.plot([ranks[name], ranks[name], edge], [0, below, below], color="0.35", linewidth=1)
        text = f"{canvas.plain(name, 40)}  {ranks[name]:.2f}" if left else ""
        text = text or f"{ranks[name]:.2f}  {canvas.plain(name, 40)}"
        side = "right" if left else "left"
        shift = (-4 if left else 4, 0)
        axis.annotate(
            text, (edge, below), shift, textcoords="offset points", ha=side, va="center", fontsize=9
        )
    if title:
        figure.suptitle(canvas.plain(title, 90))
    return figure
