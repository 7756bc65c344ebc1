"""The study of neural collapse (FedBlade, FedETF)."""

import jax

from fedjax_nc.analysis import measures
from fedjax_nc.figures import collapse as figures
from fedjax_nc.figures.canvas import show
from fedjax_nc.study.base import Results, Rows, Study
from fedjax_nc.study.subject import Subject, class_vectors


def compute(run: Subject) -> Results:
    """Computes NC1 to NC4 and the NC error, and how alike clients' class means are."""
    found = jax.jit(measures.collapse_of)(run.outputs, class_vectors(run.weights))
    results: Results = {space: values._asdict() for space, values in found.items()}
    if not run.shares_head:  # NC3 and NC4 compare features with the one head of a global model
        results = {s: values | {"nc3": None, "nc4": None} for s, values in results.items()}
    sums = {"features": run.own_sums.features, "projected": run.own_sums.projected}
    return results | {"consistency": measures.consistency_of(sums), "tracked": _tracked(run)}


def _tracked(run: Subject) -> list[Results]:
    """Returns what was recorded of collapse and of consistency, by round."""
    rows = {row["round"]: row for row in run.tracked("collapse")}
    for row in run.tracked("consistency"):
        values = {"consistency": row["projected"], "features_consistency": row["features"]}
        number = row["round"]
        rows[number] = rows.get(number, {"round": number}) | values
    return [rows[number] for number in sorted(rows)]


SPACES = ("projected", "features")
ROWS: Rows = {
    f"{name} ({space})": lambda r, s=space, k=key: show(r[s][k])
    for space in SPACES
    for key, name in figures.MEASURES.items()
} | {
    f"{figures.CONSISTENCY} ({space})": lambda r, s=space: show(r["consistency"][s])
    for space in SPACES
}
STUDY = Study(
    title="Neural collapse",
    intro=(
        "How close the global model's features of test examples are to one point per class, and "
        "these points to a simplex ETF. Full collapse is 0 in every row but the consistency of "
        "clients' class means, where 1 is best."
    ),
    compute=compute,
    draw=figures.draw,
    rows=lambda runs: ROWS,
    uses=("examples", "clients"),
)
