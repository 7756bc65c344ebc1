"""Curvature: spectral density, sharpness, and how well clients' Hessians match (FedAlign)."""

import numpy as np

from fedjax_nc.figures.canvas import (
    Drawn,
    Mark,
    bar_marks,
    bars,
    colours,
    legend,
    name_rows,
    number,
    numbers,
    panels,
    present,
    span,
)

KINDS = {"tensor": "a value for each tensor", "parameter": "a value for each parameter"}


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Density and sharpness, and with clients the spread over them."""
    shades, runs = colours(runs), present(runs)
    drawn = [_density(runs, shades), _sharpness(runs, shades)] if runs else []
    measured = {label: study for label, study in runs.items() if study.get("clients")}
    if measured:
        drawn += [_clients(measured, shades), _matching(measured, shades)]
    return drawn


def _density(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    ratios = [20, 1 + len(runs)]
    figure, (axis, below) = panels(
        2, 1, height=2.1 + 0.1 * len(runs), sharex=True, height_ratios=ratios
    )
    peak = 0.0
    for i, (label, study) in enumerate(runs.items()):
        x, y = numbers(study["density"]["x"]), numbers(study["density"]["y"])
        peak = max(peak, span([y])[1])
        axis.plot(x, np.where(y > 0, y, np.nan), color=shades[label], linewidth=1.5)
        top = numbers(study["eigenvalues"])
        below.plot(
            top, np.full(len(top), i), "|", color=shades[label], markersize=9, markeredgewidth=1.5
        )
    tops = [span([study["eigenvalues"]])[1] for study in runs.values()]
    if min(tops) > 0 and max(tops) > 20 * min(tops):
        axis.set_xscale("symlog", linthresh=min(tops) / 10)
    axis.set_yscale("log")
    # a density of Gaussian bumps falls to nothing between eigenvalues: eight decades are enough
    axis.set_ylim(peak * 1e-8, peak * 5)
    axis.set(ylabel="spectral density, log scale")
    below.set(ylim=(len(runs) - 0.2, -0.8), yticks=[], xlabel="eigenvalue of the Hessian")
    below.set_ylabel("top", fontsize=8)
    axis.grid(alpha=0.3)
    below.grid(alpha=0.3)
    tick = {"marker": "|", "linestyle": "", "markersize": 9}
    legend(figure, {k: shades[k] for k in runs}, marks=[Mark("top eigenvalues", tick)])
    caption = (
        "How the eigenvalues of the loss's Hessian are spread, by stochastic Lanczos quadrature, "
        "with the largest ones as ticks below. Mass far to the right is sharp directions, mass "
        "left of zero directions in which the loss still falls. Answers FedAlign, table 1."
    )
    return Drawn("hessian_density", figure, caption=caption)


def _sharpness(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    figure, (left, right) = panels(1, 2, height=1.2 + 0.42 * len(runs), sharey=True)
    bars(left, [{k: number(r["eigenvalues"][0]) for k, r in runs.items()}], shades=shades)
    for i, study in enumerate(runs.values()):
        left.plot(
            number(study["power"]["eigenvalue"]),
            i,
            "D",
            color="black",
            markersize=4,
            markerfacecolor="white",
        )
    bars(
        right,
        [{k: number(r["trace"]["mean"]) for k, r in runs.items()}],
        shades=shades,
        errors={k: number(r["trace"]["sem"]) for k, r in runs.items()},
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
        "Top eigenvalue (bar: Lanczos) and trace of the global model's Hessian. Smaller is "
        "flatter; where the diamond is not at the bar's end, the eigenvalue largest in size is "
        "negative or the iteration had not converged. Answers FedAlign, tables 1 and 9, columns "
        "λ_max and H_T."
    )
    return Drawn("hessian_sharpness", figure, caption=caption)


def _clients(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    figure, (axis,) = panels(1, 1, height=1.6 + 0.42 * len(runs))
    for i, (label, study) in enumerate(runs.items()):
        trace, error = numbers(study["clients"]["trace"]), numbers(study["clients"]["trace_sem"])
        # side by side within a run's row, so that the bars of errors can be told apart
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
        "The trace of the Hessian of each client's model after local training, all on the same "
        "training examples, a dot for each. A wide row means that clients end up in places of "
        "different curvature and pull the average apart. It is what FedAlign's H_N (table 1) "
        "sums up."
    )
    return Drawn("hessian_clients", figure, caption=caption)


def _matching(runs: dict[str, dict], shades: dict[str, str]) -> Drawn:
    figure, axes = panels(2, 2, height=1.1 + 0.5 * len(runs), sharey=True)
    for row, (kind, meaning) in enumerate(KINDS.items()):
        for column, name in enumerate(("H_N", "H_D")):
            axis = axes[2 * row + column]
            found = {k: r["clients"]["matching"][kind] for k, r in runs.items()}
            pair = [
                {k: number(m.get(key)) for k, m in found.items()}
                for key in (name, f"{name}_others")
            ]
            bars(axis, pair, shades=shades)
            better = (
                "difference of norms, lower is better"
                if column == 0
                else "cosine, higher is better"
            )
            axis.set(xlabel=f"{name}: {better}")
            axis.set_title(meaning, fontsize=9)
    legend(
        figure,
        {},
        marks=bar_marks(
            "all pairs, a client with itself too (the paper's code)", "different clients only"
        ),
    )
    caption = (
        "How alike the diagonals of clients' Hessians are in norm (H_N) and direction (H_D). The "
        "upper row takes one value for each tensor, as FedAlign's code does; the lower the whole "
        "diagonal. Pairs of a client with itself make any method look consistent: look at the "
        "hatched bars. Answers FedAlign, tables 1 and 9."
    )
    return Drawn("hessian_matching", figure, caption=caption)
