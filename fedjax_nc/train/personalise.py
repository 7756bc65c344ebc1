"""Clients' own models after the last round: trained as in a round, tested on their own data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import tree
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
    seeds: Seeds = ONE,
) -> Callable[..., Score]:
    """Makes the training and testing of some clients' own models; nothing is uploaded.

    The result is a function of (state, ids, their rows of the client state, hyper, data). Its
    scores have an axis of seeds, one of phases and cycles, after each of which a client is tested,
    and one of clients.
    """

    def train_and_test(broadcast: Broadcast, own: tuple[Row, Table]) -> tuple[Score, dict]:
        row, tests = own

        def test(weights: Weights, view: View) -> Score:
            return score_row(
                task.trainer,
                batch_size,
                weights=weights,
                pool=broadcast.pool,
                row=tests,
                predict=lambda out: task.method.predict(out, weights, view),
            )

        return train_client(task, broadcast, row=row, phases=phases, watch=test)[1].seen, {}

    def of_seed(
        state: State, ids: jax.Array, client_state: Any, hyper: Hyper, data: FederatedData
    ) -> Score:
        key = keys.of_round(state.key, state.round, stream=keys.PERSONAL_TRAINING)
        rows = make_rows(task, key, ids=ids, data=data, client_state=client_state)
        broadcast = make_broadcast(task, state, hyper=hyper, pool=data.pool)
        tests = tree.take(data.client_test, ids)
        scores, _ = executor.run(train_and_test, broadcast, (rows, tests), rows.steps)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), scores)

    fn = seeds.over(of_seed, (0, None, 0, None, seeds.data))
    return jax.jit(fn) if executor.jit else fn


def personalise(
    task: Task,
    executor: Executor,
    *,
    batch_size: int,
    phases: tuple[Phase | Repeat, ...],
    state: State,
    hyper: Hyper,
    feed: stream.Feed,
    progress: Callable[[int, int], None],
    seeds: Seeds = ONE,
) -> Score:
    """Trains and tests every client's own model, group by group; scores are in client order."""
    clients = task.federation.clients
    group = min(clients, executor.lanes * -(-clients // (STEPS * executor.lanes)))
    order = np.argsort(-feed.sizes, kind="stable")  # groups of like sizes
    fn = make_personalise(task, executor, batch_size=batch_size, phases=phases, seeds=seeds)
    light = dataclasses.replace(state, clients={})
    scores, starts = [], range(0, clients, group)
    ends = [min(start + group, clients) for start in starts]
    # the last group overlaps: another size would compile again
    groups = [order[end - group : end] for end in ends]
    pieces = feed.clients(groups, tests=True)
    for start, end, ids, piece in zip(starts, ends, groups, pieces, strict=False):
        own = jax.tree.map(lambda x, ids=ids: x.take(ids, axis=1), dict(state.clients))
        own, ids = executor.place((own, jnp.asarray(ids)))
        score = jax.block_until_ready(fn(light, ids, own, hyper, piece))
        scores.append(jax.tree.map(lambda x, n=start - end: np.asarray(x)[..., n:], score))
        progress(end, clients)
    back = np.argsort(order)
    return jax.tree.map(lambda *x: np.concatenate(x, -1)[..., back], *scores)
