"""The study of alignment: clients' models beside the global model they start from (FedDr+)."""

import jax
import numpy as np

from fedjax_nc.analysis import measures
from fedjax_nc.figures import alignment as figures
from fedjax_nc.figures.canvas import show
from fedjax_nc.study.base import Results, Rows, Study, mean_and_error
from fedjax_nc.study.subject import Subject, class_vectors


def compute(run: Subject) -> Results:
    """Computes, for each client, alignment on the classes it holds and on those it lacks."""
    vectors = class_vectors(run.local_models)
    found = jax.jit(measures.alignment_of)(run.local_outputs, run.outputs, vectors, run.counts > 0)
    values = {k: np.asarray(v) for k, v in found._asdict().items() if k != "count"}
    return {"ids": run.ids, "tracked": run.tracked("alignment")} | {
        side: {k: v[:, i] for k, v in values.items()} for i, side in enumerate(figures.SIDES)
    }


ROWS: Rows = {
    f"{name}, {side}": lambda r, s=side, k=key: show(*mean_and_error(r[s][k]))
    for key, name in (figures.CLASSIFIER | figures.FEATURES).items()
    for side in figures.SIDES
}
STUDY = Study(
    title="Alignment",
    intro=(
        "Clients' models after local training beside the global model they started from, on test "
        "examples. A client's observed classes occur in its training data, the unobserved ones do "
        "not. The table gives means over clients with their standard errors."
    ),
    compute=compute,
    draw=figures.draw,
    rows=lambda runs: ROWS,
    uses=("examples", "clients"),
)
