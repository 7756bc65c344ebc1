"""The study of dimensional collapse: in how many directions features vary (FedBlade)."""

import jax

from fedjax_nc.analysis import measures
from fedjax_nc.figures import spectrum as figures
from fedjax_nc.figures.canvas import show
from fedjax_nc.study.base import Results, Rows, Study
from fedjax_nc.study.subject import Subject


def compute(run: Subject) -> Results:
    """Computes singular values and effective ranks of the global model's features."""
    found = jax.jit(measures.spectrum_of)(run.outputs)
    return {space: values._asdict() for space, values in found.items()} | {
        "tracked": run.tracked("spectrum")
    }


ROWS: Rows = {
    f"{name} ({space})": lambda r, s=space, k=key: show(r[s][k])
    for space in figures.SIDES
    for key, name in figures.RANKS.items()
}
STUDY = Study(
    title="Spectrum of features",
    intro=(
        "Singular values of the covariance of test examples' features, and the number of "
        "directions they amount to, before and after the projector."
    ),
    compute=compute,
    draw=figures.draw,
    rows=lambda runs: ROWS,
    uses=("examples",),
)
