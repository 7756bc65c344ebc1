"""Neural collapse: how near features are to a simplex ETF (FedBlade table 5, FedETF figure 5)."""

from fedjax_nc.figures.canvas import (
    Drawn,
    as_float,
    bar_marks,
    bars,
    colours,
    curve,
    grid,
    legend,
    panels,
    plain,
    present,
)

# labels of panels and of the table's rows
MEASURES = {
    "nc1": "NC1: within over between classes",
    "within_share": "share of variance within classes",
    "nc2": "NC2: distance from a simplex ETF",
    "nc2_norms": "NC2: spread of class means' lengths",
    "nc2_angles": "NC2: error of class means' cosines",
    "nc3": "NC3: distance from class vectors",
    "nc4": "NC4: head and nearest mean disagree",
    "nc_error": "NC error: error of uncentred cosines",
}
CONSISTENCY = "consistency of clients' class means"
BEFORE = "before the projector"
SIDES = ("features", "projected")


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Draws bars of every measure, and curves over rounds where they were tracked."""
    shades, runs = colours(runs), present(runs)
    tracked = {label: study for label, study in runs.items() if study.get("tracked")}
    drawn = [_measures(runs, shades)] if runs else []
    return drawn + _curves(tracked, shades)


def _measures(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    """Draws a panel per measure: two bars for each run."""
    figure, axes = panels(3, 3, height=1.1 + 0.36 * len(runs), sharey=True)
    keys = {meaning: [(side, key) for side in SIDES] for key, meaning in MEASURES.items()}
    keys[CONSISTENCY] = [("consistency", side) for side in SIDES]
    for axis, (meaning, pair) in zip(axes, keys.items(), strict=True):
        series = [
            {label: as_float((r.get(part) or {}).get(key)) for label, r in runs.items()}
            for part, key in pair
        ]
        bars(axis, series, shades=shades)
        axis.set_xlabel(plain(meaning, 29), fontsize=8)
        axis.tick_params(axis="x", labelsize=7)
    legend(figure, {}, marks=bar_marks("features, before the projector", "projected features"))
    caption = (
        "Neural collapse of the global model: lower is nearer to collapse. The last panel is the "
        "exception: it shows how alike clients' class means are after local training, and higher "
        "is better. Scales differ between panels. A method with a fixed ETF should be low in NC2 "
        "and NC3 behind the projector. Compare FedBlade, table 5 (NC1, NC2), and FedETF, figure 5 "
        "(consistency, NC error)."
    )
    return Drawn("collapse", figure, caption=caption)


def _curves(runs: dict[str, dict], shades: dict[str, str]) -> list[Drawn]:
    """Draws a panel per tracked measure."""
    keys = {
        **MEASURES,
        "features_nc_error": f"NC error, {BEFORE}",
        "consistency": CONSISTENCY,
        "features_consistency": f"{CONSISTENCY}, {BEFORE}",
    }
    seen = {key for study in runs.values() for row in study["tracked"] for key in row}
    keys = {key: meaning for key, meaning in keys.items() if key in seen}
    if not keys:
        return []
    figure, axes = grid(len(keys), 3, height=2.5)
    for axis, (key, meaning) in zip(axes, keys.items(), strict=True):
        for label, study in runs.items():
            curve(axis, study["tracked"], key=key, colour=shades[label])
        axis.set_ylabel(plain(meaning, 29), fontsize=7)
        axis.tick_params(labelsize=7)
    legend(figure, {label: shades[label] for label in runs})
    caption = (
        "The same measures of projected features over rounds, two of them also before the "
        "projector. Falling curves show collapse, rising ones of consistency that clients agree; "
        "NC1 that rises while the loss falls means that clients fit their own classes only. "
        "Compare FedETF, figure 5: (a) consistency, (b) NC error."
    )
    return [Drawn("collapse_rounds", figure, caption=caption)]
