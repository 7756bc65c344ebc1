"""What a run costs: parameters, operations, traffic, and how soon it reached an accuracy."""

from typing import Any

from fedjax_nc import tree
from fedjax_nc.host import dry_run
from fedjax_nc.io import records
from fedjax_nc.study.subject import Progress, Subject
from fedjax_nc.study.tables import Runs
from fedjax_nc.train.traffic import traffic

SHARES = (0.5, 0.75, 0.9)  # of the best accuracy seen, where no targets are given


def cost(run: Subject, progress: Progress) -> dict[str, Any]:
    """FedAlign's tables 5 and 8, FedBlade's 2 and 10 to 17."""
    del progress
    job, cfg = run.job, run.job.config
    up, down = traffic(job.task, job.data.pool)
    rows = records.read(run.directory / "metrics.jsonl")
    curve = [(r["round"], r["global_accuracy"]) for r in rows if "global_accuracy" in r]
    size = dry_run.size_of(
        cfg.model, job.data.pool.x.shape[1:], classes=job.data.class_counts.shape[-1]
    )
    numbers = {
        "parameters": tree.num_elements(run.state.weights.params),
        "mflops": size.multiply_adds / 1e6,
        "bytes_up": up,
        "bytes_down": down,
        "participants": cfg.federation.participants,
        "curve": curve,
        "flops_per_round": dry_run.round_flops(job),
    }
    return numbers | {"targets": _reached(numbers, run.options.targets or _shares([numbers]))}


def common(runs: Runs) -> Runs:
    """The same with one set of targets, which every run reaches; as it is if there is one."""
    asked = [[t["accuracy"] for t in numbers["targets"]] for numbers in runs.values()]
    if all(targets == asked[0] for targets in asked):
        return runs
    targets = _shares(list(runs.values()))
    return {label: n | {"targets": _reached(n, targets)} for label, n in runs.items()}


def _shares(several: list[dict[str, Any]]) -> tuple[float, ...]:
    """Of the best accuracy that all of them saw."""
    best = min(max((a for _, a in numbers["curve"]), default=0.0) for numbers in several)
    return tuple(round(share * best, 3) for share in SHARES)


def _reached(numbers: dict[str, Any], targets: tuple[float, ...]) -> list[dict[str, Any]]:
    """The first tested round with each accuracy, and what all clients had sent and got by then."""
    each = (numbers["bytes_up"] + numbers["bytes_down"]) * numbers["participants"]
    found = []
    for target in targets:
        first = next((n for n, accuracy in numbers["curve"] if accuracy >= target), None)
        found.append({"accuracy": target, "round": first, "bytes": first and first * each})
    return found
