"""Cheap analyses of the global model while it trains, recorded beside its accuracy."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_nc import tree
from fedjax_nc.analysis import measures, outputs
from fedjax_nc.host import examples
from fedjax_nc.host.assemble import Job
from fedjax_nc.train.personalise import of_clients
from fedjax_nc.types import Hyper, State, Table


class Track(NamedTuple):
    """What is recorded, and every how many rounds."""

    names: tuple[str, ...] = ()
    every: int = 10
    clients: int = 5  # whose local models are made
    examples: int = 1000  # of the test set

    def due(self, rounds: int) -> bool:
        """Whether it is recorded after so many."""
        return bool(self.names) and rounds % self.every == 0


def make_track(job: Job, track: Track) -> Callable[[State, Hyper], dict[str, Any]]:
    """Makes the analyses that are wanted, a function of (state, the coming round's hyper).

    Its results are arrays on the devices, with an axis of seeds.
    """
    task, executor, seeds, names = job.task, job.executor, job.seeds, track.names
    looked, ids = examples.choose(job, track.examples), spread(job, track.clients)
    outputs_fn = outputs.make_outputs(task, executor)
    models_fn = outputs.make_local_models(task, executor)
    clients_fn = outputs.make_outputs_of_clients(task, executor)
    own_fn = outputs.make_sums_of_clients(
        task, executor, batch_size=examples.BATCH, fn=measures.class_sums_of
    )

    def outputs_of_seed(weights, state, client_state, hyper, data, pool, batches):
        seen, aligned, own = outputs_fn(weights, pool, batches), None, None
        if "alignment" in names or "consistency" in names:
            models = models_fn(state, jnp.asarray(ids), client_state, hyper, data)
        if "alignment" in names:
            vectors = jnp.swapaxes(models.params["head"]["kernel"], -1, -2)
            local = clients_fn(models, pool, batches)
            aligned = local, vectors, data.class_counts[ids] > 0
        if "consistency" in names:
            own = own_fn(models, data.pool, Table(*tree.take(data.train, ids)))
        return seen, aligned, own

    def measures_of_seed(inputs):
        seen, vectors, clients, sums = inputs
        found: dict[str, Any] = {}
        if "collapse" in names:
            found["collapse"] = measures.collapse_of(seen, vectors)
        if "consistency" in names:
            found["consistency"] = measures.consistency_of(sums)
        if "spectrum" in names:
            found["spectrum"] = measures.spectrum_of(seen)
        if "alignment" in names:
            local, own, observed = clients
            found["alignment"] = measures.alignment_of(local, seen, vectors=own, observed=observed)
        return found

    def run(weights, state, client_state, hyper, data, looked):
        each = seeds.over(outputs_of_seed, (0, 0, 0, None, seeds.data, None, None))
        seen, clients, sums = each(
            weights, state, client_state, hyper, data, looked.pool, looked.test
        )
        vectors = jnp.swapaxes(weights.params["head"]["kernel"], -1, -2)
        # one seed after another: jaxlib 0.10.2 may wait for ever on a batch of LAPACK calls
        return seeds.one_by_one(measures_of_seed, (seen, vectors, clients, sums))

    run = executor.compile(run)

    def tracked(state: State, hyper: Hyper) -> dict[str, Any]:
        weights = job.seeds.over(task.method.tested, (0, 0))(state.weights, dict(state.shared))
        client_state = of_clients(executor, state, ids=ids)
        light = dataclasses.replace(state, clients={})
        data = next(iter(job.feed.clients([ids])))
        return run(weights, light, client_state, hyper, data, looked)

    return tracked


def spread(job: Job, count: int) -> np.ndarray:
    """Returns clients evenly spread by number, not by size: seeds side by side have the same."""
    clients = job.config.federation.clients
    return np.unique(np.linspace(0, clients - 1, count).round().astype(int))


def record(found: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """The numbers by the names of records, those of clients averaged."""
    rows: dict[str, dict[str, float | None]] = {}
    if "collapse" in found:
        before, behind = (found["collapse"][space] for space in measures.SPACES)
        rows["collapse"] = {k: plain(v) for k, v in behind._asdict().items()}
        rows["collapse"]["features_nc_error"] = plain(before.nc_error)
    if "consistency" in found:
        rows["consistency"] = {space: plain(v) for space, v in found["consistency"].items()}
    if "spectrum" in found:
        rows["spectrum"] = {
            f"{space}_{name}": plain(getattr(numbers, name))
            for space, numbers in found["spectrum"].items()
            for name in ("effective_rank", "effective_rank_correlation")
        }
    if "alignment" in found:
        numbers = found["alignment"]
        counted = np.asarray(numbers.count) > 0
        counted &= counted[:, :1]  # a client without data has no classes, and stays as it is
        rows["alignment"] = {
            f"{which}_{name}": plain(np.mean(np.asarray(value)[counted[:, i], i]))
            if counted[:, i].any()
            else None
            for i, which in enumerate(("observed", "unobserved"))
            for name, value in numbers._asdict().items()
            if name != "count"
        }
    return rows


def plain(value: Any) -> float | None:
    """A number for a record; what does not exist is None."""
    number = float(value)
    return number if np.isfinite(number) else None
