"""The examples an analysis looks at: always the same ones of a run, as many of every class."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_nc import tree
from fedjax_nc.analysis import outputs
from fedjax_nc.data import federated, stream
from fedjax_nc.host.assemble import Job
from fedjax_nc.types import Pool, Table

BATCH = 100  # examples of a forward pass, and of a Hessian product


class Probe(NamedTuple):
    """Official test examples and clients' training examples, on the devices."""

    pool: Pool
    test: outputs.Batches
    train: outputs.Batches


def choose(job: Job, examples: int, few: int = BATCH) -> Probe:
    """Chooses examples, class balanced and the same every time.

    Args:
      job: the run.
      examples: how many test examples, if there are as many.
      few: how many of the clients' training examples, likewise.
    """
    y = np.asarray(job.data.pool.y if job.host is None else job.host.y)
    kinds = [np.unique(np.concatenate(_rows(table))) for table in (job.data.test, job.data.train)]
    test, train = (
        some[federated.limit_examples(y[some], most)]
        for some, most in zip(kinds, (examples, few), strict=True)
    )
    ends = len(test), len(test) + len(train)
    batches = (outputs.in_batches(np.arange(*span), BATCH) for span in ((0, ends[0]), ends))
    return job.executor.place(Probe(_pool(job, np.concatenate([test, train])), *batches))


def spread(job: Job, clients: int) -> np.ndarray:
    """Chooses clients with data, evenly spread from the largest to the smallest; 0 is all."""
    sizes = np.asarray(job.data.train.size)
    order = np.argsort(-sizes, kind="stable")[: int(np.sum(sizes > 0))]
    wanted = min(clients or len(order), len(order))
    return np.sort(order[np.linspace(0, len(order) - 1, wanted).round().astype(int)])


def _rows(table: Table) -> list[np.ndarray]:
    """Returns the examples of every client, of all seeds."""
    index, sizes = np.asarray(table.index), np.asarray(table.size)
    rows = zip(index.reshape(-1, index.shape[-1]), sizes.ravel(), strict=True)
    return [row[:size] for row, size in rows]


def _pool(job: Job, indices: np.ndarray) -> Pool:
    """Returns these examples in this order, wherever they are now."""
    if job.host is None:
        return Pool(*tree.take(tuple(job.data.pool), indices))
    table = stream.Rows(indices[None], np.array([len(indices)]))
    x, y, (table,) = stream.gather(job.host, len(np.unique(indices)), tables=[table])
    order = table.index[0]
    return Pool(jnp.asarray(x[order]), jnp.asarray(y[order]))
