"""The accuracy of several runs over each other: a panel per dataset, a line per configuration."""

import statistics
from typing import TYPE_CHECKING

from fedjax_nc.figures.canvas import COLOURS, grid, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHED = 5  # tested rounds whose mean the strong line shows
STYLES = ("-", "--", ":", "-.")  # one after another when the colours are used up

Curve = dict[int, float]  # round -> accuracy


def draw(panels: dict[str, dict[str, list[Curve]]], title: str = "") -> "Figure":
    """Returns the figure: by panel and label, the mean over seeds with its spread.

    Args:
      panels: panel title -> label -> a curve per seed. A label has one colour in all panels.
      title: above everything.
    """
    labels = dict.fromkeys(label for lines in panels.values() for label in lines)
    looks = {
        label: (COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)])
        for i, label in enumerate(labels)
    }
    longest = max(len(lines) for lines in panels.values())
    figure, axes = grid(len(panels), 2, height=3.6 + 0.16 * longest, width=5.6)
    figure.suptitle(title)
    for axis, (name, lines) in zip(axes, panels.items(), strict=True):
        for label, seeds in lines.items():
            colour, style = looks[label]
            rounds = sorted({number for seed in seeds for number in seed})
            found = [[100 * seed[r] for seed in seeds if r in seed] for r in rounds]
            middle = [statistics.fmean(values) for values in found]
            smooth = [
                statistics.fmean(middle[max(0, i + 1 - SMOOTHED) : i + 1])
                for i in range(len(rounds))
            ]
            marker = "." if len(rounds) < 3 else None
            text = plain(f"{label} ({len(seeds)} seeds)" if len(seeds) > 1 else label, 60)
            axis.plot(rounds, smooth, style, color=colour, marker=marker, linewidth=2, label=text)
            if len(seeds) > 1:
                spread = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in found]
                low = [s - d for s, d in zip(smooth, spread, strict=True)]
                high = [s + d for s, d in zip(smooth, spread, strict=True)]
                axis.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
            else:
                axis.plot(rounds, middle, color=colour, alpha=0.25, linewidth=1)
        axis.set(xlabel="round", ylabel="accuracy on the test set, per cent")
        axis.set_title(plain(name, 60), fontsize=10)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=8, frameon=False)
        axis.grid(alpha=0.3)
    figure.supxlabel(
        f"Lines: mean of {SMOOTHED} tested rounds. Bands: ± sample standard deviation over seeds. "
        "Faint: every tested round of a single seed.",
        fontsize=8,
    )
    return figure
