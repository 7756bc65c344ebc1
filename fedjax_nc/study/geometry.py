"""Where features and class vectors are: collapse, spectrum, alignment, relations, bias."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import linalg, losses
from fedjax_nc.analysis import bias as analysis_bias
from fedjax_nc.analysis import collapse as analysis_collapse
from fedjax_nc.analysis import measures
from fedjax_nc.analysis import relations as analysis_relations
from fedjax_nc.errors import UserError
from fedjax_nc.io import records
from fedjax_nc.study.subject import Progress, Subject, class_vectors

SHOWN = 1000  # examples of the t-SNE


def collapse(run: Subject, progress: Progress) -> dict[str, Any]:
    """NC1 to NC4 and NC error of the global model, and how alike clients' prototypes are."""
    del progress
    vectors = class_vectors(run.weights)
    found = jax.jit(measures.collapse_of)(run.seen, vectors)
    numbers: dict[str, Any] = {space: one._asdict() for space, one in found.items()}
    if not run.has_class_vectors:  # nor is there one head that could agree with anything
        numbers = {s: one | {"nc3": None, "nc4": None} for s, one in numbers.items()}
    consistency = {
        space: analysis_collapse.prototype_consistency(sums.mean, sums.count > 0)
        for space, sums in (("features", run.own.features), ("projected", run.own.projected))
    }
    return numbers | {"consistency": consistency, "tracked": tracked(run, "collapse")}


def spectrum(run: Subject, progress: Progress) -> dict[str, Any]:
    """In how many directions the global model's features vary."""
    del progress
    found = jax.jit(measures.spectrum_of)(run.seen)
    return {space: one._asdict() for space, one in found.items()} | {
        "tracked": tracked(run, "spectrum")
    }


def alignment(run: Subject, progress: Progress) -> dict[str, Any]:
    """Local models against the global one, on each client's classes and on the others."""
    del progress
    vectors = class_vectors(run.local_models)
    found = jax.jit(measures.alignment_of)(run.local_seen, run.seen, vectors, run.counts > 0)
    values = {k: np.asarray(v) for k, v in found._asdict().items() if k != "count"}
    return {"ids": run.ids, "tracked": tracked(run, "alignment")} | {
        which: {k: v[:, i] for k, v in values.items()}
        for i, which in enumerate(("observed", "unobserved"))
    }


def relations(run: Subject, progress: Progress) -> dict[str, Any]:
    """Class vectors beside soft labels, weight norms beside class shares, a t-SNE of features."""
    if not run.has_class_vectors:
        raise UserError(
            f"'{run.method.name}' keeps each client's head at home: the global model has no class "
            "vectors of its own, leave out relations"
        )
    vectors = class_vectors(run.weights)
    # the mean over clients weighs every class by its examples (FedDW, eq. 7)
    sums = jax.tree.map(lambda x: x.sum(0), run.own.soft_labels)
    seen = sums.count > 0
    soft, related = sums.mean, losses.class_relations(vectors)
    distance = analysis_relations.relation_distance(soft, related, seen=seen)
    local = class_vectors(run.local_models)
    correlation = analysis_relations.norm_share_correlation(local, run.counts)
    progress("t-SNE", 0, 1)
    return {
        "names": [str(c) for c in range(len(vectors))],
        "class_relations": related,
        "soft_labels": jnp.where(seen[:, None], soft, jnp.nan),
        "distance": {"frobenius": distance.frobenius, "feddw": distance.consistency},
        "norms": jax.vmap(analysis_relations.relative_norms)(local),
        "shares": run.counts / run.counts.sum(1, keepdims=True),
        "correlation": correlation.pooled,
        "tsne": _tsne(run, vectors),
    }


def bias(run: Subject, progress: Progress) -> dict[str, Any]:
    """How alike clients' classifiers and prototypes point."""
    del progress
    if len(run.ids) < 2:
        raise UserError("bias compares clients with data, and there is only one: leave it out")
    local = class_vectors(run.local_models)
    classifiers = analysis_bias.pairwise_cosines(local, jnp.ones(local.shape[:2], bool))
    own = run.own.features
    prototypes = analysis_bias.pairwise_cosines(own.mean, own.count > 0)
    return {
        "ids": run.ids,
        "classifiers": classifiers,
        "prototypes": prototypes,
        "mean_classifiers": analysis_bias.mean_off_diagonal(classifiers),
        "mean_prototypes": analysis_bias.mean_off_diagonal(prototypes),
        "counts": run.counts,
    }


def tracked(run: Subject, name: str) -> list[dict[str, Any]]:
    """What `--track` recorded up to the checkpoint."""
    rows = records.read(run.directory / "metrics.jsonl")
    last = int(run.state.round)
    return [{"round": r["round"]} | r[name] for r in rows if name in r and r["round"] <= last]


def _tsne(run: Subject, vectors: jax.Array) -> dict[str, Any]:
    """Unit features and unit class vectors in one picture (FedDW, figure 5)."""
    from sklearn.manifold import TSNE

    count = min(SHOWN, int(run.seen.mask.sum()))
    points = jnp.concatenate([run.seen.projected[:count], vectors])
    points = np.asarray(linalg.normalise(points))
    perplexity = min(30.0, (len(points) - 1) / 3)
    places = TSNE(random_state=run.options.seed, perplexity=perplexity, init="pca").fit_transform(
        points
    )
    return {"points": places[:count], "labels": run.seen.y[:count], "vectors": places[count:]}
