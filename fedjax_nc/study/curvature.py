"""Second order: the Hessian of the global model and of clients', and the loss around them."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import linalg, losses, tree
from fedjax_nc.analysis import curvature, lanczos, outputs
from fedjax_nc.analysis import hessian as products
from fedjax_nc.analysis import landscape as surfaces
from fedjax_nc.host.examples import BATCH
from fedjax_nc.study.subject import Progress, Subject
from fedjax_nc.types import Batch, Model, Outputs, Pool, Weights

STARTS = 2  # vectors from which the spectral density is estimated
AT_ONCE = 32  # points of a surface between two words of progress
FEATURES, UNITS = 16, 8  # of the network whose dense Hessian is compared


def hessian(run: Subject, progress: Progress) -> dict[str, Any]:
    """Eigenvalues, trace and density of the global model, and how clients' diagonals match."""
    key = jax.random.key(run.options.seed)
    one = _hessian(run, run.weights)
    ritz = _ritz(run, progress)
    top = lanczos.extreme(ritz, count=run.options.eigenvalues, by="value")
    power = curvature.power_iteration(
        one, jax.random.fold_in(key, 1), progress=partial(progress, "power iteration")
    )
    probe = partial(curvature.probe, key=jax.random.fold_in(key, 2), probes=run.options.probes)
    trace = curvature.trace(probe(one, progress=partial(progress, "trace")))
    density = lanczos.smooth(ritz.values, ritz.weights, points=400, width=0.01)
    several = probe(
        _hessian(run, run.local_models, several=True), progress=partial(progress, "clients")
    )
    return {
        "examples": int(run.probe.train.mask.sum()),
        "parameters": one.size,
        "eigenvalues": top.values,
        "errors": top.errors,
        "power": {"eigenvalue": power.values[0], "products": power.products},
        "trace": {"mean": trace.mean, "sem": trace.error, "probes": trace.probes},
        "density": {"x": density.x, "y": density.density},
        "clients": _clients(run, several),
    }


def _clients(run: Subject, samples: curvature.Samples) -> dict[str, Any]:
    """FedAlign's H_N and H_D as its code has them, as its text, and without a client's own pair."""
    each = [curvature.trace(samples._replace(tensors=one)) for one in samples.tensors]
    rows = [np.asarray(x).reshape(len(each), -1) for x in jax.tree.leaves(samples.diagonal)]
    diagonals = {"tensor": samples.tensors.mean(1), "parameter": np.concatenate(rows, 1)}
    forms: dict[str, Any] = {"": {}, "_squared": {"squared": True}}
    if len(each) > 1:
        forms["_others"] = {"pairs_with_self": False}
    matching = {}
    for name, diagonal in diagonals.items():
        matching[name] = dict.fromkeys(("H_N_others", "H_D_others"))
        for form, options in forms.items():
            pair = curvature.matching(jnp.asarray(diagonal), **options)
            matching[name] |= dict(zip((f"H_N{form}", f"H_D{form}"), pair, strict=True))
    return {
        "ids": run.ids,
        "trace": [t.mean for t in each],
        "trace_sem": [t.error for t in each],
        "matching": matching,
    }


def landscape(run: Subject, progress: Progress) -> dict[str, Any]:
    """Surfaces through the global model, with clients' models where the plane is nearest."""
    job, pool, batches = run.job, run.probe.pool, run.probe.train
    fn = surfaces.make_surface(job.task, job.executor)
    every = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), run.weights, run.local_models)
    heights = _losses(run, every)
    names = ["global", *(f"client {i}" for i in run.ids)]
    sides = np.linspace(-1.0, 1.0, run.options.grid)
    found = {}
    for name, (plane, reach, axes) in _planes(run, progress).items():
        at = partial(fn, job.executor.place(plane), pool, batches)
        xs = sides * reach * run.options.radius
        loss = surfaces.surface(
            at, xs, ys=xs, at_once=AT_ONCE, progress=partial(progress, f"plane of {name}")
        )
        places = [
            surfaces.coordinates(plane, tree.take(every.params, i)) for i in range(len(names))
        ]
        found[name] = {
            "x": xs,
            "y": xs,
            "loss": loss,
            "axes": axes,
            "models": [
                {"name": n, "x": p[0], "y": p[1], "loss": h}
                for n, p, h in zip(names, places, heights, strict=True)
            ],
        }
    return {"planes": found}


def _planes(run: Subject, progress: Progress) -> dict[str, tuple[surfaces.Plane, float, list[str]]]:
    """Each plane, how far it reaches, and what its axes are."""
    trained = tree.pick(run.weights.params, run.trained)
    top = lanczos.extreme(_ritz(run, progress), count=2, by="value")
    found = {}
    if len(top.values) > 1:
        axes = [f"eigenvector {i + 1} (λ = {v:.3g})" for i, v in enumerate(top.values)]
        found["eigenvectors"] = (*(tree.take(top.vectors, i) for i in range(2)), 1.0, axes)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(run.options.seed), 3), 2)
    drawn = [surfaces.filter_normalised(trained, key) for key in keys]
    axes = [f"random direction {i}, filter norms" for i in (1, 2)]
    found["random"] = (*drawn, 1.0, axes)
    if len(run.ids) > 1:
        local = tree.pick(run.local_models.params, run.trained)
        first, second = surfaces.principal(trained, local)
        away = jax.tree.map(lambda m, o: m - o, local, trained)
        lengths = [tree.dot(*[tree.take(away, i)] * 2) for i in range(len(run.ids))]
        axes = [f"clients' direction {i}" for i in (1, 2)]
        found["clients"] = (first, second, 1.25 * float(max(lengths)) ** 0.5, axes)
    return {
        name: (surfaces.Plane(run.weights, first, second=second), reach, axes)
        for name, (first, second, reach, axes) in found.items()
    }


def check(run: Subject) -> dict[str, str]:
    """Products beside the dense Hessian of a small network on some of the run's features."""
    x = np.asarray(linalg.normalise(run.seen.features[run.seen.mask]))
    x = x[:, np.argsort(-x.std(0), kind="stable")[:FEATURES]]
    key, classes = jax.random.key(run.options.seed), run.seen.logits.shape[-1]
    model = _small_network(x.shape[1], classes)
    make = products.make_hessian(
        model,
        lambda pool, numbers, mask, _: Batch(pool.x[numbers], pool.y[numbers], mask=mask),
        executor=run.job.executor,
        batch_size=BATCH,
        groups=("body", "head"),
    )
    pool = Pool(jnp.asarray(x), run.seen.y[run.seen.mask])
    small = make(model.init(key), pool, np.arange(len(x)))
    matrix = products.dense(small)
    exact = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    top = lanczos.top(small, key, count=1, products=min(60, small.size), by="value")
    power = curvature.power_iteration(small, key)
    trace = curvature.trace(curvature.probe(small, key, probes=run.options.probes))
    far = abs(np.trace(matrix) - trace.mean) / trace.error
    return {
        "network": f"{x.shape[1]} features, {UNITS} tanh units, {classes} classes: "
        f"{small.size} parameters, {len(x)} examples",
        "largest eigenvalue": f"{exact[-1]:.6g} dense, {top.values[0]:.6g} by Lanczos "
        f"(relative difference {abs(top.values[0] / exact[-1] - 1):.1e})",
        "largest in magnitude": f"{exact[np.argmax(np.abs(exact))]:.6g} dense, "
        f"{power.values[0]:.6g} by power iteration ({power.products} products, tolerance 1e-3)",
        "trace": f"{np.trace(matrix):.6g} dense, {trace.mean:.6g} ± {trace.error:.2g} by "
        f"{trace.probes} probes ({far:.1f} standard errors)",
        "symmetry": f"{np.abs(matrix - matrix.T).max() / np.abs(matrix).max():.1e} of the largest",
    }


def _small_network(features: int, classes: int) -> Model:
    def init(key):
        keys = jax.random.split(key)
        body = {"kernel": jax.random.normal(keys[0], (features, UNITS)), "bias": jnp.zeros(UNITS)}
        head = {"kernel": jax.random.normal(keys[1], (UNITS, classes)), "bias": jnp.zeros(classes)}
        return Weights({"body": body, "head": head}, {})

    def apply(weights, x, *, train, mask=None):
        del train, mask
        body, head = weights.params["body"], weights.params["head"]
        hidden = jnp.tanh(x @ body["kernel"] + body["bias"])
        logits = hidden @ head["kernel"] + head["bias"]
        return Outputs((), (), features=hidden, projected=hidden, logits=logits), weights.stats

    return Model(init, apply, head=lambda params, features: (features, features))


def _hessian(run: Subject, weights: Weights, several: bool = False) -> products.Hessian:
    task, few = run.job.task, run.probe.train
    model, batches = task.trainer.model, task.trainer.make_batch
    make = run.once(
        "hessian",
        lambda: products.make_hessian(
            model, batches, executor=run.job.executor, batch_size=BATCH, groups=run.trained
        ),
    )
    numbers = np.asarray(few.numbers)[np.asarray(few.mask)]
    return make(weights, run.probe.pool, numbers, several)


def _ritz(run: Subject, progress: Progress) -> lanczos.Ritz:
    """Lanczos on the global model: its eigenvalues, its density, and directions of a plane."""
    key = jax.random.fold_in(jax.random.key(run.options.seed), 0)
    return run.once(
        "ritz",
        lambda: lanczos.lanczos(
            _hessian(run, run.weights),
            key,
            starts=STARTS,
            products=run.options.products,
            progress=partial(progress, "Lanczos"),
        ),
    )


def _losses(run: Subject, models: Weights) -> list[float]:
    """Mean cross-entropy of several models on the surface's examples."""
    fn = jax.jit(outputs.make_outputs_of_clients(run.job.task, run.job.executor))
    seen = fn(models, run.probe.pool, run.probe.train)
    each = jax.vmap(lambda s: losses.masked_mean(losses.cross_entropy(s.logits, s.y), s.mask))
    return [float(v) for v in each(seen)]
