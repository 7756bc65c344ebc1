"""The study of classifier bias: how far clients' class vectors point apart (FedETF)."""

import jax.numpy as jnp

from fedjax_nc.analysis import bias, plane
from fedjax_nc.errors import UserError
from fedjax_nc.figures import bias as figures
from fedjax_nc.figures.canvas import show
from fedjax_nc.study.base import Results, Rows, Study
from fedjax_nc.study.subject import Subject, class_vectors

MAPPED = 2000  # class vectors in the t-SNE map, at most


def compute(run: Subject) -> Results:
    """Computes cosines between every two clients' classifiers and class means, and a t-SNE map."""
    if len(run.ids) < 2:
        raise UserError("bias compares clients with data, and there is only one: leave it out")
    local, own = class_vectors(run.local_models), run.own_sums.features
    classifiers = bias.pairwise_cosines(local, jnp.ones(local.shape[:2], bool))
    prototypes = bias.pairwise_cosines(own.mean, own.count > 0)
    run.progress("bias: t-SNE", 0, 1)
    mapped = local[: max(2, MAPPED // local.shape[1])]
    places = plane.tsne(mapped.reshape(-1, local.shape[-1]), seed=run.options.seed)
    return {
        "ids": run.ids,
        "classifiers": classifiers,
        "prototypes": prototypes,
        "mean_classifiers": bias.mean_off_diagonal(classifiers),
        "mean_prototypes": bias.mean_off_diagonal(prototypes),
        "counts": run.counts,
        "tsne": places.reshape(*mapped.shape[:2], 2),
    }


ROWS: Rows = {
    f"mean cosine of clients' {name}": lambda r, k=key: show(r[f"mean_{k}"])
    for key, name in figures.KINDS.items()
}
STUDY = Study(
    title="Classifier bias",
    intro=(
        "How alike the directions of clients' class vectors are after local training, and those of "
        "their class means."
    ),
    compute=compute,
    draw=figures.draw,
    rows=lambda runs: ROWS,
    uses=("examples", "clients", "seed"),
)
