"""The study of cost: parameters, operations, traffic, and how soon an accuracy was reached."""

from fedjax_nc import tree
from fedjax_nc.figures import cost as figures
from fedjax_nc.study.base import Results, Rows, Runs, Study
from fedjax_nc.study.subject import Subject
from fedjax_nc.train.traffic import traffic

SHARES = (0.5, 0.75, 0.9)  # of the best accuracy: the targets where none are given


def compute(run: Subject) -> Results:
    """Computes the rows of FedAlign's tables 5 and 8, and of FedBlade's 2 and 10 to 17."""
    job = run.job
    up, down = traffic(job.task, job.data.pool)
    curve = [(r["round"], r["global_accuracy"]) for r in run.rows if "global_accuracy" in r]
    results = {
        "parameters": tree.num_elements(run.state.weights.params),
        "mflops": run.multiply_adds / 1e6,
        "bytes_up": up,
        "bytes_down": down,
        "participants": job.config.federation.participants,
        "curve": curve,
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
    """Finds the first tested round at each accuracy, and the bytes all clients moved until then."""
    per_round = (results["bytes_up"] + results["bytes_down"]) * results["participants"]
    found = []
    for target in targets:
        first = next((n for n, accuracy in results["curve"] if accuracy >= target), None)
        found.append({"accuracy": target, "round": first, "bytes": first and first * per_round})
    return found


def rows(runs: Runs) -> Rows:
    """Returns sizes, operations, traffic, and one row per target."""
    return {
        "parameters": lambda r: f"{r['parameters']:,}",
        "forward pass, MFLOPs": lambda r: f"{r['mflops']:.2f}",
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
    return f"{accuracy}: round {target['round']}, {target['bytes'] / 1e6:.1f} MB"


STUDY = Study(
    title="Cost",
    intro="What the network and a round cost, and when the run reached an accuracy.",
    compute=compute,
    draw=figures.draw,
    rows=rows,
    uses=("targets",),
    align=with_common_targets,
)
