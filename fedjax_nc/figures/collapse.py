"""Neural collapse: how near features are to the simplex ETF (FedBlade table 5, FedETF figure 5)."""

from fedjax_nc.figures.canvas import (
    Drawn,
    bar_marks,
    bars,
    colours,
    curve,
    grid,
    legend,
    number,
    panels,
    present,
)

# what each number is, in words that fit below a panel
MEASURES = {
    "nc1": "NC1: spread within classes\nover spread between",
    "within_share": "share of variance\nwithin classes",
    "nc2": "NC2: distance of class means\nfrom a simplex ETF",
    "nc2_norms": "NC2: relative spread of\nclass means' lengths",
    "nc2_angles": "NC2: mean error of\nclass means' cosines",
    "nc3": "NC3: distance of class means\nfrom class vectors",
    "nc4": "NC4: share where head and\nnearest mean disagree",
    "nc_error": "NC error: squared error\nof uncentred cosines",
}
CONSISTENCY = "consistency: cosine of\nclients' class means"
SIDES = ("features", "projected")


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Bars of every measure, and curves over rounds where they were tracked."""
    shades, runs = colours(runs), present(runs)
    tracked = {label: study for label, study in runs.items() if study.get("tracked")}
    drawn = [_measures(runs, shades)] if runs else []
    return drawn + _curves(tracked, shades)


def _measures(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    figure, axes = panels(3, 3, height=1.1 + 0.36 * len(runs), sharey=True)
    for axis, (key, meaning) in zip(axes, MEASURES.items(), strict=False):
        bars(
            axis,
            [{k: number((r.get(side) or {}).get(key)) for k, r in runs.items()} for side in SIDES],
            shades=shades,
        )
        axis.set_xlabel(meaning, fontsize=8)
        axis.tick_params(axis="x", labelsize=7)
    bars(
        axes[8],
        [
            {k: number((r.get("consistency") or {}).get(side)) for k, r in runs.items()}
            for side in SIDES
        ],
        shades=shades,
    )
    axes[8].set_xlabel(CONSISTENCY, fontsize=8)
    axes[8].tick_params(axis="x", labelsize=7)
    legend(figure, {}, marks=bar_marks("features, before the projector", "projected features"))
    caption = (
        "Neural collapse of the global model, lower is nearer to it, except the last panel: how "
        "alike clients' class means are after local training, where higher is better. Scales "
        "differ between panels. A method with a fixed ETF should be low in NC2 and NC3 behind the "
        "projector. Answers FedBlade, table 5 (NC1, NC2), and FedETF, figure 5 (consistency, NC "
        "error)."
    )
    return Drawn("collapse", figure, caption=caption)


def _curves(runs: dict[str, dict], shades: dict[str, str]) -> list[Drawn]:
    keys = {**MEASURES, "consistency": CONSISTENCY}
    seen = {key for study in runs.values() for row in study["tracked"] for key in row}
    keys = {key: meaning for key, meaning in keys.items() if key in seen}
    if not keys:
        return []
    figure, axes = grid(len(keys), 3, height=2.5)
    for axis, (key, meaning) in zip(axes, keys.items(), strict=True):
        for label, study in runs.items():
            curve(axis, study["tracked"], key=key, colour=shades[label])
        axis.set_ylabel(meaning, fontsize=7)
        axis.tick_params(labelsize=7)
    legend(figure, {label: shades[label] for label in runs})
    caption = (
        "The same measures of projected features over rounds. Collapse shows as falling curves; "
        "rising NC1 with falling loss means clients fit their own classes only. Answers FedETF, "
        "figure 5 (b)."
    )
    return [Drawn("collapse_rounds", figure, caption=caption)]
