"""What networks say of fixed examples: of one model, or of several clients' models."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fedjax_nc.train import keys, local
from fedjax_nc.train.client import Broadcast, Row, make_broadcast, make_rows, train_client
from fedjax_nc.train.executors import Executor
from fedjax_nc.train.local import Task
from fedjax_nc.types import FederatedData, Hyper, Pool, State, Table, Weights


class Batches(NamedTuple):
    """Example numbers in batches of one size; the last is filled up with masked ones."""

    numbers: Int[Array, "n b"]
    mask: Bool[Array, "n b"]


class Seen(NamedTuple):
    """Outputs on the examples, one row each; of several models with a leading axis."""

    features: Float[Array, "*k n d"]
    projected: Float[Array, "*k n p"]
    logits: Float[Array, "*k n c"]
    y: Int[Array, "*k n"]
    mask: Bool[Array, "*k n"]


def in_batches(numbers: Any, batch_size: int) -> Batches:
    """These examples in order."""
    numbers = np.asarray(numbers, np.int32)
    assert len(numbers), "no examples"
    count = -(-len(numbers) // batch_size)
    padded = np.pad(numbers, (0, count * batch_size - len(numbers)), mode="edge")
    mask = np.arange(len(padded)) < len(numbers)
    shape = (count, batch_size)
    return Batches(jnp.asarray(padded.reshape(shape)), jnp.asarray(mask.reshape(shape)))


def make_outputs(task: Task, executor: Executor) -> Callable[[Weights, Pool, Batches], Seen]:
    """Of one model; devices share the batches."""

    def run(weights: Weights, pool: Pool, batches: Batches) -> Seen:
        def one(broadcast, batch):
            weights, pool = broadcast
            return _outputs(task.trainer, weights, pool=pool, batches=Batches(*batch)), {}

        steps = jnp.ones(len(batches.mask), int)
        seen, _ = executor.run(one, (weights, pool), tuple(batches), steps)
        return _joined(seen, 0)

    return run


def make_outputs_of_clients(
    task: Task, executor: Executor
) -> Callable[[Weights, Pool, Batches], Seen]:
    """Of several clients' models, all on the same examples; devices share the models."""

    def run(models: Weights, pool: Pool, batches: Batches) -> Seen:
        def one(broadcast, weights):
            pool, batches = broadcast
            batch = lambda b: _outputs(task.trainer, weights, pool=pool, batches=Batches(*b))  # noqa: E731
            return lax.map(batch, tuple(batches)), {}

        count = len(jax.tree.leaves(models)[0])
        seen, _ = executor.run(one, (pool, tuple(batches)), models, jnp.ones(count, int))
        return _joined(seen, 1)

    return run


def make_local_models(task: Task, executor: Executor) -> Callable[..., Weights]:
    """Makes the models that some clients would upload in the coming round, stacked.

    The local loop, keys and data are the round's; nothing is kept or sent. The result is a function
    of (state, ids, their rows of the client state, hyper, data).
    """

    def local_model(broadcast: Broadcast, row: Row) -> tuple[Weights, dict]:
        return train_client(task, broadcast, row)[1].weights, {}

    def local_models(
        state: State, ids: jax.Array, client_state: Any, hyper: Hyper, data: FederatedData
    ) -> Weights:
        key = keys.of_round(state.key, state.round, stream=keys.LOCAL_TRAINING)
        rows = make_rows(task, key, ids=ids, data=data, client_state=client_state)
        broadcast = make_broadcast(task, state, hyper=hyper, pool=data.pool)
        return executor.run(local_model, broadcast, rows, rows.steps)[0]

    return local_models


def make_sums_of_clients(
    task: Task, executor: Executor, batch_size: int, fn: Callable[..., Any]
) -> Callable[[Weights, Pool, Table], Any]:
    """Sums of fn(outputs, batch) over each client's own examples under its own model."""

    def run(models: Weights, pool: Pool, table: Table) -> Any:
        def one(pool, row):
            weights, mine = row
            return local.sum_over(
                task.trainer, batch_size, weights=weights, pool=pool, row=Table(*mine), fn=fn
            ), {}

        steps = -(-table.size // batch_size)
        return executor.run(one, pool, (models, tuple(table)), steps)[0]

    return run


def _outputs(trainer: local.Trainer, weights: Weights, pool: Pool, batches: Batches) -> Seen:
    batch = trainer.make_batch(pool, batches.numbers, batches.mask, None)
    out, _ = trainer.model.apply(weights, batch.x, train=False, mask=batch.mask)
    return Seen(out.features, out.projected, logits=out.logits, y=batch.y, mask=batch.mask)


def _joined(seen: Seen, axis: int) -> Seen:
    """Batches one after another."""

    def one(x):
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    return jax.tree.map(one, seen)
