"""The targets of the fixed workload and its relatives, and whether the results meet them."""

from typing import Any

import chart

FRAMEWORKS = ("flower", "pfl", "fedjax")


def sheet(results: dict[str, dict[str, Any]]) -> chart.Sheet:
    """A line for every target whose results are there."""
    lines = []
    for text, least, value in _ratios(results):
        lines.append(
            [text, f"at least {chart.ratio(least)}", chart.ratio(value), _met(value >= least)]
        )
    for text, most, value, unit in _limits(results):
        lines.append([text, f"at most {most:g}{unit}", f"{value:.2f}{unit}", _met(value <= most)])
    if fixed := _ours(results, "fedavg-fedavg_cnn"):
        value = fixed["percent_of_peak"]
        lines.append(
            [
                "fixed workload, share of the peak",
                "at least 60 %",
                f"{value:.0f} %",
                _met(value >= 60),
            ]
        )
    return chart.Sheet("", ["work", "target", "measured", ""], rows=lines)


def _ratios(results):
    wanted = [
        ("fixed workload over plain PyTorch", "fedavg-fedavg_cnn", "fedavg_cnn", ("torch",), 2.0),
        (
            "fixed workload over tuned PyTorch (no target set)",
            "fedavg-fedavg_cnn",
            "fedavg_cnn",
            ("torch_tuned",),
            1.0,
        ),
        (
            "fixed workload over the fastest framework",
            "fedavg-fedavg_cnn",
            "fedavg_cnn",
            FRAMEWORKS,
            1.6,
        ),
        ("`resnet20_b`, GroupNorm, over plain PyTorch", "resnet20", "resnet20_b", ("torch",), 1.2),
        ("`resnet20_b`, GroupNorm, over FedJAX", "resnet20", "resnet20_b", ("fedjax",), 2.4),
        ("`mlp`, ten clients, over plain PyTorch", "ten-clients", "mlp", ("torch",), 2.0),
        ("`cnn`, ten clients, over plain PyTorch", "ten-clients", "cnn", ("torch",), 1.5),
        (
            "`resnet20`, ten clients, over plain PyTorch",
            "resnet20-ten-clients",
            "resnet20",
            ("torch",),
            1.0,
        ),
    ]
    if found := results.get("hessian"):
        peers = [row for row in found["hessian"]["rows"] if row["name"] != "ours"]
        for what, field in (("alone", "over_ours"), ("in one program", "over_ours_in_program")):
            if peers:
                text = f"Hessian-vector product {what} over PyTorch's double backward"
                yield text, 1.0, min(row[field] for row in peers)
    for text, file, model, names, least in wanted:
        rows = [
            row
            for row in results.get(file, {}).get("rows", [])
            if row["name"] in names and row["workload"]["model"] == model
        ]
        if rows:
            yield text, least, min(row["ratio"] for row in rows)


def _limits(results):
    if found := results.get("unequal"):
        for name, case in found["unequal"]["cases"].items():
            yield f"unequal data, {name}, over equal data", 1.15, case["ratio"], "x"
    if found := results.get("growth"):
        g = found["growth"]
        for what, unit in (("seconds", "seconds"), ("memory_mb", "memory")):
            ratio = g[f"last_ten_{what}"] / g[f"first_ten_{what}"]
            yield f"{unit} of rounds 91 to 100 over 1 to 10", 1.1, ratio, "x"
    if found := results.get("hessian"):
        ours = found["hessian"]["rows"][0]
        text = f"Hessian-vector product over a gradient, `{found['hessian']['model']}`"
        yield f"{text}, in one program", 2.5, ours["ratio_in_program"], "x"
        yield f"{text}, alone", 2.5, ours["ratio"], "x"
    if found := results.get("start"):
        seconds = found["start"]["warm_seconds"]
        yield "start to first round on `mnist5k`, warm cache", 6.0, seconds, " s"
    if found := results.get("seeds"):
        s = found["seeds"]
        yield (
            f"three seeds over one, whole command, `{s['model']}`",
            2.2,
            s["command"]["ratio"],
            "x",
        )
        yield f"three seeds over one, steady rounds, `{s['model']}`", 2.2, s["ratio"], "x"


def _ours(results, file):
    rows = results.get(file, {}).get("rows", [])
    return next((row for row in rows if row["name"] == "ours"), None)


def _met(met: bool) -> str:
    return "met" if met else "**not met**"
