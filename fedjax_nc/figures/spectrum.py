"""Dimensional collapse: singular values and effective rank of features (FedBlade)."""

import numpy as np

from fedjax_nc.figures.canvas import (
    Drawn,
    bar_marks,
    bars,
    colours,
    curve,
    legend,
    number,
    numbers,
    panels,
    present,
    span,
)

SIDES = {"features": "features, before the projector", "projected": "projected features"}


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Singular values, effective ranks, and ranks over rounds where they were tracked."""
    shades, runs = colours(runs), present(runs)
    tracked = {label: study for label, study in runs.items() if study.get("tracked")}
    drawn = [_singular(runs, shades), _ranks(runs, shades)] if runs else []
    return drawn + ([_curves(tracked, shades)] if tracked else [])


def _singular(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    figure, axes = panels(1, 2, height=3.6)
    for axis, (side, title) in zip(axes, SIDES.items(), strict=True):
        found = {k: numbers((r.get(side) or {}).get("singular")) for k, r in runs.items()}
        for label, values in found.items():
            index = np.arange(1, len(values) + 1)
            axis.plot(index, np.where(values > 0, values, np.nan), color=shades[label])
        low, top = span([values[values > 0] for values in found.values()])
        axis.set_yscale("log")
        # far below is rounding of float32, and would flatten what is above
        axis.set_ylim(max(low / 3, top * 1e-7), top * 3)
        axis.set(xlabel="index of singular value", ylabel="singular value, log scale", title=title)
        axis.grid(alpha=0.3)
    legend(figure, {label: shades[label] for label in runs})
    caption = (
        "Singular values of the covariance of features in falling order, before and after the "
        "projector. A cliff is dimensional collapse: what lies beyond carries nothing. A "
        "simplex ETF of C classes fills C - 1 directions. Answers FedBlade, figure 2."
    )
    return Drawn("spectrum", figure, caption=caption)


def _ranks(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    figure, axes = panels(1, 2, height=1.2 + 0.45 * len(runs), sharey=True)
    kinds = {"effective_rank": "covariance", "effective_rank_correlation": "correlation"}
    for axis, (key, matrix) in zip(axes, kinds.items(), strict=True):
        bars(
            axis,
            [{k: number((r.get(side) or {}).get(key)) for k, r in runs.items()} for side in SIDES],
            shades=shades,
        )
        axis.set(xlabel=f"effective rank of the {matrix}, dimensions")
    legend(figure, {}, marks=bar_marks(*SIDES.values()))
    caption = (
        "How many dimensions features really use (exponential of the entropy of the singular "
        "values), from the covariance and from the correlation matrix. Low means collapsed; more "
        "is not always better. Answers the last points of FedBlade, figures 4, 5 and 10."
    )
    return Drawn("spectrum_ranks", figure, caption=caption)


def _curves(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    figure, axes = panels(1, 2, height=3.4)
    for axis, (side, title) in zip(axes, SIDES.items(), strict=True):
        for label, study in runs.items():
            curve(axis, study["tracked"], key=f"{side}_effective_rank", colour=shades[label])
        axis.set(ylabel="effective rank, dimensions", title=title)
    legend(figure, {label: shades[label] for label in runs})
    caption = (
        "Effective rank over rounds. A falling curve is collapse during training; FedBlade's "
        "decorrelation should keep it up. Answers FedBlade, figures 4 (projected features), 5 and "
        "10 (features)."
    )
    return Drawn("spectrum_rounds", figure, caption=caption)
