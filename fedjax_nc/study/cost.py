"""The study of cost: parameters, operations, traffic, and how soon an accuracy was reached."""

from fedjax_nc import metrics, tree
from fedjax_nc.figures import cost as figures
from fedjax_nc.study.base import Results, Rows, Runs, Study
from fedjax_nc.study.subject import Subject
from fedjax_nc.train.traffic import traffic

SHARES = (0.5, 0.75, 0.9)  # of the best accuracy: the targets where none are given


def compute(run: Subject) -> Results:
    """Computes the rows of FedAlign's tables 5 and 8, and of FedBlade's 2 and 10 to 17."""
    job, cost = run.job, run.cost
    up, down = traffic(job.task, job.data.pool)
    results = {
        "parameters": tree.num_elements(run.state.weights.params),
        "mflops": run.multiply_adds / 1e6,
        "forward_mflops": cost.multiply_adds / 1e6,
        "stored_parameters": cost.parameters,
        "bytes_up": up,
        "bytes_down": down,
        "participants": job.config.federation.participants,
        "curve": metrics.curve(run.rows),
        "flops_per_round": run.round_flops,
    }
    return results | {"targets": _reached(results, run.options.targets or _shares([results]))}


def with_common_targets(runs: Runs) -> Runs:
    """Gives all runs the same targets, which each of them reaches, unless they agree already."""
    given = [[t["accuracy"] for t in results["targets"]] for results in runs.values()]
    if all(targets == given[0] for targets in given):
        return runs
    targets = _shares(list(runs.values()))
    return {label: r | {"targets": _reached(r, targets)} for label, r in runs.items()}


def _shares(several: list[Results]) -> tuple[float, ...]:
    """Returns shares of the best accuracy that every one of the runs has reached."""
    best = min(max((a for _, a in results["curve"]), default=0.0) for results in several)
    return tuple(round(share * best, 3) for share in SHARES)


def _reached(results: Results, targets: tuple[float, ...]) -> list[Results]:
    """Finds the first tested round at each accuracy, and what it has cost until then."""
    up, down = (results[f"bytes_{way}"] * results["participants"] for way in ("up", "down"))
    mflops = results.get("forward_mflops", results["mflops"])  # an earlier analysis has one number
    per_round = {"bytes": up + down, "bytes_up": up, "bytes_down": down, "mflops": mflops}
    return [
        {"accuracy": t} | metrics.to_target(results["curve"], t, per_round=per_round)
        for t in targets
    ]


def rows(runs: Runs) -> Rows:
    """Returns sizes, operations, traffic, and one row per target."""
    return {
        "parameters": lambda r: f"{r['parameters']:,}",
        "forward pass, MFLOPs": lambda r: f"{r['mflops']:.2f}",
        "all forward passes of a step, MFLOPs per example": lambda r: (
            f"{r['forward_mflops']:.2f}" if "forward_mflops" in r else "-"
        ),
        "parameters that a client stores": lambda r: (
            f"{r['stored_parameters']:,}" if "stored_parameters" in r else "-"
        ),
        "local training of a round, GFLOPs": lambda r: f"{r['flops_per_round'] / 1e9:.1f}",
        "kB up per client and round": lambda r: f"{r['bytes_up'] / 1e3:.1f}",
        "kB down per client and round": lambda r: f"{r['bytes_down'] / 1e3:.1f}",
    } | {
        f"to target {i + 1}": lambda r, i=i: _target(r["targets"], i)
        for i in range(max(len(r["targets"]) for r in runs.values()))
    }


def _target(targets: list[Results], i: int) -> str:
    if i >= len(targets):
        return "-"
    target = targets[i]
    accuracy = f"{100 * target['accuracy']:.1f} %"
    if target["round"] is None:
        return f"{accuracy}: not reached"
    sent = f" ({target['bytes_up'] / 1e6:.1f} MB sent)" if "bytes_up" in target else ""
    return f"{accuracy}: round {target['round']}, {target['bytes'] / 1e6:.1f} MB{sent}"


STUDY = Study(
    title="Cost",
    intro="What the network and a round cost, and when the run reached an accuracy.",
    compute=compute,
    draw=figures.draw,
    rows=rows,
    uses=("targets",),
    align=with_common_targets,
)
