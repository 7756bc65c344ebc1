"""What a run costs: parameters, operations, traffic, and how soon it reached an accuracy."""

from typing import Any

from fedjax_nc import tree, work
from fedjax_nc.io import records
from fedjax_nc.study.subject import Progress, Subject
from fedjax_nc.train.traffic import traffic

SHARES = (0.5, 0.75, 0.9)  # of the best accuracy seen, where no targets are given


def cost(run: Subject, progress: Progress) -> dict[str, Any]:
    """FedAlign's tables 5 and 8, FedBlade's 2 and 10 to 17."""
    del progress
    job, cfg = run.job, run.job.config
    up, down = traffic(job.task, job.data.pool)
    rows = records.read(run.directory / "metrics.jsonl")
    curve = [(r["round"], r["global_accuracy"]) for r in rows if "global_accuracy" in r]
    best = max((a for _, a in curve), default=0.0)
    each = (up + down) * cfg.federation.participants
    found = []
    for target in run.options.targets or [round(share * best, 3) for share in SHARES]:
        first = next((n for n, accuracy in curve if accuracy >= target), None)
        found.append({"accuracy": target, "round": first, "bytes": first and first * each})
    size = work.size_of(cfg.model, job.data.pool.x.shape[1:], job.data.class_counts.shape[-1])
    return {
        "parameters": tree.num_elements(run.state.weights.params),
        "mflops": size.multiply_adds / 1e6, "bytes_up": up, "bytes_down": down,
        "participants": cfg.federation.participants, "curve": curve, "targets": found,
        "flops_per_round": work.round_flops(job, run.state),
    }  # fmt: skip
