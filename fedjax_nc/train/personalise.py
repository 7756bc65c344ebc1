"""Clients' own models after the last round: trained as in a round, then tested."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import processes, tree
from fedjax_nc.data import stream
from fedjax_nc.methods.base import Phase, Repeat, View
from fedjax_nc.train import keys
from fedjax_nc.train.client import Broadcast, Row, make_broadcast, make_rows, train_client
from fedjax_nc.train.evaluate import Score, score_row
from fedjax_nc.train.executors import Executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.seeds import ONE, Seeds
from fedjax_nc.types import FederatedData, Hyper, State, Table, Weights

STEPS = 10  # about so many groups of clients, so that progress shows


def make_personalise(
    task: Task,
    executor: Executor,
    *,
    batch_size: int,
    phases: tuple[Phase | Repeat, ...],
    official: bool = False,
    seeds: Seeds = ONE,
) -> Callable[..., dict[str, Score]]:
    """Makes the training and testing of some clients' own models; nothing is uploaded.

    The result is a function of (state, ids, their rows of the client state, hyper, data). It gives
    the scores on a client's `own` tests, and on the `official` ones if they are asked for. They
    have an axis of seeds, one of phases and cycles, after each of which a client is tested, and one
    of clients.
    """

    def train_and_test(
        broadcast: tuple[Broadcast, dict[str, Table]], own: tuple[Row, Table]
    ) -> tuple[dict[str, Score], dict]:
        (received, common), (row, mine) = broadcast, own

        def test(weights: Weights, view: View) -> dict[str, Score]:
            def score(tests: Table) -> Score:
                return score_row(
                    task.trainer,
                    batch_size,
                    weights=weights,
                    pool=received.pool,
                    row=tests,
                    predict=lambda out: task.method.predict(out, weights, view),
                )

            return {name: score(tests) for name, tests in ({"own": mine} | common).items()}

        return train_client(task, received, row=row, phases=phases, watch=test)[1].seen, {}

    def of_seed(
        state: State, ids: jax.Array, client_state: Any, hyper: Hyper, data: FederatedData
    ) -> dict[str, Score]:
        key = keys.of_round(state.key, state.round, stream=keys.PERSONAL_TRAINING)
        rows = make_rows(task, key, ids=ids, data=data, client_state=client_state)
        broadcast = make_broadcast(task, state, hyper=hyper, pool=data.pool)
        tests = tree.take(data.client_test, ids)
        common = {"official": in_one_row(data.test)} if official else {}
        scores, _ = executor.run(train_and_test, (broadcast, common), (rows, tests), rows.steps)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), scores)

    return executor.compile(seeds.over(of_seed, (0, None, 0, None, seeds.data)))


def of_clients(executor: Executor, state: State, ids: Any) -> dict[str, Any]:
    """Returns the state of some clients, of every seed, where programs expect it."""
    divided = [x for x in jax.tree.leaves(state.clients) if isinstance(x, jax.Array)]
    if executor.spread and divided:  # not in host memory
        rows = _rows_of_seeds(executor)
        return rows(dict(state.clients), executor.place(jnp.asarray(ids)))
    return executor.place(jax.tree.map(lambda x: x.take(ids, axis=1), dict(state.clients)))


@functools.cache  # compiled once for all groups of clients
def _rows_of_seeds(executor: Executor) -> Callable[..., Any]:
    return executor.compile(jax.vmap(executor.rows, (0, None)))


def in_one_row(table: Table) -> Table:
    """Returns all examples of a table as one row, real ones first."""
    real = jnp.arange(table.index.shape[1]) < table.size[:, None]
    first = jnp.argsort(~real.ravel(), stable=True)
    return Table(table.index.ravel()[first], jnp.sum(table.size))


def personalise(
    task: Task,
    executor: Executor,
    *,
    train: Callable[..., dict[str, Score]],
    state: State,
    hyper: Hyper,
    feed: stream.Feed,
    progress: Callable[[int, int], None],
    official: bool = False,
) -> dict[str, Score]:
    """Trains and tests every client's own model, group by group; scores are in client order.

    `train` is made by `make_personalise`, with the same `official`.
    """
    clients = task.federation.clients
    group = min(clients, executor.lanes * -(-clients // (STEPS * executor.lanes)))
    order = np.argsort(-feed.sizes, kind="stable")  # groups of like sizes
    light = dataclasses.replace(state, clients={})
    scores, starts = [], range(0, clients, group)
    ends = [min(start + group, clients) for start in starts]
    # the last group overlaps: another size would compile again
    groups = [order[end - group : end] for end in ends]
    pieces = feed.clients(groups, tests=True, official=official)
    for start, end, ids, piece in zip(starts, ends, groups, pieces, strict=False):
        own, ids = of_clients(executor, state, ids=ids), executor.place(jnp.asarray(ids))
        score = processes.until_ready(train(light, ids, own, hyper, piece))
        scores.append(jax.tree.map(lambda x, n=start - end: np.asarray(x)[:, :, n:], score))
        progress(end, clients)
    back = np.argsort(order)
    return jax.tree.map(lambda *x: np.concatenate(x, 2)[:, :, back], *scores)
