"""What tables of runs have in common: accuracies, mean and spread, a setting in words."""

import statistics
from collections.abc import Sequence

from fedjax_nc.config import Data, RunConfig

ACCURACIES = {
    "global_accuracy": "global",
    "client_accuracy": "clients",
    "client_accuracy_worst": "worst",
    "personal_accuracy": "personal",
    "finetuned_accuracy": "fine-tuned",
    "calibrated_accuracy": "calibrated",
}
SPREAD = "sample standard deviation over seeds"


def mean_and_spread(values: Sequence[float], *, digits: int = 1, sign: str = " ± ") -> str:
    """Returns the mean and, of several values, their sample standard deviation (n - 1)."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean}{sign}{statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def seconds_in_words(runs: Sequence[tuple[int, float]]) -> str:
    """Returns the mean seconds of a round; those of several seeds at once stand apart and say so.

    Each run is given as (seeds that ran at once, seconds of a round of all of them).
    """
    texts = []
    for count in sorted({count for count, _ in runs}):
        mean = statistics.fmean(seconds for other, seconds in runs if other == count)
        texts.append(f"{mean:.2f} ({count} seeds at once)" if count > 1 else f"{mean:.2f}")
    return ", ".join(texts)


def in_words(cfg: RunConfig) -> str:
    """Returns what a table or panel is about: `cifar10, dirichlet with alpha 0.1, cnn, ...`."""
    who = f"{cfg.federation.participants} of {cfg.federation.clients} clients"
    limit = f" ({cfg.data.limit} examples)" if cfg.data.limit else ""
    partition = partition_in_words(cfg.data)
    return f"{cfg.dataset}{limit}, {partition}, {who}, {cfg.model}, {cfg.rounds} rounds"


def partition_in_words(data: Data) -> str:
    """Returns how the data is dealt: `dirichlet with alpha 0.1 (fedetf)`."""
    if data.partition_file:
        return f"partition of {data.partition_file}"
    if data.partition in ("shards", "classes"):
        return f"{data.per_client} {data.partition} per client"
    if data.partition == "quantity":
        return f"quantity with alpha {data.alpha:g}"
    if data.partition == "dirichlet":
        return f"dirichlet with alpha {data.alpha:g} ({data.rule}'s rule)"
    return data.partition
