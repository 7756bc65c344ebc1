"""One evaluation: accuracy and loss over rows of a table, for one model or one per row."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import losses, tree
from fedjax_nc.data import stream
from fedjax_nc.train import local
from fedjax_nc.train.executors import Executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.round import make_rows, make_view, sent
from fedjax_nc.types import FederatedData, Hyper, Outputs, Pool, State, Table, Weights


class Score(NamedTuple):
    """Sums over the examples of each row."""

    correct: jax.Array
    loss: jax.Array
    count: jax.Array


class Summary(NamedTuple):
    """Accuracy over clients."""

    mean: float
    std: float
    worst: float  # mean of the worst tenth


def score_row(
    trainer: local.Trainer,
    batch_size: int,
    weights: Weights,
    pool: Pool,
    row: Table,
    predict: Callable[[Outputs], jax.Array] = lambda out: out.logits,
    before: Score | None = None,
) -> Score:
    """Score of one model on one row of examples, on top of what it had `before`."""

    def score(out, batch):
        logits = predict(out)
        hits = jnp.sum((jnp.argmax(logits, -1) == batch.y) & batch.mask, dtype=jnp.int32)
        loss = jnp.where(batch.mask, losses.cross_entropy(logits, batch.y), 0.0)
        return hits, jnp.sum(loss)

    start = None if before is None else (before.correct, before.loss)
    hits, loss = local.sum_over(
        trainer, batch_size, weights=weights, pool=pool, row=row, fn=score, start=start
    )
    return Score(hits, loss, count=row.size if before is None else before.count + row.size)


def make_evaluate(
    task: Task, executor: Executor, batch_size: int, seeds: FederatedData | None = None
) -> Callable[[Weights, Iterable[stream.Tests]], dict[str, Score]]:
    """Score the global model on the official test set and on every client's own.

    The data comes in pieces, each of which goes on with the sums of those before: the order in
    which a row's batches are added does not depend on where it was cut. `seeds`, here and below,
    are `jax.vmap`'s axes of the data when there are several seeds' models.
    """

    def one(broadcast, row):
        weights, pool = broadcast
        table, before = row
        return score_row(
            task.trainer, batch_size, weights=weights, pool=pool, row=table, before=before
        ), {}

    def run(
        weights: Weights, data: FederatedData, before: dict[str, Score], rows: dict[str, Any]
    ) -> dict[str, Score]:
        tables = {"global": data.test, "clients": data.client_test}
        for name, table in tables.items():
            mine = (table, tree.take(before[name], rows[name]))
            steps = -(-table.size // batch_size)
            new, _ = executor.run(one, (weights, data.pool), mine, steps)
            before = before | {name: tree.put(before[name], rows[name], rows=new)}
        return before

    fn = run if seeds is None else jax.vmap(run, (0, seeds, 0, None))
    fn = jax.jit(fn) if executor.jit else fn

    def all_pieces(weights: Weights, pieces: Iterable[stream.Tests]) -> dict[str, Score]:
        several = () if seeds is None else jax.tree.leaves(weights)[0].shape[:1]
        count = {"global": executor.lanes, "clients": task.federation.clients}
        scores = {name: _nothing((*several, n)) for name, n in count.items()}
        for data, clients, official in pieces:
            # what waits to be computed holds on to its examples
            scores = jax.block_until_ready(scores)
            scores = fn(weights, data, scores, {"clients": clients, "global": official})
        return scores

    return all_pieces


def make_personalise(
    task: Task,
    executor: Executor,
    batch_size: int,
    phases: tuple,
    seeds: FederatedData | None = None,
) -> Callable[..., Score]:
    """Train clients from the final model with these phases and score each on its own test set.

    The same local loop as a round, nothing uploaded. The result is a function of (state, ids,
    their rows of the client state, hyper, data); before the axis of clients its scores have one of
    phases and cycles, after each of which a client is tested.
    """
    trainer = task.trainer

    def one(broadcast, row):
        received, shared, hyper, pool = broadcast
        view = make_view(task, received, shared=shared, kept=row["kept"], row=row, lr=hyper.lr)
        me = local.Client(pool, row["index"], view=view, key=row["key"])
        opts = row["kept"].get("optimizer") if phases == task.method.phases else None

        def test(weights: Weights) -> Score:
            return score_row(
                trainer,
                batch_size,
                weights=weights,
                pool=pool,
                row=row["test"],
                predict=lambda out: task.method.predict(out, weights, view),
            )

        return local.run_phases(
            trainer, phases, hyper=hyper, client=me, opts=opts, watch=test
        ).seen, {}

    def run(state: State, ids: jax.Array, kept: Any, hyper: Hyper, data: FederatedData) -> Score:
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), 2)
        rows = make_rows(task, key, ids=ids, data=data)
        rows |= {"kept": kept, "test": tree.take(data.client_test, ids)}
        broadcast = (state.weights, sent(task.method, state.shared), hyper, data.pool)
        scores, _ = executor.run(one, broadcast, rows, rows["steps"])
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), scores)

    fn = run if seeds is None else jax.vmap(run, (0, None, 0, None, seeds))
    return jax.jit(fn) if executor.jit else fn


def personalise(
    task: Task,
    executor: Executor,
    batch_size: int,
    phases: tuple,
    state: State,
    hyper: Hyper,
    feed: stream.Feed,
    progress: Callable[[int, int], None],
    seeds: FederatedData | None = None,
) -> Score:
    """All clients' own models on their own tests, in about ten steps so that progress shows."""
    clients, axis = task.federation.clients, 0 if seeds is None else 1
    group = min(clients, executor.lanes * -(-clients // (10 * executor.lanes)))
    order = np.argsort(-feed.sizes, kind="stable")  # groups of like sizes
    fn = make_personalise(task, executor, batch_size=batch_size, phases=phases, seeds=seeds)
    light = State(state.round, state.key, weights=state.weights, shared=state.shared, clients={})
    scores, starts = [], range(0, clients, group)
    ends = [min(start + group, clients) for start in starts]
    # the last group overlaps: another size would compile again
    groups = [order[end - group : end] for end in ends]
    pieces = feed.clients(groups, tests=True)
    for start, end, ids, piece in zip(starts, ends, groups, pieces, strict=False):
        kept = jax.tree.map(lambda x, ids=ids: x.take(ids, axis=axis), dict(state.clients))
        kept, ids = executor.place((kept, jnp.asarray(ids)))
        score = jax.block_until_ready(fn(light, ids, kept, hyper, piece))
        scores.append(jax.tree.map(lambda x, n=start - end: np.asarray(x)[..., n:], score))
        progress(end, clients)
    back = np.argsort(order)
    return jax.tree.map(lambda *x: np.concatenate(x, -1)[..., back], *scores)


def make_calibrate(
    task: Task, executor: Executor, batch_size: int, seeds: FederatedData | None = None
) -> Callable[..., Weights]:
    """The method's step after the last round: sums over everybody's data, then its solution.

    A function of (weights, key, feed).
    """
    posthoc = task.method.posthoc
    assert posthoc is not None

    def one(broadcast, row):
        weights, pool = broadcast
        sums = local.sum_over(
            task.trainer, batch_size, weights=weights, pool=pool, row=row, fn=posthoc.collect
        )
        return {}, posthoc.upload(sums)

    def collect(weights: Weights, ids: Any, data: FederatedData) -> Any:
        rows = tree.take(data.train, ids)
        return executor.run(one, (weights, data.pool), rows, -(-rows.size // batch_size))[1]

    def solve(weights: Weights, sums: Any, key: jax.Array) -> Weights:
        key = jax.random.fold_in(key, 2**32 - 2)  # no round has this number
        return posthoc.solve(task.trainer.model, weights, sums, key)

    if seeds is not None:
        collect, solve = jax.vmap(collect, (0, None, seeds)), jax.vmap(solve)
    if executor.jit:
        collect, solve = jax.jit(collect), jax.jit(solve)

    def run(weights: Weights, key: jax.Array, feed: stream.Feed) -> Weights:
        everybody, size = np.arange(task.federation.clients), feed.at_once
        groups, sums = [everybody[i : i + size] for i in range(0, len(everybody), size)], None
        for ids, piece in zip(groups, feed.clients(groups), strict=False):
            new = jax.block_until_ready(collect(weights, executor.place(ids), piece))
            sums = new if sums is None else tree.add(sums, new)
        return solve(weights, sums, key)

    return run


def summarise(score: Score) -> Summary:
    """Mean, standard deviation and worst tenth of the accuracy over clients that have tests."""
    count = np.asarray(score.count)
    accuracy = np.sort(np.asarray(score.correct)[count > 0] / count[count > 0])
    if not len(accuracy):
        return Summary(float("nan"), float("nan"), worst=float("nan"))
    tenth = accuracy[: max(1, len(accuracy) // 10)]
    return Summary(float(accuracy.mean()), float(accuracy.std()), worst=float(tenth.mean()))


def overall(score: Score) -> tuple[float, float]:
    """Accuracy and mean loss over all rows together."""
    count = float(np.sum(score.count))
    return float(np.sum(score.correct)) / count, float(np.sum(score.loss)) / count


def _nothing(rows: tuple[int, ...]) -> Score:
    """The score of rows before their first example."""
    count = np.zeros(rows, np.int32)
    return Score(*jax.tree.map(jnp.asarray, (count, np.zeros(rows, jnp.result_type(float)), count)))
