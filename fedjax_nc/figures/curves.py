"""Curves over rounds: of one run, and of several configurations with all their seeds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_nc.figures import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]  # the record of a round
STYLES = ("-", "--", ":", "-.")  # a curve takes the next style when all colours are used


def one_run(rows: Sequence[Row], title: str) -> "Figure":
    """Draws a run's accuracy, with its spread over clients, and its loss against rounds."""
    tested = [row for row in rows if "global_accuracy" in row]
    marker = "o" if len(tested) < 3 else None
    of_test, of_clients, of_training = canvas.COLOURS[:3]

    def column(key: str) -> np.ndarray:
        return np.array([row[key] for row in tested])

    figure, (left, right) = canvas.panels(1, 2, height=4.0)
    figure.suptitle(canvas.plain(title, 100))
    rounds = column("round")
    mean, std = 100 * column("client_accuracy"), 100 * column("client_accuracy_std")
    low, high = (mean - std).clip(min=0), (mean + std).clip(max=100)
    left.fill_between(rounds, low, high, color=of_clients, alpha=0.2, linewidth=0)
    clients = {"label": "mean over clients ± standard deviation", "linewidth": 3, "alpha": 0.6}
    left.plot(rounds, mean, color=of_clients, marker=marker, **clients)
    accuracy, loss = 100 * column("global_accuracy"), column("global_loss")
    left.plot(rounds, accuracy, color=of_test, marker=marker, label="global test set")
    right.plot(rounds, loss, color=of_test, marker=marker, label="cross-entropy, global test set")
    every, loss = [row["round"] for row in rows], np.array([row["loss"] for row in rows], float)
    right.plot(every, loss, color=of_training, label="local training loss")
    left.set(ylabel="accuracy, per cent", ylim=(0, 100))
    right.set(ylabel="loss, log scale", yscale="log")
    for axis in (left, right):
        _over(axis, "round")
        axis.legend()
    return figure


def finetuning(start: float, curve: Sequence[float], title: str) -> "Figure":
    """Draws clients' mean accuracy after each stage of fine-tuning (FedETF, figure 6b).

    Args:
      start: under the global model, between 0 and 1.
      curve: after each stage.
      title: of the figure.
    """
    figure, (axis,) = canvas.panels(1, 1, height=4.0, width=6.0)
    figure.suptitle(canvas.plain(title, 70))
    values = 100 * np.array([start, *curve])
    axis.plot(values, color=canvas.COLOURS[1], marker="o", markersize=4)
    axis.set(ylabel="accuracy, mean over clients, per cent")
    _over(axis, "stage of fine-tuning; 0 is the global model")
    return figure


def together(
    groups: dict[str, list[list[Row]]],
    title: str = "",
    *,
    panels: dict[str, str] | None = None,
    names: dict[str, str] | None = None,
) -> "Figure":
    """Draws the test accuracy of several configurations against rounds, as `accuracy` does.

    Args:
      groups: by a configuration's label, the records of each of its seeds. A curve ends where the
        shortest of its seeds ends.
      title: of the figure.
      panels: by the same labels, the panel that a curve belongs to, such as its dataset.
      names: by the same labels, the curve's name, as in `accuracy`.
    """
    curves = {label: _stack(seeds) for label, seeds in groups.items()}
    return accuracy(curves, title, panels=panels, names=names)


def accuracy(
    curves: dict[str, tuple[Any, Any]],
    title: str = "",
    *,
    panels: dict[str, str] | None = None,
    names: dict[str, str] | None = None,
) -> "Figure":
    """Draws accuracies against rounds: the mean over seeds in a band of one standard deviation.

    The standard deviation is the sample's, over n - 1; a single seed has no band.

    Args:
      curves: by a label, the tested rounds and the accuracies between 0 and 1, [seeds rounds].
      title: of the figure.
      panels: by the same labels, the panel that a curve belongs to; by default there is one.
      names: by the same labels, the curve's name: curves of one name, in several panels, share
        their colour and an entry of the legend.
    """
    panel_of, name_of = (
        panels or dict.fromkeys(curves, ""),
        names or dict(zip(curves, curves, strict=True)),
    )
    whole = list(dict.fromkeys(panel_of[label] for label in curves))
    order = list(dict.fromkeys(name_of[label] for label in curves))
    figure, axes = canvas.grid(len(whole), 2, height=3.4, width=8.0 if len(whole) == 1 else 4.8)
    if title:
        figure.suptitle(canvas.plain(title, 100))
    axis_of, marks = dict(zip(whole, axes, strict=True)), {}
    for label, (rounds, values) in curves.items():
        i = order.index(name_of[label])
        colour = canvas.COLOURS[i % len(canvas.COLOURS)]
        style = {"color": colour, "linestyle": STYLES[i // len(canvas.COLOURS) % len(STYLES)]}
        values = 100 * np.atleast_2d(values)
        axis, mean, seeds = axis_of[panel_of[label]], values.mean(0), len(values)
        axis.plot(rounds, mean, marker="o" if len(mean) < 3 else None, markersize=4, **style)
        if seeds > 1:
            std = values.std(0, ddof=1)
            axis.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
        count = f" ({seeds} seeds)" if seeds > 1 else ""
        mark = canvas.Mark(canvas.plain(name_of[label] + count, 40), {**style, "linewidth": 2})
        marks.setdefault(name_of[label], mark)
    for name, axis in axis_of.items():
        _over(axis, "round")
        axis.set(ylabel="accuracy on the test set, per cent", title=canvas.plain(name, 50))
    canvas.legend(figure, {}, marks=list(marks.values()))
    for below in figure.legends:  # takes no height from the panels, however many curves there are
        height = below.get_window_extent().height / figure.dpi
        figure.set_figheight(figure.get_figheight() + height)
    return figure


def _stack(seeds: list[list[Row]]) -> tuple[list[int], np.ndarray]:
    """Returns the rounds that were tested in every seed, and their accuracies, [seeds rounds]."""
    tested = [
        {row["round"]: row["global_accuracy"] for row in rows if "global_accuracy" in row}
        for rows in seeds
    ]
    rounds = sorted(set.intersection(*map(set, tested)))
    return rounds, np.array([[found[n] for n in rounds] for found in tested])


def _over(axis: Any, what: str) -> None:
    """Makes the x axis one of whole numbers."""
    axis.set_xlabel(what)
    axis.locator_params(axis="x", integer=True)
    axis.grid(alpha=0.3)
