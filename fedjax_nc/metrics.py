"""The one table of metrics: how each is computed from scores, and how tables and plots call it.

Standard library only at import, so that commands can name columns before jax starts.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """One number of a run.

    A score holds the sums over rows of examples: correct answers, loss and count, and by class and
    by bin of confidence what its fields say; one row per client for all but the global model.
    """

    name: str  # in metrics.jsonl and summary.json
    label: str = ""  # of its column; without one it is in a table only if it is asked for
    whose: str = ""  # the scored models, and where they are tested
    of: Callable[[Any], Any] | None = None  # from a score; None where the run knows it otherwise
    percent: bool = True  # shown times 100
    digits: int = 2  # behind the point

    def show(self, value: float | None) -> str:
        """Returns the text of a table's cell."""
        if value is None:
            return "-"
        return f"{100 * value if self.percent else value:.{self.digits}f}"


def accuracy(score: Any) -> float:
    """Returns the share of correct answers over all rows together."""
    return float(score.correct.sum()) / float(score.count.sum())


def loss(score: Any) -> float:
    """Returns the mean cross-entropy over all rows together."""
    return float(score.loss.sum()) / float(score.count.sum())


def mean(score: Any) -> float:
    """Returns the mean accuracy over clients that have tests."""
    values = _of_clients(score)
    return float(values.mean()) if len(values) else math.nan


def std(score: Any) -> float:
    """Returns the standard deviation of the accuracy over clients that have tests."""
    values = _of_clients(score)
    return float(values.std()) if len(values) else math.nan


def worst(score: Any) -> float:
    """Returns the mean accuracy of the worst tenth of clients that have tests."""
    values = _of_clients(score)
    return float(values[: max(1, len(values) // 10)].mean()) if len(values) else math.nan


def balanced_accuracy(score: Any) -> float:
    """Returns the mean, over classes that occur in the tests, of the share of them that is right.

    The tests of all rows are pooled: each client's answers are its own model's.
    """
    found = [share for share in class_accuracy(score) if share is not None]
    return statistics.fmean(found) if found else math.nan


def macro_f1(score: Any) -> float:
    """Returns the mean F1 over classes that occur in the tests or in the answers of all rows.

    A class that occurs in one of them only has an F1 of zero.
    """
    either = _over_rows(score.class_count) + _over_rows(score.class_answers)
    occurs = either > 0
    f1 = 2 * _over_rows(score.class_correct)[occurs] / either[occurs]
    return float(f1.mean()) if occurs.any() else math.nan


def class_accuracy(score: Any) -> list[float | None]:
    """Returns the share of each class's tests that is right, None of a class without tests."""
    correct, count = _over_rows(score.class_correct), _over_rows(score.class_count)
    return [float(c / n) if n else None for c, n in zip(correct, count, strict=True)]


def calibration_error(score: Any) -> float:
    """Returns the expected calibration error, over the tests of all rows together.

    It is sum_b |sum of confidence in b - correct answers in b| / n, over bins b of confidence (Guo
    et al., On Calibration of Modern Neural Networks, ICML 2017, equation 3).
    """
    gaps = abs(_over_rows(score.bin_confidence) - _over_rows(score.bin_correct))
    return float(gaps.sum()) / count if (count := float(score.count.sum())) else math.nan


def _over_rows(sums: Any) -> Any:
    """Returns the sums by class or bin over all rows."""
    import numpy as np

    return np.asarray(sums, float).reshape(-1, sums.shape[-1]).sum(0)


def _of_clients(score: Any) -> Any:
    """Returns every client's accuracy, the lowest first."""
    import numpy as np

    count = np.asarray(score.count)
    return np.sort(np.asarray(score.correct)[count > 0] / count[count > 0])


def _over_clients(whose: str, label: str, worst_label: str = "") -> tuple[Metric, ...]:
    return (
        Metric(f"{whose}_accuracy", label, whose=whose, of=mean),
        Metric(f"{whose}_accuracy_std", whose=whose, of=std),
        Metric(f"{whose}_accuracy_worst", worst_label, whose=whose, of=worst),
    )


def _over_classes(whose: str) -> tuple[Metric, ...]:
    return (
        Metric(f"{whose}_balanced_accuracy", whose=whose, of=balanced_accuracy),
        Metric(f"{whose}_macro_f1", whose=whose, of=macro_f1),
        Metric(f"{whose}_calibration_error", whose=whose, of=calibration_error),
        Metric(f"{whose}_class_accuracy", whose=whose, of=class_accuracy),
    )


# participants that fail, in the records of a run whose configuration says that they may
ODD = ("dropped", "stragglers", "diverged")
COSTS = ("bytes_up", "bytes_down", "mflops")  # of a run that stops at a target accuracy

METRICS = (
    Metric("global_accuracy", "global", whose="global", of=accuracy),
    Metric("global_loss", whose="global", of=loss, percent=False),
    *_over_classes("global"),
    *_over_clients("client", "clients", worst_label="worst"),
    *_over_clients("personal", "personal"),
    *_over_classes("personal"),
    *_over_clients("personal_global", "official"),
    *_over_classes("personal_global"),
    *_over_clients("finetuned", "fine-tuned"),
    *_over_classes("finetuned"),
    Metric("calibrated_accuracy", "calibrated", whose="calibrated", of=accuracy),
    *_over_classes("calibrated"),
    *_over_clients("calibrated_personal", ""),
    *_over_classes("calibrated_personal"),
    Metric("rounds_to_target", "to target", percent=False, digits=0),
    *(Metric(f"{cost}_to_target", percent=False, digits=0) for cost in COSTS),
    *(Metric(name, percent=False, digits=0) for name in ODD),
    Metric("seconds_per_round", "s/round", percent=False),
    Metric("compile_seconds", "compile", percent=False),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def measure(whose: str, score: Any) -> dict[str, Any]:
    """Returns every metric of these models by its name."""
    return {m.name: m.of(score) for m in METRICS if m.whose == whose and m.of}


def columns(summaries: Iterable[Mapping[str, Any]]) -> list[Metric]:
    """Returns the metrics a table of these summaries shows: those that some run has."""
    summaries = list(summaries)
    return [m for m in METRICS if m.label and any(s.get(m.name) is not None for s in summaries)]


def curve(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Returns the tested rounds with the accuracy of the global model."""
    return [(row["round"], row["global_accuracy"]) for row in rows if "global_accuracy" in row]


def to_target(
    curve: Sequence[tuple[int, float]],
    target: float,
    *,
    per_round: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Returns the first tested round that reaches an accuracy, and what all rounds until then cost.

    Args:
      curve: tested rounds and their accuracies.
      target: the accuracy, as a share.
      per_round: what a round costs, by name; each is None where the target is not reached.
    """
    first = next((number for number, accuracy in curve if accuracy >= target), None)
    costs = {
        name: None if first is None else first * each for name, each in (per_round or {}).items()
    }
    return {"round": first} | costs


def duration(seconds: float) -> str:
    """Returns a time for people: `35 ms`, `40 s`, `12 min`, `10 h`, `3 days`."""
    for most, unit, size in ((1, "ms", 1e-3), (100, "s", 1), (6000, "min", 60), (2e5, "h", 3600)):
        if seconds < most:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
