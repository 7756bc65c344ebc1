"""What one model, or several clients' models, compute on fixed examples."""

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
    """Indices of examples, in batches of one size; masked indices fill up the last batch."""

    indices: Int[Array, "n b"]
    mask: Bool[Array, "n b"]


class ExampleOutputs(NamedTuple):
    """A model's outputs, one row per example; those of several models have a leading axis."""

    features: Float[Array, "*k n d"]
    projected: Float[Array, "*k n p"]
    logits: Float[Array, "*k n c"]
    y: Int[Array, "*k n"]
    mask: Bool[Array, "*k n"]


def in_batches(indices: Any, batch_size: int) -> Batches:
    """Cuts indices of examples into batches, in their order."""
    indices = np.asarray(indices, np.int32)
    assert len(indices), "no examples"
    count = -(-len(indices) // batch_size)
    padded = np.pad(indices, (0, count * batch_size - len(indices)), mode="edge")
    mask = np.arange(len(padded)) < len(indices)
    shape = (count, batch_size)
    return Batches(jnp.asarray(padded.reshape(shape)), jnp.asarray(mask.reshape(shape)))


def make_outputs(
    task: Task, executor: Executor
) -> Callable[[Weights, Pool, Batches], ExampleOutputs]:
    """Makes the function that computes one model's outputs; devices share the batches."""

    def outputs(weights: Weights, pool: Pool, batches: Batches) -> ExampleOutputs:
        def of_batch(broadcast, batch):
            weights, pool = broadcast
            return _outputs(task.trainer, weights, pool=pool, batch=Batches(*batch)), {}

        steps = jnp.ones(len(batches.mask), int)
        found, _ = executor.run(of_batch, (weights, pool), tuple(batches), steps)
        return _join_batches(found, axis=0)

    return outputs


def make_outputs_of_clients(
    task: Task, executor: Executor
) -> Callable[[Weights, Pool, Batches], ExampleOutputs]:
    """Makes the function that computes several models' outputs on the same examples.

    The models are stacked on a leading axis; devices share them.
    """

    def outputs(models: Weights, pool: Pool, batches: Batches) -> ExampleOutputs:
        def of_model(broadcast, weights):
            pool, batches = broadcast

            def of_batch(batch):
                return _outputs(task.trainer, weights, pool=pool, batch=Batches(*batch))

            return lax.map(of_batch, batches), {}

        count = len(jax.tree.leaves(models)[0])
        found, _ = executor.run(of_model, (pool, tuple(batches)), models, jnp.ones(count, int))
        return _join_batches(found, axis=1)

    return outputs


def make_local_models(task: Task, executor: Executor) -> Callable[..., Weights]:
    """Makes the function that trains the models clients would upload in the coming round.

    It maps (state, ids, their rows of the client state, hyper, data) to the models, stacked. Local
    loop, keys and data are the round's; nothing is kept or sent.
    """

    def local_model(broadcast: Broadcast, row: Row) -> tuple[Weights, dict]:
        return train_client(task, broadcast, row=row)[1].weights, {}

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
    """Makes the function that sums fn(outputs, batch) over each client's own examples.

    It maps (models, pool, table) to one sum per client, each under the client's own model.
    """

    def sums(models: Weights, pool: Pool, table: Table) -> Any:
        def of_client(pool, row):
            weights, own = row
            return local.sum_over(
                task.trainer, batch_size, weights=weights, pool=pool, row=Table(*own), fn=fn
            ), {}

        steps = -(-table.size // batch_size)
        return executor.run(of_client, pool, (models, tuple(table)), steps)[0]

    return sums


def _outputs(
    trainer: local.Trainer, weights: Weights, pool: Pool, batch: Batches
) -> ExampleOutputs:
    """Computes the outputs of one batch."""
    made = trainer.make_batch(pool, batch.indices, batch.mask, None)
    out, _ = trainer.model.apply(weights, made.x, train=False, mask=made.mask)
    return ExampleOutputs(out.features, out.projected, logits=out.logits, y=made.y, mask=made.mask)


def _join_batches(outputs: ExampleOutputs, axis: int) -> ExampleOutputs:
    """Puts the rows of all batches one after another."""
    return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), outputs)
