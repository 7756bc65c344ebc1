"""How alike classes are to the classifier and in its predictions (FedDW, figures 4, 5, 8)."""

from typing import Any

import numpy as np

from fedjax_nc.figures.canvas import (
    Drawn,
    Mark,
    as_array,
    colour_bar,
    colours,
    grid,
    heat,
    legend,
    plain,
    present,
    show,
    span,
    square_pairs,
)

CROSS = {"marker": "X", "linestyle": "", "markersize": 9, "markeredgecolor": "black"}


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Draws heat maps, norms against shares, and a map of features where one was computed."""
    shades, runs = colours(runs), present(runs)
    mapped = {label: study for label, study in runs.items() if study.get("tsne")}
    drawn = [_matrices(runs), _norms(runs, shades)] if runs else []
    return drawn + ([_map(mapped)] if mapped else [])


def _matrices(runs: dict[str, dict]) -> Drawn:
    """Draws class relations beside soft labels."""
    from matplotlib.colors import LogNorm

    figure, pairs = square_pairs(len(runs), [n for study in runs.values() for n in study["names"]])
    matrices = [r[key] for r in runs.values() for key in ("class_relations", "soft_labels")]
    low, high = span(matrices)
    # probabilities: the diagonal is near one, and runs differ far below it
    scale = LogNorm(max(low, high * 1e-4), high)
    for (left, right), (label, study) in zip(pairs, runs.items(), strict=True):
        distance = study.get("distance") or {}
        heat(left, study["class_relations"], names=study["names"], what="class", scale=scale)
        heat(right, study["soft_labels"], names=study["names"], what="class", scale=scale)
        apart = show(distance.get("frobenius"), digits=3)
        loss = show(distance.get("feddw"), digits=3)
        left.set_title(f"{plain(label)}\nclass relations", fontsize=8)
        right.set_title(f"soft labels: {apart} apart\n(FedDW's loss {loss})", fontsize=8)
        right.tick_params(labelleft=False)
    colour_bar(figure, scale, label="probability, log scale")
    caption = (
        "Class relations (the softmax of the products of class vectors) beside soft labels (the "
        "mean prediction for each true class), on one colour scale. FedDW claims that the two "
        "agree on evenly spread data and drift apart under skew: compare the patterns off the "
        "diagonal, and the distance in the title (Frobenius norm). Compare FedDW, figure 8."
    )
    return Drawn("relations", figure, caption=caption)


def _norms(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    """Draws the norm of each class vector against the share of its class."""
    figure, axes = grid(len(runs), 3, height=2.9, sharex=True)
    for axis, (label, study) in zip(axes, runs.items(), strict=True):
        shares, norms = as_array(study["shares"]).ravel(), as_array(study["norms"]).ravel()
        dots = axis.scatter(shares, norms, s=10, color=shades[label], alpha=0.35, linewidths=0)
        dots.set_rasterized(True)
        correlation = show(study.get("correlation"), digits=3)
        axis.set_title(f"{plain(label, 30)}\ncorrelation {correlation}", fontsize=9)
        axis.set(xlabel="share of the class in the client's data", ylabel="norm of class vector")
        low, high = span([norms])
        if high - low < 1e-3 * high:  # a fixed classifier: the figure must not show its rounding
            axis.set_ylim(0.9 * low, 1.1 * high)
        axis.xaxis.label.set_fontsize(8)
        axis.tick_params(labelsize=7, labelbottom=True)
        axis.grid(alpha=0.3)
    caption = (
        "Length of a class vector after local training against the share of its class in the "
        "client's data, a dot for each class of each client, with the rank correlation. FedDW "
        "finds that a vector is shorter the more data its class has: a falling cloud. A rising "
        "cloud is a classifier that favours its frequent classes, a flat one is fixed. Compare "
        "FedDW, figure 4."
    )
    return Drawn("relations_norms", figure, caption=caption)


def _map(runs: dict[str, dict]) -> Drawn:
    """Draws the t-SNE map of features and class vectors."""
    from matplotlib.colors import Normalize

    figure, axes = grid(len(runs), 3, height=3.2, width=3.2 if len(runs) > 1 else 5.5)
    most = max(len(study["names"]) for study in runs.values())
    many = most > 20
    for axis, (label, study) in zip(axes, runs.items(), strict=True):
        points, vectors = as_array(study["tsne"]["points"]), as_array(study["tsne"]["vectors"])
        shades = class_colours(len(vectors))
        labels = np.array(study["tsne"]["labels"], dtype=int)
        dots = axis.scatter(*points.T, s=5, c=shades[labels], alpha=0.5, linewidths=0)
        dots.set_rasterized(True)
        size = 14 if many else 60
        axis.scatter(*vectors.T, s=size, c=shades, marker="X", edgecolors="black", linewidths=0.8)
        if not many:
            _names(axis, vectors, names=study["names"])
        axis.set_title(plain(label, 30), fontsize=9)
        axis.margins(x=0.14)  # room for names at the right edge
        axis.set(xlabel="t-SNE 1, no unit", ylabel="t-SNE 2, no unit", xticks=[], yticks=[])
    marks = [
        Mark("test image", {"marker": "o", "linestyle": "", "markersize": 4}),
        Mark("class vector", CROSS),
    ]
    legend(figure, {}, marks=marks)
    if many:
        colour_bar(figure, Normalize(0, most - 1), label="class number", colours="turbo")
    caption = (
        "Unit features of test images and unit class vectors in one t-SNE map; colour is class. "
        "The classifier has learnt a class if its X lies inside the cloud of that colour, and has "
        "lost it if the X lies between clouds. Distances between clouds mean little. Compare "
        "FedDW, figure 5."
    )
    return Drawn("relations_map", figure, caption=caption)


def class_colours(count: int) -> np.ndarray:
    """Returns a colour per class: distinct for few classes, in the order of a scale for many."""
    import matplotlib

    if count <= 10:
        return matplotlib.colormaps["tab10"](np.arange(count))
    if count <= 20:
        return matplotlib.colormaps["tab20"](np.arange(count))
    return matplotlib.colormaps["turbo"](np.linspace(0, 1, count))


def _names(axis: Any, vectors: np.ndarray, names: list) -> None:
    """Writes the classes' names beside their class vectors."""
    from matplotlib.patheffects import withStroke

    for place, name in zip(vectors, names, strict=True):
        axis.annotate(
            plain(str(name)),
            place,
            (5, 4),
            textcoords="offset points",
            fontsize=7,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
