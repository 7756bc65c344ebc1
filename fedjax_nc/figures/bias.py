"""Classifier bias between clients, and the label distribution behind it (FedETF, figure 1)."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_nc.figures.canvas import (
    COLOURS,
    WIDTH,
    Drawn,
    Mark,
    as_array,
    colour_bar,
    grid,
    heat,
    legend,
    panels,
    plain,
    present,
    show,
    span,
    square_pairs,
)
from fedjax_nc.figures.relations import class_colours

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 500  # clients of whom a picture shows classes; of more nobody could tell one from the next
KINDS = {"classifiers": "classifiers", "prototypes": "class means"}  # labels, also of the table


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Draws cosines of clients' classifiers and class means, and a map where one was computed."""
    runs = present(runs)
    mapped = {label: study for label, study in runs.items() if study.get("tsne")}
    return ([_cosines(runs)] if runs else []) + ([_map(mapped)] if mapped else [])


def _cosines(runs: dict[str, dict]) -> Drawn:
    """Draws the cosines of clients' classifiers and of their class means, pair by pair."""
    from matplotlib.colors import Normalize

    figure, pairs = square_pairs(len(runs), [i for study in runs.values() for i in study["ids"]])
    low, high = span([_pairs(r[kind]) for r in runs.values() for kind in KINDS])
    scale = Normalize(low, max(high, low + 1e-3))
    for pair, (label, study) in zip(pairs, runs.items(), strict=True):
        for axis, (kind, name) in zip(pair, KINDS.items(), strict=True):
            heat(axis, study[kind], names=study["ids"], what="client", scale=scale)
            others = _pairs(study[kind])
            mean = float(np.nanmean(others)) if np.isfinite(others).any() else None
            axis.set_title(f"{plain(label)}\n{name}, mean {show(mean, digits=3)}", fontsize=8)
    colour_bar(figure, scale, label="cosine")
    caption = (
        "Cosines between the classifiers of every two clients after local training, and between "
        "their class means of features; the mean leaves the diagonal out. Dark cells are clients "
        "that have moved in different directions. Under label skew, learned classifiers do; a "
        "fixed ETF is the same for all clients, so that only features differ. Compare FedETF, "
        "figure 1, third column."
    )
    return Drawn("bias", figure, caption=caption)


def _map(runs: dict[str, dict]) -> Drawn:
    """Draws the t-SNE map of all clients' class vectors."""
    from matplotlib.colors import Normalize

    figure, axes = grid(len(runs), 3, height=3.2, width=3.2 if len(runs) > 1 else 5.5)
    most = max(len(study["tsne"][0]) for study in runs.values())
    for axis, (label, study) in zip(axes, runs.items(), strict=True):
        places = as_array(study["tsne"])
        clients, classes, _ = places.shape
        colours = np.tile(class_colours(classes), (clients, 1))
        dots = axis.scatter(*places.reshape(-1, 2).T, s=12, c=colours, alpha=0.7, linewidths=0)
        dots.set_rasterized(True)
        axis.set_title(f"{plain(label, 30)}\n{clients} clients", fontsize=9)
        axis.set(xlabel="t-SNE 1, no unit", ylabel="t-SNE 2, no unit", xticks=[], yticks=[])
    if most > 20:
        colour_bar(figure, Normalize(0, most - 1), label="class number", colours="turbo")
    else:
        dot = {"marker": "o", "linestyle": "", "markersize": 5}
        shades = enumerate(class_colours(most))
        legend(figure, {}, marks=[Mark(f"class {i}", {**dot, "color": c}) for i, c in shades])
    caption = (
        "Unit class vectors of clients' classifiers after local training in one t-SNE map, a dot "
        "for each class of each client; colour is class. Clients agree on a class if its dots lie "
        "in one heap of their own. Under label skew the dots of a learned classifier scatter; a "
        "fixed ETF is the same for all clients, so that each class is one spot. Distances between "
        "heaps mean little. Compare FedETF, figure 1, fourth column."
    )
    return Drawn("bias_map", figure, caption=caption)


def _pairs(matrix: Any) -> np.ndarray:
    """Returns the entries off the diagonal."""
    values = as_array(matrix)
    return values[~np.eye(len(values), dtype=bool)]


def labels(counts: Any, title: str) -> "Figure":
    """Draws a bubble for each client and class, its area the number of examples.

    Of very many clients it shows some, evenly spread by number, and says so.
    """
    everybody, every = len(counts), math.ceil(len(counts) / SHOWN)
    counts = as_array(counts[::every])
    clients, classes = counts.shape
    width = float(np.clip(1.8 + 0.28 * clients, 5.0, WIDTH))
    height = float(np.clip(1.6 + 0.22 * classes, 3.2, 8.0))
    figure, (axis,) = panels(1, 1, height=height, width=width)
    most = max(float(np.nanmax(counts, initial=0)), 1.0)
    # points across a cell; in small cells the few largest overlap, so that the others can be seen
    cell = min((width - 1.6) * 72 / clients, (height - 1.0) * 72 / classes)
    largest = max(cell, 16.0) ** 2
    held = np.argwhere(np.nan_to_num(counts) > 0)
    client, kind = held.T
    area = np.maximum(largest * counts[client, kind] / most, 0.8)  # one example is still a dot
    dots = axis.scatter(every * client, kind, s=area, color=COLOURS[0], alpha=0.7, linewidths=0)
    dots.set_rasterized(True)
    axis.set(xlim=(-0.7 * every, (clients - 0.3) * every), ylim=(-0.7, classes - 0.3))
    who = "client" if every == 1 else f"client ({clients:,} of {everybody:,}: one in {every:,})"
    axis.set(xlabel=who, ylabel="class", title=plain(title, 60))
    axis.locator_params(integer=True, nbins=20, steps=[1, 2, 5, 10])
    axis.grid(alpha=0.2)
    axis.set_axisbelow(True)
    for size in (most, most / 4, most / 16):
        axis.scatter(
            [],
            [],
            s=largest * size / most,
            color=COLOURS[0],
            alpha=0.7,
            linewidths=0,
            label=f"{size:,.0f} examples",
        )
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
