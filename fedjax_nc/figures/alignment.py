"""Clients' models on the classes they hold and on those they lack (FedDr+, figures 2, 4 and 5)."""

import numpy as np

from fedjax_nc.figures.canvas import (
    Drawn,
    Mark,
    colours,
    curve,
    grid,
    legend,
    name_rows,
    numbers,
    panels,
    present,
)

SIDES = ("observed", "unobserved")
CLASSIFIER = {
    "cosine": "cosine of feature\nand class vector",
    "gap": "alignment gap: cosine after\nminus before local training",
}
FEATURES = {
    "distance": "distance of features from\nthe global model's",
    "relative": "the same over the\nfeature's length",
    "angle": "angle to the global\nmodel's features, degrees",
}
MARKS = [
    Mark("observed classes", {"facecolor": "0.5", "edgecolor": "0.3"}),
    Mark("unobserved classes", {"facecolor": "white", "edgecolor": "0.3"}),
]


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Boxes over clients, and curves over rounds where they were tracked."""
    shades, runs = colours(runs), present(runs)
    tracked = {label: study for label, study in runs.items() if study.get("tracked")}
    drawn = []
    if runs:
        caption = (
            "How well features of clients' models point to their class vector after local "
            "training, and how much was gained or lost by it. Boxes are quartiles over clients, "
            "dots clients. Outlined boxes far left of the filled ones and gaps below zero: classes "
            "a client lacks are forgotten. Answers FedDr+, figures 2 and 5."
        )
        drawn.append(Drawn("alignment", _boxes(runs, shades, measures=CLASSIFIER), caption=caption))
        caption = (
            "How far local training moves the features of test images from where the global model "
            "has them: absolute, relative and as an angle. Feature distillation should shorten "
            "all of them, most of all on unobserved classes. Answers FedDr+, figure 4."
        )
        drawn.append(
            Drawn("alignment_drift", _boxes(runs, shades, measures=FEATURES), caption=caption)
        )
    return drawn + _curves(tracked, shades)


def _boxes(runs: dict[str, dict], shades: dict[str, str], measures: dict[str, str]):
    figure, axes = panels(1, len(measures), height=1.2 + 0.6 * len(runs), sharey=True)
    for axis, (key, meaning) in zip(axes, measures.items(), strict=True):
        for i, (label, study) in enumerate(runs.items()):
            for j, side in enumerate(SIDES):
                values = numbers((study.get(side) or {}).get(key))
                values = values[np.isfinite(values)]
                if not values.size:
                    continue
                place = i + 0.4 * j - 0.2
                face = "white" if j else shades[label]
                axis.boxplot(
                    [values],
                    positions=[place],
                    widths=0.3,
                    orientation="horizontal",
                    manage_ticks=False,
                    showfliers=False,
                    patch_artist=True,
                    boxprops={"facecolor": face, "edgecolor": shades[label], "alpha": 0.6},
                    medianprops={"color": "black"},
                    whiskerprops={"color": shades[label]},
                    capprops={"color": shades[label]},
                )
                # evenly up and down instead of at random: the same picture for the same numbers
                rows = place + 0.1 * np.sin(2.4 * np.arange(len(values)))
                axis.plot(
                    values,
                    rows,
                    "o",
                    color=shades[label],
                    markersize=2.5,
                    alpha=0.8,
                    markeredgecolor="black",
                    markeredgewidth=0.2,
                )
        name_rows(axis, list(runs))
        axis.set_xlabel(meaning, fontsize=9)
        axis.locator_params(axis="x", nbins=5)
    legend(figure, {}, marks=MARKS)
    return figure


def _curves(runs: dict[str, dict], shades: dict[str, str]) -> list[Drawn]:
    seen = {key for study in runs.values() for row in study["tracked"] for key in row}
    keys = {
        key: meaning
        for key, meaning in {**CLASSIFIER, **FEATURES}.items()
        if {f"{side}_{key}" for side in SIDES} & seen
    }
    if not keys:
        return []
    figure, axes = grid(len(keys), 3, height=2.7)
    for axis, (key, meaning) in zip(axes, keys.items(), strict=True):
        for label, study in runs.items():
            for side in SIDES:
                dashed = side == "unobserved"
                curve(
                    axis, study["tracked"], key=f"{side}_{key}", colour=shades[label], dashed=dashed
                )
        axis.set_ylabel(meaning, fontsize=8)
    marks = [Mark("observed classes", {}), Mark("unobserved classes", {"linestyle": "--"})]
    legend(figure, {label: shades[label] for label in runs}, marks=marks)
    caption = (
        "The same, mean over the round's clients, over rounds. A dashed curve that falls away "
        "from its solid one is forgetting. Answers FedDr+, figures 2, 4 and 5."
    )
    return [Drawn("alignment_rounds", figure, caption=caption)]
