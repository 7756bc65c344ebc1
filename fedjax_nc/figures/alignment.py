"""Clients' models on the classes they have observed and on others (FedDr+, figures 2, 4, 5)."""

import numpy as np

from fedjax_nc.figures.canvas import (
    Drawn,
    Mark,
    as_array,
    colours,
    curve,
    grid,
    legend,
    name_rows,
    panels,
    plain,
    present,
)

SIDES = ("observed", "unobserved")
# labels of panels and of the table's rows
CLASSIFIER = {
    "cosine": "cosine with the class vector",
    "gap": "alignment gap: change of the cosine",
}
FEATURES = {
    "distance": "distance of features",
    "relative": "relative distance of features",
    "angle": "angle between features, degrees",
}
MARKS = [
    Mark("observed classes", {"facecolor": "0.5", "edgecolor": "0.3"}),
    Mark("unobserved classes", {"facecolor": "white", "edgecolor": "0.3"}),
]


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Draws boxes over clients, and curves over rounds where they were tracked."""
    shades, runs = colours(runs), present(runs)
    tracked = {label: study for label, study in runs.items() if study.get("tracked")}
    drawn = []
    if runs:
        caption = (
            "How well features of clients' models point to their class vectors after local "
            "training, and how much the training has gained or lost. Boxes are quartiles over "
            "clients, each dot is a client. Where outlined boxes lie far left of the filled ones "
            "and gaps are below zero, clients forget the classes they lack. Compare FedDr+, "
            "figures 2 and 5."
        )
        drawn.append(Drawn("alignment", _boxes(runs, shades, measures=CLASSIFIER), caption=caption))
        caption = (
            "How far local training moves the features of test images away from the global "
            "model's: as a distance, relative to their length, and as an angle. Feature "
            "distillation should shorten all three, most of all on unobserved classes. Compare "
            "FedDr+, figure 4."
        )
        drawn.append(
            Drawn("alignment_drift", _boxes(runs, shades, measures=FEATURES), caption=caption)
        )
    return drawn + _curves(tracked, shades)


def _boxes(runs: dict[str, dict], shades: dict[str, str], measures: dict[str, str]):
    """Draws a panel per measure: a filled and an outlined box for each run."""
    figure, axes = panels(1, len(measures), height=1.2 + 0.6 * len(runs), sharey=True)
    for axis, (key, meaning) in zip(axes, measures.items(), strict=True):
        for i, (label, study) in enumerate(runs.items()):
            for j, side in enumerate(SIDES):
                values = as_array((study.get(side) or {}).get(key))
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
        axis.set_xlabel(plain(meaning, 30), fontsize=9)
        axis.locator_params(axis="x", nbins=5)
    legend(figure, {}, marks=MARKS)
    return figure


def _curves(runs: dict[str, dict], shades: dict[str, str]) -> list[Drawn]:
    """Draws a panel per tracked measure."""
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
        axis.set_ylabel(plain(meaning, 30), fontsize=8)
    marks = [Mark("observed classes", {}), Mark("unobserved classes", {"linestyle": "--"})]
    legend(figure, {label: shades[label] for label in runs}, marks=marks)
    caption = (
        "The same measures over rounds, as means over some clients. A dashed curve that falls away "
        "from its solid one shows forgetting. Compare FedDr+, figures 2, 4 and 5."
    )
    return [Drawn("alignment_rounds", figure, caption=caption)]
