"""One evaluation: over rows of a table, the sums that metrics are made of."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import losses, processes, tree
from fedjax_nc.data import stream
from fedjax_nc.train import keys, local
from fedjax_nc.train.executors import Executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.seeds import ONE, Seeds
from fedjax_nc.types import FederatedData, Outputs, Pool, Table, Weights

BINS = 15  # of equal width, by the confidence of an answer (Guo et al. 2017)


class Score(NamedTuple):
    """Sums over the examples of each row; some have a last axis of classes or of `BINS`.

    Those are None in the tests of the global model on clients' own examples, of which no metric by
    class is told: they are a quarter of a kilobyte for each client.
    """

    correct: jax.Array
    loss: jax.Array
    count: jax.Array
    class_correct: jax.Array | None = None  # by class
    class_count: jax.Array | None = None
    class_answers: jax.Array | None = None  # how often it is predicted
    bin_confidence: jax.Array | None = None  # of the predicted class
    bin_correct: jax.Array | None = None


def score_row(
    trainer: local.Trainer,
    batch_size: int,
    *,
    weights: Weights,
    pool: Pool,
    row: Table,
    predict: Callable[[Outputs], jax.Array] = lambda out: out.logits,
    before: Score | None = None,
    by_class: bool = True,
) -> Score:
    """Scores one model on one row of examples; `before` is the score of earlier ones."""

    def score(out, batch):
        logits = predict(out)
        answer = jnp.argmax(logits, -1)
        right = (answer == batch.y) & batch.mask
        loss = jnp.where(batch.mask, losses.cross_entropy(logits, batch.y), 0.0)
        plain = Score(_number(right), jnp.sum(loss), count=_number(batch.mask))
        if not by_class:
            return plain
        confidence = jnp.where(batch.mask, jnp.max(jax.nn.softmax(logits), -1), 0.0)
        # the m-th bin is from above (m - 1) / BINS to m / BINS; of NaN no bin is spared
        bins = jnp.ceil(confidence * BINS)[:, None] == jnp.arange(1, BINS + 1)
        classes = jnp.arange(logits.shape[-1])
        true = (batch.y[:, None] == classes) & batch.mask[:, None]
        answers = (answer[:, None] == classes) & batch.mask[:, None]
        return plain._replace(
            class_correct=_number(true & right[:, None]),
            class_count=_number(true),
            class_answers=_number(answers),
            bin_confidence=jnp.sum(bins * confidence[:, None], 0),
            bin_correct=_number(bins & right[:, None]),
        )

    return local.sum_over(
        trainer, batch_size, weights=weights, pool=pool, row=row, fn=score, start=before
    )


def make_evaluate(
    task: Task, executor: Executor, *, batch_size: int, seeds: Seeds = ONE
) -> Callable[[Weights, Iterable[stream.Tests]], dict[str, Score]]:
    """Makes the test of global models on the official test set and on every client's own.

    The result is a function of (weights with an axis of seeds, pieces of the test examples). Each
    piece goes on with the sums of those before, so the order in which a row's batches are added
    does not depend on where it was cut.
    """

    def score(broadcast: tuple[Weights, Pool], own: tuple[Table, Score]) -> tuple[Score, dict]:
        (weights, pool), (table, before) = broadcast, own
        new = score_row(
            task.trainer,
            batch_size,
            weights=weights,
            pool=pool,
            row=table,
            before=before,
            by_class=before.class_count is not None,
        )
        return new, {}

    def of_seed(
        weights: Weights, data: FederatedData, before: dict[str, Score], rows: dict[str, Any]
    ) -> dict[str, Score]:
        tables = {"global": data.test, "clients": data.client_test}
        for name, table in tables.items():
            own = (table, tree.take(before[name], rows[name]))
            steps = -(-table.size // batch_size)
            new, _ = executor.run(score, (weights, data.pool), own, steps)
            before = before | {name: tree.put(before[name], rows[name], rows=new)}
        return before

    fn = executor.compile(seeds.over(of_seed, (0, seeds.data, 0, None)))

    def all_pieces(weights: Weights, pieces: Iterable[stream.Tests]) -> dict[str, Score]:
        count = {"global": executor.lanes, "clients": task.federation.clients}
        scores: dict[str, Score] = {}
        for data, clients, official in pieces:
            classes = data.class_counts.shape[-1]
            if scores:  # what waits to be computed holds on to its examples
                processes.until_ready(scores)
            else:
                scores = {
                    name: _nothing((seeds.count, n), classes, by_class=name == "global")
                    for name, n in count.items()
                }
            scores = fn(weights, data, scores, {"clients": clients, "global": official})
        return scores

    return all_pieces


def make_calibrate(
    task: Task, executor: Executor, *, batch_size: int, seeds: Seeds = ONE
) -> Callable[[Weights, jax.Array, stream.Feed], Weights]:
    """Makes the method's step after the last round: sums over everybody's data, then its solution.

    The result is a function of (weights, key, feed), the first two with an axis of seeds.
    """
    posthoc = task.method.posthoc
    assert posthoc is not None

    def collect_client(broadcast: tuple[Weights, Pool], row: Table) -> tuple[dict, Any]:
        weights, pool = broadcast
        sums = local.sum_over(
            task.trainer, batch_size, weights=weights, pool=pool, row=row, fn=posthoc.collect
        )
        return {}, posthoc.upload(sums)

    def collect(weights: Weights, ids: Any, data: FederatedData) -> Any:
        rows = tree.take(data.train, ids)
        steps = -(-rows.size // batch_size)
        return executor.run(collect_client, (weights, data.pool), rows, steps)[1]

    def solve(weights: Weights, sums: Any, key: jax.Array) -> Weights:
        key = keys.of_run(key, keys.CALIBRATION)
        return posthoc.solve(task.trainer.model, weights, sums, key)

    collect = executor.compile(seeds.over(collect, (0, None, seeds.data)))
    solve = executor.compile(seeds.over(solve, (0, 0, 0)))

    def calibrate(weights: Weights, key: jax.Array, feed: stream.Feed) -> Weights:
        everybody, size = np.arange(task.federation.clients), feed.at_once
        groups, sums = [everybody[i : i + size] for i in range(0, len(everybody), size)], None
        for ids, piece in zip(groups, feed.clients(groups), strict=False):
            new = processes.until_ready(collect(weights, executor.place(ids), piece))
            sums = new if sums is None else tree.add(sums, new)
        return solve(weights, sums, key)

    return calibrate


def _number(which: jax.Array) -> jax.Array:
    """Counts the examples of a batch that are meant, by class or bin where there is that axis."""
    return jnp.sum(which, 0, dtype=jnp.int32)


def _nothing(rows: tuple[int, ...], classes: int, *, by_class: bool) -> Score:
    """Returns the score of rows before their first example."""
    real, number = jnp.result_type(float), jnp.int32
    plain = Score(jnp.zeros(rows, number), jnp.zeros(rows, real), count=jnp.zeros(rows, number))
    if not by_class:
        return plain
    return plain._replace(
        class_correct=jnp.zeros((*rows, classes), number),
        class_count=jnp.zeros((*rows, classes), number),
        class_answers=jnp.zeros((*rows, classes), number),
        bin_confidence=jnp.zeros((*rows, BINS), real),
        bin_correct=jnp.zeros((*rows, BINS), number),
    )
