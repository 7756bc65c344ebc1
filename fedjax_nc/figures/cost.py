"""What an accuracy costs in rounds and bytes (FedAlign tables 5, 8; FedBlade 2, 10-17)."""

from fedjax_nc.figures.canvas import (
    Drawn,
    Mark,
    as_array,
    as_float,
    colours,
    legend,
    panels,
    present,
)

REACHED = {"marker": "o", "linestyle": "", "markersize": 7, "markeredgecolor": "black"}


def draw(runs: dict[str, dict]) -> list[Drawn]:
    """Draws accuracy against rounds and against megabytes, with the targets."""
    shades, runs = colours(runs), present(runs)
    if not runs:
        return []
    figure, (left, right) = panels(1, 2, height=3.8, sharey=True)
    for label, study in runs.items():
        curve = as_array(study["curve"]).reshape(-1, 2)
        marker = "." if len(curve) < 3 else None
        rounds, accuracy = curve[:, 0], 100 * curve[:, 1]
        left.plot(rounds, accuracy, color=shades[label], marker=marker)
        right.plot(rounds * _megabytes(study), accuracy, color=shades[label], marker=marker)
        for target in study["targets"]:
            height, moved = 100 * target["accuracy"], as_float(target["bytes"]) / 1e6
            dot = {**REACHED, "color": shades[label], "zorder": 4}
            left.plot(as_float(target["round"]), height, **dot)
            right.plot(moved, height, **dot)
    goals = sorted({t["accuracy"] for study in runs.values() for t in study["targets"]})
    for axis in (left, right):
        for goal in goals:
            axis.axhline(100 * goal, color="0.4", linestyle=":", linewidth=1)
        axis.grid(alpha=0.3)
        axis.margins(x=0.02)
    left.set(xlabel="round", ylabel="accuracy on the test set, per cent")
    right.set(xlabel="sent and received by all clients so far, MB")
    marks = [Mark("target", {"linestyle": ":"}), Mark("first reached", {**REACHED, "color": "0.6"})]
    legend(figure, {label: shades[label] for label in runs}, marks=marks if goals else [])
    caption = (
        "Accuracy of the global model against rounds, and against the megabytes that all "
        "participants have sent and received. A method that sends more has to save rounds: on "
        "each dotted line, compare the order of the dots on the left with that on the right. "
        "Compare FedAlign, table 8, and FedBlade, tables 2 and 12-17."
    )
    return [Drawn("cost", figure, caption=caption)]


def _megabytes(study: dict) -> float:
    """Returns the megabytes all participants send and receive in one round."""
    return study["participants"] * (study["bytes_up"] + study["bytes_down"]) / 1e6
