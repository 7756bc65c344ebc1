"""The loss around the global model on planes through weight space (FedAlign, figure 1)."""

from typing import Any

import numpy as np

from fedjax_nc.figures.canvas import (
    Drawn,
    Mark,
    as_array,
    colour_bar,
    grid,
    legend,
    plain,
    present,
    span,
)

MEANING = {
    "eigenvectors": (
        "The plane of the two sharpest directions of the Hessian. A narrow valley is a sharp "
        "minimum; scales are equal, so that methods can be compared. Compare FedAlign, figure 1."
    ),
    "random": (
        "The plane of two random directions, scaled filter by filter: the loss that a typical "
        "step meets, flatter than on the plane of eigenvectors. A control for FedAlign, figure 1."
    ),
    "clients": (
        "The plane of the global model and the clients' models after local training. The nearer "
        "clients end to one another, inside one basin, the less is lost by averaging. Extends "
        "FedAlign, figure 1."
    ),
}
STAR = {"marker": "*", "color": "white", "markeredgecolor": "black", "linestyle": ""}
DOT = {"marker": "o", "color": "#D55E00", "markeredgecolor": "white", "linestyle": ""}


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Draws a contour map and a surface of every plane, the runs side by side on one scale."""
    runs = present(runs)
    names = dict.fromkeys(name for study in runs.values() for name in study["planes"])
    drawn = []
    for name in names:
        planes = {k: r["planes"][name] for k, r in runs.items() if name in r["planes"]}
        drawn += [_contours(name, planes), _surfaces(name, planes)]
    return drawn


def _scale(planes: dict[str, dict]) -> tuple[Any, np.ndarray]:
    """Returns one colour scale for all runs and its levels, logarithmic over a large range."""
    from matplotlib.colors import LogNorm, Normalize

    low, high = span([plane["loss"] for plane in planes.values()])
    if low > 0 and high > 10 * low:
        low = max(low, high * 1e-5)
        return LogNorm(low, high), np.geomspace(low, high, 25)
    high = high if high > low else low + 1
    return Normalize(low, high), np.linspace(low, high, 25)


def _contours(name: str, planes: dict[str, dict]) -> Drawn:
    """Draws the loss on a plane as contour maps."""
    norm, levels = _scale(planes)
    figure, axes = grid(len(planes), 3, height=3.1)
    for axis, (label, plane) in zip(axes, planes.items(), strict=True):
        x, y = as_array(plane["x"]), as_array(plane["y"])
        loss = np.ma.masked_invalid(as_array(plane["loss"])).clip(levels[0], levels[-1])
        filled = axis.contourf(x, y, loss, levels, norm=norm, cmap="viridis")
        filled.set_rasterized(True)  # otherwise the largest part of an SVG file
        axis.contour(x, y, loss, levels[::3], colors="black", linewidths=0.3, alpha=0.5)
        _models(axis, plane["models"])
        axis.set_title(plain(label, 30), fontsize=9)
        axis.set(xlabel=plane["axes"][0], ylabel=plane["axes"][1])
        axis.tick_params(labelsize=7)
    colour_bar(figure, norm, label="cross-entropy loss")
    marks = [Mark("global model", {**STAR, "markersize": 12})]
    if any(len(plane["models"]) > 1 for plane in planes.values()):
        marks.append(Mark("client after local training", {**DOT, "markersize": 6}))
    legend(figure, {}, marks=marks)
    caption = f"{MEANING.get(name, '')} Colour is loss, on one scale for all runs."
    return Drawn(f"landscape_{name}_contours", figure, caption=caption.strip())


def _models(axis: Any, models: list[dict]) -> None:
    """Draws the global model and clients, with their ids while these can be read."""
    from matplotlib.patheffects import withStroke

    for model in models:
        centre = model["name"] == "global"
        mark = {**STAR, "markersize": 13} if centre else {**DOT, "markersize": 5}
        axis.plot(model["x"], model["y"], zorder=4 if centre else 3, **mark)
        if not centre and len(models) <= 21:
            axis.annotate(
                model["name"].removeprefix("client "),
                (model["x"], model["y"]),
                (4, 3),
                textcoords="offset points",
                fontsize=7,
                color="white",
                path_effects=[withStroke(linewidth=1.5, foreground="black")],
            )


def _surfaces(name: str, planes: dict[str, dict]) -> Drawn:
    """Draws the loss on a plane as surfaces."""
    norm, levels = _scale(planes)
    # a logarithm turns every bowl into a spike: used only where the bowl would be a flat sheet
    logarithmic = levels[0] > 0 and levels[-1] > 1000 * levels[0]
    figure, axes = grid(len(planes), 3, height=3.0, subplot_kw={"projection": "3d"})
    for axis, (label, plane) in zip(axes, planes.items(), strict=True):
        x, y = np.meshgrid(as_array(plane["x"]), as_array(plane["y"]))
        loss = as_array(plane["loss"])
        loss = np.where(np.isfinite(loss), loss, np.nan).clip(levels[0], levels[-1])
        # matplotlib has no logarithmic z axis that works: the logarithm is drawn and named
        height = np.log10(loss) if logarithmic else loss
        surface = axis.plot_surface(
            x,
            y,
            height,
            facecolors=_colours(norm, loss),
            rcount=40,
            ccount=40,
            linewidth=0,
            antialiased=False,
            shade=False,
        )
        surface.set_rasterized(True)
        ends = np.log10(levels[[0, -1]]) if logarithmic else levels[[0, -1]]
        axis.set_zlim(*ends)
        axis.set_title(plain(label, 30), fontsize=9, y=0.98)
        axis.set_xlabel(plane["axes"][0], fontsize=7, labelpad=-4)
        axis.set_ylabel(plane["axes"][1], fontsize=7, labelpad=-4)
        axis.set_zlabel(
            "log10 of loss" if logarithmic else "loss", fontsize=7, labelpad=-4, rotation=90
        )
        axis.tick_params(labelsize=6, pad=-2)
        axis.locator_params(nbins=4)
        axis.view_init(elev=28, azim=-55)
        axis.set_box_aspect(None, zoom=0.86)
    caption = (
        f"The plane '{name}' above as a surface; all runs share the z axis. The wider and flatter "
        "the bowl, the less a step in a wrong direction costs. Drawn as in FedAlign, figure 1."
    )
    return Drawn(f"landscape_{name}_surface", figure, caption=caption)


def _colours(norm: Any, loss: np.ndarray) -> np.ndarray:
    """Returns the colours of a surface, those of its contour map at each face's corner."""
    import matplotlib

    return matplotlib.colormaps["viridis"](norm(np.ma.masked_invalid(loss)))
