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
