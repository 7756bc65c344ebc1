"""Dimensional collapse: singular values and effective rank of features (FedBlade)."""

import numpy as np

from fedjax_nc.figures.canvas import (
    Drawn,
    as_array,
    as_float,
    bar_marks,
    bars,
    colours,
    curve,
    legend,
    panels,
    present,
    span,
)

# labels of panels and of the table's rows
SIDES = {"features": "features, before the projector", "projected": "projected features"}
RANKS = {
    "effective_rank": "effective rank of the covariance",
    "effective_rank_correlation": "effective rank of the correlation",
}


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Draws singular values, effective ranks, and ranks over rounds where they were tracked."""
    shades, runs = colours(runs), present(runs)
    tracked = {label: study for label, study in runs.items() if study.get("tracked")}
    drawn = [_singular(runs, shades), _ranks(runs, shades)] if runs else []
    return drawn + ([_curves(tracked, shades)] if tracked else [])


def _singular(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    """Draws singular values in descending order."""
    figure, axes = panels(1, 2, height=3.6)
    for axis, (side, title) in zip(axes, SIDES.items(), strict=True):
        found = {k: as_array((r.get(side) or {}).get("singular")) for k, r in runs.items()}
        for label, values in found.items():
            index = np.arange(1, len(values) + 1)
            axis.plot(index, np.where(values > 0, values, np.nan), color=shades[label])
        low, top = span([values[values > 0] for values in found.values()])
        axis.set_yscale("log")
        # values far below are rounding of float32, and would flatten those above
        axis.set_ylim(max(low / 3, top * 1e-7), top * 3)
        axis.set(xlabel="index of singular value", ylabel="singular value, log scale", title=title)
        axis.grid(alpha=0.3)
    legend(figure, {label: shades[label] for label in runs})
    caption = (
        "Singular values of the covariance of features in descending order, before and after the "
        "projector. A cliff is dimensional collapse: the directions beyond it carry nothing. A "
        "simplex ETF of C classes fills C - 1 directions. Compare FedBlade, figure 2."
    )
    return Drawn("spectrum", figure, caption=caption)


def _ranks(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    """Draws bars of the effective ranks."""
    figure, axes = panels(1, 2, height=1.2 + 0.45 * len(runs), sharey=True)
    for axis, (key, name) in zip(axes, RANKS.items(), strict=True):
        bars(
            axis,
            [
                {k: as_float((r.get(side) or {}).get(key)) for k, r in runs.items()}
                for side in SIDES
            ],
            shades=shades,
        )
        axis.set(xlabel=f"{name}, dimensions")
    legend(figure, {}, marks=bar_marks(*SIDES.values()))
    caption = (
        "How many dimensions the features use: the exponential of the entropy of the singular "
        "values of their covariance, or of their correlation matrix. A low rank means collapse; a "
        "higher one is not always better. Compare the last points of FedBlade, figures 4, 5 and "
        "10."
    )
    return Drawn("spectrum_ranks", figure, caption=caption)


def _curves(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    """Draws the tracked effective ranks."""
    figure, axes = panels(1, 2, height=3.4)
    for axis, (side, title) in zip(axes, SIDES.items(), strict=True):
        for label, study in runs.items():
            curve(axis, study["tracked"], key=f"{side}_effective_rank", colour=shades[label])
        axis.set(ylabel="effective rank, dimensions", title=title)
    legend(figure, {label: shades[label] for label in runs})
    caption = (
        "Effective rank over rounds. A falling curve is collapse during training, which "
        "FedBlade's decorrelation should prevent. Compare FedBlade, figures 4 (projected "
        "features), 5 and 10 (features)."
    )
    return Drawn("spectrum_rounds", figure, caption=caption)
