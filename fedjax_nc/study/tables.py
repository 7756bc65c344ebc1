"""The numbers of a study as rows: what a person reads in the terminal and in the report."""

from typing import Any

from fedjax_nc.figures.canvas import show as number
from fedjax_nc.figures.report import Table

Runs = dict[str, dict[str, Any]]  # label of a run -> numbers of one study

_COLLAPSE = {
    "nc1": "NC1, tr(S_W S_B⁺)/C", "within_share": "within-class share of variance",
    "nc2": "NC2, distance from the ETF's Gram matrix", "nc2_norms": "NC2, spread of norms",
    "nc2_angles": "NC2, mean deviation of cosines", "nc3": "NC3, head and class means",
    "nc4": "NC4, head and nearest mean disagree", "nc_error": "NC error (FedETF)",
}  # fmt: skip
_ALIGNMENT = {
    "cosine": "cosine with the class vector",
    "gap": "gap to the global model",
    "distance": "feature distance",
    "relative": "relative feature distance",
    "angle": "angle to the global feature, °",
}
_MATCHING = {"H_N": "H_N", "H_D": "H_D", "H_N_squared": "H_N, squared norms",
             "H_D_squared": "H_D, squared norms", "H_N_others": "H_N, other clients only",
             "H_D_others": "H_D, other clients only"}  # fmt: skip


def tables(study: str, runs: Runs) -> list[Table]:
    """One row per number, one column per run."""
    rows = {
        "hessian": _hessian,
        "landscape": _landscape,
        "collapse": _collapse,
        "spectrum": _spectrum,
        "alignment": _alignment,
        "relations": _relations,
        "bias": _bias,
        "cost": _cost,
    }[study](runs)
    return [Table(["", *runs], [[name, *cells] for name, cells in rows])]


def _each(runs: Runs, of: Any) -> list[str]:
    return [of(numbers) for numbers in runs.values()]


def _hessian(runs: Runs):
    yield "largest eigenvalue, Lanczos", _each(runs, lambda n: number(n["eigenvalues"][0]))
    yield (
        "largest in magnitude, power iteration",
        _each(runs, lambda n: number(n["power"]["eigenvalue"])),
    )
    yield "trace", _each(runs, lambda n: number(n["trace"]["mean"], n["trace"]["sem"]))
    for form in ("tensor", "parameter"):
        for key, name in _MATCHING.items():
            yield (
                f"{name} (per {form})",
                _each(
                    runs,
                    lambda n, f=form, k=key: number(
                        n["clients"] and n["clients"]["matching"][f][k]
                    ),
                ),
            )


def _landscape(runs: Runs):
    planes = dict.fromkeys(p for numbers in runs.values() for p in numbers["planes"])
    for plane in planes:
        for name, of in (("least", min), ("largest", max)):

            def cell(n, plane=plane, of=of):
                if plane not in n["planes"]:
                    return number(None)
                rows = n["planes"][plane]["loss"]
                return number(of(v for row in rows for v in row if v is not None))

            yield f"{name} loss, plane of {plane}", _each(runs, cell)


def _collapse(runs: Runs):
    for space in ("projected", "features"):
        for key, name in _COLLAPSE.items():
            yield f"{name} ({space})", _each(runs, lambda n, s=space, k=key: number(n[s][k]))
    for space in ("projected", "features"):
        yield (
            f"prototype consistency of clients ({space})",
            _each(runs, lambda n, s=space: number(n["consistency"][s])),
        )


def _spectrum(runs: Runs):
    keys = {"effective_rank": "covariance", "effective_rank_correlation": "correlation"}
    for space in ("features", "projected"):
        for key, name in keys.items():
            yield (
                f"effective rank of the {name} ({space})",
                _each(runs, lambda n, s=space, k=key: number(n[s][k])),
            )


def _alignment(runs: Runs):
    for key, name in _ALIGNMENT.items():
        for which in ("observed", "unobserved"):
            yield (
                f"{name}, {which} classes",
                _each(runs, lambda n, w=which, k=key: number(*_mean(n[w][k]))),
            )


def _relations(runs: Runs):
    yield "|SL - CR|, Frobenius", _each(runs, lambda n: number(n["distance"]["frobenius"]))
    yield "|SL - CR|²/C² (FedDW, eq. 11)", _each(runs, lambda n: number(n["distance"]["feddw"]))
    yield (
        "rank correlation of weight norm and class share",
        _each(runs, lambda n: number(n["correlation"])),
    )


def _bias(runs: Runs):
    yield "cosine of clients' classifiers", _each(runs, lambda n: number(n["mean_classifiers"]))
    yield "cosine of clients' prototypes", _each(runs, lambda n: number(n["mean_prototypes"]))


def _cost(runs: Runs):
    yield "parameters", _each(runs, lambda n: f"{n['parameters']:,}")
    yield "forward pass, MFLOPs", _each(runs, lambda n: f"{n['mflops']:.2f}")
    yield (
        "local training of a round, GFLOPs",
        _each(runs, lambda n: f"{n['flops_per_round'] / 1e9:.1f}"),
    )
    for way in ("up", "down"):
        yield (
            f"kB {way} per client and round",
            _each(runs, lambda n, w=way: f"{n[f'bytes_{w}'] / 1e3:.1f}"),
        )
    for i in range(max(len(n["targets"]) for n in runs.values())):

        def cell(n, i=i):
            target = n["targets"][i] if i < len(n["targets"]) else None
            if target is None or target["round"] is None:
                return "-" if target is None else f"{100 * target['accuracy']:.1f} %: not reached"
            size = target["bytes"] / 1e6
            return f"{100 * target['accuracy']:.1f} %: round {target['round']}, {size:.1f} MB"

        yield f"to target {i + 1}", _each(runs, cell)


def _mean(values: list[float | None]) -> tuple[float | None, float | None]:
    """Over clients, with its standard error."""
    known = [v for v in values if v is not None]
    if not known:
        return None, None
    mean = sum(known) / len(known)
    spread = sum((v - mean) ** 2 for v in known) / max(len(known) - 1, 1)
    return mean, (spread / len(known)) ** 0.5 if len(known) > 1 else None
