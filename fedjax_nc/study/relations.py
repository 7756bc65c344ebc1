"""The study of class relations: what class vectors and soft labels say of classes (FedDW)."""

import jax
import jax.numpy as jnp

from fedjax_nc import losses
from fedjax_nc.analysis import plane, relations
from fedjax_nc.errors import UserError
from fedjax_nc.figures import relations as figures
from fedjax_nc.figures.canvas import show
from fedjax_nc.study.base import Results, Rows, Study
from fedjax_nc.study.subject import Subject, class_vectors

SHOWN = 1000  # examples in the t-SNE map


def compute(run: Subject) -> Results:
    """Computes class relations beside soft labels, norms beside shares, and a t-SNE map."""
    if not run.shares_head:
        raise UserError(
            f"'{run.method.name}' keeps each client's head at home: the global model has no class "
            "vectors of its own, leave out relations"
        )
    vectors = class_vectors(run.weights)
    # the mean over clients weighs every class by its examples (FedDW, eq. 7)
    sums = jax.tree.map(lambda x: x.sum(0), run.own_sums.soft_labels)
    seen = sums.count > 0
    soft, related = sums.mean, losses.class_relations(vectors)
    distance = relations.relation_distance(soft, related, seen=seen)
    local = class_vectors(run.local_models)
    correlation = relations.norm_share_correlation(local, run.counts)
    run.progress("relations: t-SNE", 0, 1)
    return {
        "names": [str(c) for c in range(len(vectors))],
        "class_relations": related,
        "soft_labels": jnp.where(seen[:, None], soft, jnp.nan),
        "distance": {"frobenius": distance.frobenius, "feddw": distance.consistency},
        "norms": jax.vmap(relations.relative_norms)(local),
        "shares": run.counts / run.counts.sum(1, keepdims=True),
        "correlation": correlation.pooled,
        "tsne": _tsne(run, vectors),
    }


def _tsne(run: Subject, vectors: jax.Array) -> Results:
    """Maps unit features and unit class vectors into one plane (FedDW, figure 5)."""
    count = min(SHOWN, int(run.outputs.mask.sum()))
    points = jnp.concatenate([run.outputs.projected[:count], vectors])
    places = plane.tsne(points, seed=run.options.seed)
    return {"points": places[:count], "labels": run.outputs.y[:count], "vectors": places[count:]}


ROWS: Rows = {
    "|SL - CR|, Frobenius": lambda r: show(r["distance"]["frobenius"]),
    "|SL - CR|²/C² (FedDW, eq. 11)": lambda r: show(r["distance"]["feddw"]),
    "rank correlation of weight norm and class share": lambda r: show(r["correlation"]),
}
STUDY = Study(
    title="Class relations",
    intro=(
        "Class relations (CR) are the softmax of the products of class vectors. Soft labels (SL) "
        "are the mean prediction of clients' models for each class."
    ),
    compute=compute,
    draw=figures.draw,
    rows=lambda runs: ROWS,
    uses=("examples", "clients", "seed"),
)
