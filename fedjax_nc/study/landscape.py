"""The study of the loss landscape: the loss on planes through the global model."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import losses, tree
from fedjax_nc.analysis import lanczos, landscape, outputs
from fedjax_nc.figures import landscape as figures
from fedjax_nc.figures.canvas import show
from fedjax_nc.study.base import Results, Rows, Runs, Study
from fedjax_nc.study.curvature import ritz_of
from fedjax_nc.study.subject import Subject
from fedjax_nc.types import Params, Weights

AT_ONCE = 32  # points of a surface between two reports of progress


class Directions(NamedTuple):
    """The two directions that span a plane, how far it reaches along them, and their names."""

    first: Params
    second: Params
    reach: float
    axes: list[str]


def compute(run: Subject) -> Results:
    """Computes the loss over planes, and where each plane is nearest to the clients' models."""
    job, pool, batches = run.job, run.probe.pool, run.probe.train
    surface_fn = landscape.make_surface(job.task, job.executor)
    models = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), run.weights, run.local_models)
    names = ["global", *(f"client {i}" for i in run.ids)]
    heights = _losses(run, models)
    sides = np.linspace(-1.0, 1.0, run.options.grid)
    planes = {}
    for name, directions in _directions(run).items():
        plane = landscape.Plane(run.weights, directions.first, second=directions.second)
        xs = sides * directions.reach * run.options.radius
        loss = landscape.surface(
            partial(surface_fn, job.executor.place(plane), pool, batches),
            xs,
            ys=xs,
            at_once=AT_ONCE,
            progress=partial(run.progress, f"landscape: plane of {name}"),
        )
        places = [
            landscape.coordinates(plane, tree.take(models.params, i)) for i in range(len(names))
        ]
        planes[name] = {
            "x": xs,
            "y": xs,
            "loss": loss,
            "axes": directions.axes,
            "models": [
                {"name": model, "x": place[0], "y": place[1], "loss": height}
                for model, place, height in zip(names, places, heights, strict=True)
            ],
        }
    return {"planes": planes}


def _directions(run: Subject) -> dict[str, Directions]:
    """Returns the directions of each plane; a single client spans none."""
    trained = tree.pick(run.weights.params, run.trained)
    found = {}
    top = lanczos.extreme(ritz_of(run), count=2, by="value")
    if len(top.values) > 1:
        axes = [f"eigenvector {i + 1} (λ = {v:.3g})" for i, v in enumerate(top.values)]
        first, second = (tree.take(top.vectors, i) for i in range(2))
        found["eigenvectors"] = Directions(first, second, reach=1.0, axes=axes)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(run.options.seed), 3), 2)
    first, second = (landscape.filter_normalised(trained, key) for key in keys)
    axes = [f"random direction {i}, filter norms" for i in (1, 2)]
    found["random"] = Directions(first, second, reach=1.0, axes=axes)
    if len(run.ids) > 1:
        local = tree.pick(run.local_models.params, run.trained)
        first, second = landscape.principal(trained, local)
        away = jax.tree.map(lambda m, o: m - o, local, trained)
        lengths = [tree.dot(*[tree.take(away, i)] * 2) for i in range(len(run.ids))]
        axes = [f"clients' direction {i}" for i in (1, 2)]
        reach = 1.25 * float(max(lengths)) ** 0.5
        found["clients"] = Directions(first, second, reach=reach, axes=axes)
    return found


def _losses(run: Subject, models: Weights) -> list[float]:
    """Computes the mean cross-entropy of several models on the surface's examples."""
    fn = jax.jit(outputs.make_outputs_of_clients(run.job.task, run.job.executor))
    found = fn(models, run.probe.pool, run.probe.train)
    mean = jax.vmap(lambda o: losses.masked_mean(losses.cross_entropy(o.logits, o.y), o.mask))
    return [float(v) for v in mean(found)]


def rows(runs: Runs) -> Rows:
    """Returns the least and the largest loss of every plane."""

    def extreme(plane: str, choose):
        def cell(results: Results) -> str:
            if plane not in results["planes"]:
                return show(None)
            grid = results["planes"][plane]["loss"]
            return show(choose(v for row in grid for v in row if v is not None))

        return cell

    planes = dict.fromkeys(p for results in runs.values() for p in results["planes"])
    return {
        f"{name} loss, plane of {plane}": extreme(plane, choose)
        for plane in planes
        for name, choose in (("least", min), ("largest", max))
    }


STUDY = Study(
    title="Loss landscape",
    intro=(
        "The mean cross-entropy over training examples, on planes through the global model. "
        "BatchNorm keeps the global model's statistics. A client's model is shown at the point of "
        "the plane that is nearest to it."
    ),
    compute=compute,
    draw=figures.draw,
    rows=rows,
    uses=("examples", "clients", "few", "grid", "radius", "products", "seed"),
)
