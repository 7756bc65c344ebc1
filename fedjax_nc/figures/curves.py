"""curves.png: what a person wants to see of a run."""

from pathlib import Path
from typing import Any


def one_run(path: Path, rows: list[dict[str, Any]], title: str) -> None:
    """Accuracy with the spread over clients, and loss, against rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    tested = [row for row in rows if "global_accuracy" in row]
    rounds = [row["round"] for row in tested]
    mean = [row["client_accuracy"] for row in tested]
    std = [row["client_accuracy_std"] for row in tested]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    marker = "o" if len(tested) < 3 else None
    left.plot(
        rounds, [r["global_accuracy"] for r in tested], label="global test set", marker=marker
    )
    left.plot(rounds, mean, label="mean over clients ± std", marker=marker)
    low = [max(m - s, 0) for m, s in zip(mean, std, strict=True)]
    high = [min(m + s, 1) for m, s in zip(mean, std, strict=True)]
    left.fill_between(rounds, low, high, alpha=0.2, color="C1")
    left.set(xlabel="round", ylabel="accuracy", ylim=(0, 1))
    left.legend(loc="lower right")
    right.plot([r["round"] for r in rows], [r["loss"] for r in rows], label="local training loss")
    right.plot(rounds, [r["global_loss"] for r in tested], label="global test cross-entropy")
    right.set(xlabel="round", ylabel="loss", yscale="log")
    right.legend()
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def together(path: Path, runs: dict[str, list[dict[str, Any]]], title: str) -> None:
    """Global accuracy of several runs against rounds: every round faint, mean of five strong."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for i, (name, rows) in enumerate(runs.items()):
        tested = [row for row in rows if "global_accuracy" in row]
        rounds = [row["round"] for row in tested]
        values = [100 * row["global_accuracy"] for row in tested]
        smooth = [sum(values[max(0, j - 4) : j + 1]) / min(j + 1, 5) for j in range(len(values))]
        axis.plot(rounds, values, color=f"C{i}", alpha=0.25, linewidth=1)
        axis.plot(rounds, smooth, color=f"C{i}", linewidth=2, label=name)
    axis.set(xlabel="round", ylabel="accuracy on the test set, per cent", title=title)
    axis.legend(title="mean of five rounds; faint: each")
    axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)
