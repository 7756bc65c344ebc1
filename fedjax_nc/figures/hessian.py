"""Curvature: spectral density, sharpness, and how well clients' Hessians match (FedAlign)."""

import numpy as np

from fedjax_nc.figures.canvas import (
    Drawn,
    Mark,
    as_array,
    as_float,
    bar_marks,
    bars,
    colours,
    legend,
    name_rows,
    panels,
    present,
    span,
)

# labels of panels and of the table's rows
KINDS = {"tensor": "a value for each tensor", "parameter": "a value for each parameter"}
MATCHING = {
    "H_N": "H_N",
    "H_D": "H_D",
    "H_N_squared": "H_N, squared norms",
    "H_D_squared": "H_D, squared norms",
    "H_N_others": "H_N, different clients",
    "H_D_others": "H_D, different clients",
}
BETTER = {"H_N": "difference of norms, lower is better", "H_D": "cosine, higher is better"}


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Draws density and sharpness, and where clients were measured the spread over them."""
    shades, runs = colours(runs), present(runs)
    drawn = [_density(runs, shades), _sharpness(runs, shades)] if runs else []
    measured = {label: study for label, study in runs.items() if study.get("clients")}
    if measured:
        drawn += [_clients(measured, shades), _matching(measured, shades)]
    return drawn


def _density(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    """Draws the spectral density, with ticks for the top eigenvalues below."""
    ratios = [20, 1 + len(runs)]
    figure, (axis, below) = panels(
        2, 1, height=2.1 + 0.1 * len(runs), sharex=True, height_ratios=ratios
    )
    peak = 0.0
    for i, (label, study) in enumerate(runs.items()):
        x, y = as_array(study["density"]["x"]), as_array(study["density"]["y"])
        peak = max(peak, span([y])[1])
        axis.plot(x, np.where(y > 0, y, np.nan), color=shades[label], linewidth=1.5)
        top = as_array(study["eigenvalues"])
        below.plot(
            top, np.full(len(top), i), "|", color=shades[label], markersize=9, markeredgewidth=1.5
        )
    tops = [span([study["eigenvalues"]])[1] for study in runs.values()]
    if min(tops) > 0 and max(tops) > 20 * min(tops):
        axis.set_xscale("symlog", linthresh=min(tops) / 10)
    axis.set_yscale("log")
    # a density of bell curves falls to nothing between eigenvalues: eight decades are enough
    axis.set_ylim(peak * 1e-8, peak * 5)
    axis.set(ylabel="spectral density, log scale")
    below.set(ylim=(len(runs) - 0.2, -0.8), yticks=[], xlabel="eigenvalue of the Hessian")
    below.set_ylabel("top", fontsize=8)
    axis.grid(alpha=0.3)
    below.grid(alpha=0.3)
    tick = {"marker": "|", "linestyle": "", "markersize": 9}
    legend(figure, {k: shades[k] for k in runs}, marks=[Mark("top eigenvalues", tick)])
    caption = (
        "How the eigenvalues of the loss's Hessian are distributed, by stochastic Lanczos "
        "quadrature, with the largest ones as ticks below. Mass far to the right stands for sharp "
        "directions, mass left of zero for directions in which the loss still falls. Compare "
        "FedAlign, table 1."
    )
    return Drawn("hessian_density", figure, caption=caption)


def _sharpness(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    """Draws bars of the top eigenvalue and of the trace."""
    figure, (left, right) = panels(1, 2, height=1.2 + 0.42 * len(runs), sharey=True)
    bars(left, [{k: as_float(r["eigenvalues"][0]) for k, r in runs.items()}], shades=shades)
    for i, study in enumerate(runs.values()):
        left.plot(
            as_float(study["power"]["eigenvalue"]),
            i,
            "D",
            color="black",
            markersize=4,
            markerfacecolor="white",
        )
    bars(
        right,
        [{k: as_float(r["trace"]["mean"]) for k, r in runs.items()}],
        shades=shades,
        errors={k: as_float(r["trace"]["sem"]) for k, r in runs.items()},
    )
    left.set(xlabel="top eigenvalue (flatter is smaller)")
    right.set(xlabel="trace ± standard error")
    diamond = {
        "marker": "D",
        "linestyle": "",
        "markersize": 4,
        "color": "black",
        "markerfacecolor": "white",
    }
    legend(figure, {}, marks=[Mark("by power iteration, as in the paper", diamond)])
    caption = (
        "Top eigenvalue (bar: Lanczos) and trace of the global model's Hessian; smaller is "
        "flatter. Where the diamond is not at the end of its bar, the eigenvalue of largest "
        "magnitude is negative, or power iteration has not converged. Compare FedAlign, tables 1 "
        "and 9, columns λ_max and H_T."
    )
    return Drawn("hessian_sharpness", figure, caption=caption)


def _clients(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    """Draws the trace of each client's Hessian."""
    figure, (axis,) = panels(1, 1, height=1.6 + 0.42 * len(runs))
    for i, (label, study) in enumerate(runs.items()):
        trace, error = as_array(study["clients"]["trace"]), as_array(study["clients"]["trace_sem"])
        # spread over a run's row, so that error bars can be told apart
        rows = i + np.linspace(-0.3, 0.3, len(trace)) if len(trace) > 1 else np.array([i])
        axis.errorbar(
            trace,
            rows,
            xerr=np.nan_to_num(error),
            fmt="o",
            markersize=4,
            color=shades[label],
            elinewidth=1,
            alpha=0.8,
        )
    name_rows(axis, list(runs))
    axis.set(xlabel="trace of the Hessian of a client's model ± standard error")
    caption = (
        "The trace of the Hessian of each client's model after local training, a dot per client, "
        "all on the same training examples. In a wide row, clients end up in places of different "
        "curvature, which harms their average. FedAlign's H_N (table 1) summarises this spread."
    )
    return Drawn("hessian_clients", figure, caption=caption)


def _matching(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    """Draws bars of H_N and H_D, with and without pairs of a client with itself."""
    figure, axes = panels(2, 2, height=1.1 + 0.5 * len(runs), sharey=True)
    kinds = [(kind, name) for kind in KINDS for name in BETTER]
    for axis, (kind, name) in zip(axes, kinds, strict=True):
        found = {k: r["clients"]["matching"][kind] for k, r in runs.items()}
        series = [
            {k: as_float(m.get(key)) for k, m in found.items()} for key in (name, f"{name}_others")
        ]
        bars(axis, series, shades=shades)
        axis.set(xlabel=f"{name}: {BETTER[name]}")
        axis.set_title(KINDS[kind], fontsize=9)
    every = "all pairs, also of a client with itself (the paper's code)"
    legend(figure, {}, marks=bar_marks(every, "different clients only"))
    caption = (
        "How alike the diagonals of clients' Hessians are in norm (H_N) and direction (H_D). The "
        "upper row takes one value for each tensor, as FedAlign's code does, the lower row the "
        "whole diagonal. Pairs of a client with itself make any method look consistent, so the "
        "hatched bars leave them out. Compare FedAlign, tables 1 and 9."
    )
    return Drawn("hessian_matching", figure, caption=caption)
