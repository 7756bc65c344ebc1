"""How the columns of a table are named: by what varies in it, and by nothing else."""

from collections.abc import Sequence

from fedjax_nc.recipes.base import Value

_METRICS = {
    "global_acc": "global",
    "personal_acc": "personal",
    "seconds_per_round": "s/round",
    "seconds_per_epoch": "s/epoch",
    "best_beta": "best beta",
    "lambda_max": "largest eigenvalue",
    "hessian_trace": "trace",
    "mflops": "MFLOPs",
    "gflops": "GFLOPs",
    "params_m": "M parameters",
    "total_mflops_to_60": "MFLOPs to 60 %",
    "comm_gb": "Gbit to 60 %",
    "ms_per_iter": "ms a step",
    "proto_comm_kb": "kB of prototypes",
}


def columns(values: Sequence[Value]) -> list[str]:
    """Returns the name of each number's column, of what is not the same in the whole table."""
    sides = [_sides(value) for value in values]
    chosen: list[str] = []
    for field in sides[0]:
        groups: dict[tuple[str, ...], set[str]] = {}
        for side in sides:
            if side[field]:
                groups.setdefault(tuple(side[name] for name in chosen), set()).add(side[field])
        if any(len(group) > 1 for group in groups.values()):
            chosen.append(field)
    names = [", ".join(side[name] for name in chosen if side[name]) for side in sides]
    return [name or side["metric"] for name, side in zip(names, sides, strict=True)]


def _sides(value: Value) -> dict[str, str]:
    """Returns what a column may be named by, in words."""
    drawn, clients = value.clients_per_round, value.num_clients
    people = f"{drawn} of {clients} clients" if drawn and drawn != clients else ""
    return {
        "dataset": value.dataset,
        "partition": _partition(value),
        "model": value.model,
        "clients": people or (f"{clients} clients" if clients and drawn else ""),
        "rounds": f"{value.rounds} rounds" if value.rounds else "",
        "epochs": f"E={value.local_epochs}" if value.local_epochs else "",
        "metric": _metric(value.metric),
    }


def _partition(value: Value) -> str:
    if value.partition == "dirichlet":
        return f"Dir({value.partition_param})"
    return f"s={value.partition_param}" if value.partition == "shard" else value.partition


def _metric(name: str) -> str:
    for start in ("rounds", "speedup"):
        if name.startswith(f"{start}_to_"):
            word = "speed-up" if start == "speedup" else start
            return f"{word} to {name.rpartition('_')[2]} %"
    return _METRICS.get(name, name)
