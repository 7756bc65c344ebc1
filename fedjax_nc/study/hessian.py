"""The study of curvature: how sharp the global model is, and how clients' Hessians match."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc.analysis import curvature, lanczos
from fedjax_nc.figures import hessian as figures
from fedjax_nc.figures.canvas import show
from fedjax_nc.study.base import Results, Rows, Study
from fedjax_nc.study.curvature import hessian_of, ritz_of
from fedjax_nc.study.subject import Subject


def compute(run: Subject) -> Results:
    """Computes eigenvalues, trace and density of the global model, and clients' H_N and H_D."""
    key = jax.random.key(run.options.seed)
    hessian, ritz = hessian_of(run, run.weights), ritz_of(run)
    top = lanczos.extreme(ritz, count=run.options.eigenvalues, by="value")
    power = curvature.power_iteration(
        hessian,
        jax.random.fold_in(key, 1),
        progress=partial(run.progress, "hessian: power iteration"),
    )
    probe = partial(curvature.probe, key=jax.random.fold_in(key, 2), probes=run.options.probes)
    trace = curvature.trace(probe(hessian, progress=partial(run.progress, "hessian: trace")))
    density = lanczos.smooth(ritz.values, ritz.weights, points=400, width=0.01)
    samples = probe(
        hessian_of(run, run.local_models, several=True),
        progress=partial(run.progress, "hessian: clients"),
    )
    return {
        "examples": int(run.probe.train.mask.sum()),
        "parameters": hessian.size,
        "eigenvalues": top.values,
        "errors": top.errors,
        "power": {"eigenvalue": power.values[0], "products": power.products},
        "trace": {"mean": trace.mean, "sem": trace.error, "probes": trace.probes},
        "density": {"x": density.x, "y": density.density},
        "clients": _clients(run, samples),
    }


def _clients(run: Subject, samples: curvature.Samples) -> Results:
    """Compares clients' Hessians in every form that FedAlign's text and code have."""
    traces = [curvature.trace(samples._replace(tensors=own)) for own in samples.tensors]
    flat = [np.asarray(x).reshape(len(traces), -1) for x in jax.tree.leaves(samples.diagonal)]
    diagonals = {"tensor": samples.tensors.mean(1), "parameter": np.concatenate(flat, 1)}
    forms: dict[str, Any] = {"": {}, "_squared": {"squared": True}}
    if len(traces) > 1:
        forms["_others"] = {"pairs_with_self": False}
    matching = {}
    for kind, diagonal in diagonals.items():
        matching[kind] = dict.fromkeys(("H_N_others", "H_D_others"))
        for form, options in forms.items():
            pair = curvature.matching(jnp.asarray(diagonal), **options)
            matching[kind] |= dict(zip((f"H_N{form}", f"H_D{form}"), pair, strict=True))
    return {
        "ids": run.ids,
        "trace": [t.mean for t in traces],
        "trace_sem": [t.error for t in traces],
        "matching": matching,
    }


def _matching(results: Results, kind: str, key: str) -> str:
    return show(results["clients"] and results["clients"]["matching"][kind][key])


ROWS: Rows = {
    "largest eigenvalue, Lanczos": lambda r: show(r["eigenvalues"][0]),
    "largest in magnitude, power iteration": lambda r: show(r["power"]["eigenvalue"]),
    "trace": lambda r: show(r["trace"]["mean"], r["trace"]["sem"]),
} | {
    f"{name} (per {kind})": partial(_matching, kind=kind, key=key)
    for kind in figures.KINDS
    for key, name in figures.MATCHING.items()
}
STUDY = Study(
    title="Curvature",
    intro=(
        "The Hessian is that of the mean cross-entropy over training examples, with the network in "
        "evaluation mode, with respect to the parameters that the method trains. λ_max and the "
        "trace belong to the global model. H_N and H_D compare the diagonals of the clients' "
        "Hessians after local training: with one number per tensor, as in FedAlign's code, or with "
        "one per parameter, as in its text."
    ),
    compute=compute,
    draw=figures.draw,
    rows=lambda runs: ROWS,
    uses=("examples", "clients", "few", "eigenvalues", "products", "probes", "seed"),
)
