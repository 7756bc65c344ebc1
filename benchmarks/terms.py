"""Times each term of a method's objective on a batch (FedBlade, table 10)."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from progress import Progressing

from fedjax_nc import tree
from fedjax_nc.host.assemble import Job
from fedjax_nc.host.states import first_state
from fedjax_nc.methods.base import Context, Phase, Term
from fedjax_nc.train import local, seeds
from fedjax_nc.train.client import make_broadcast, make_rows, make_view
from fedjax_nc.train.schedule import make_hyper
from fedjax_nc.types import Pool

NETWORK, WHOLE = "network", "all together"


def keep_network(c: Context) -> jax.Array:
    """Returns a number that needs both passes of the network, which all programs have in common."""
    return jnp.mean(c.out.logits) + jnp.mean(c.out.features)


def programs(job: Job, phase: Phase) -> dict[str, Callable[[], float]]:
    """Returns functions that time forward and backward pass: whole, and without each term.

    That under the network's name has no terms.
    """
    task, state = job.task, seeds.take(first_state(job), 0)
    size = task.trainer.local.batch_size
    common = phase._replace(terms=(*phase.terms, Term(NETWORK, keep_network)))
    names = [term.name for term in phase.terms]

    def gradient(left_out: tuple[str, ...]) -> Callable[..., Any]:
        def run(state, pool: Pool, key):
            rows = make_rows(
                task, key, ids=jnp.arange(1), data=job.data, client_state=dict(state.clients)
            )
            row = tree.take(rows, 0)
            broadcast = make_broadcast(task, state, hyper=make_hyper(task, 0), pool=pool)
            client = local.Client(
                pool, row.index, view=make_view(task, broadcast, row=row), key=key
            )
            objective = local.make_objective(
                task.trainer,
                common,
                term_weights=local.default_weights(common),
                client=client,
                start=state.weights,
            )
            groups = tuple(state.weights.params) if phase.train is None else phase.train
            batch = task.trainer.make_batch(pool, row.index[:size], row.index[:size] >= 0, key)
            wanted = lambda name: name not in left_out  # noqa: E731
            trainable = tree.pick(state.weights.params, groups)
            whole = jax.grad(objective, has_aux=True)
            return whole(trainable, state.weights.stats, batch, key, wanted)[0]

        return jax.jit(run).lower(state, job.data.pool, state.key).compile()

    def timed(program: Any) -> Callable[[], float]:
        def seconds() -> float:
            start = time.perf_counter()
            jax.block_until_ready(program(state, job.data.pool, state.key))
            return time.perf_counter() - start

        return seconds

    left_out = {WHOLE: (), **{name: (name,) for name in names}, NETWORK: tuple(names)}
    return {name: timed(gradient(without)) for name, without in left_out.items()}


def measure(jobs: dict[tuple[str, str], Job], repeats: int) -> list[dict[str, Any]]:
    """Returns a row per term: the median over turns of the time with it minus that without it."""
    cases = [(*case, n) for case, job in jobs.items() for n in range(len(job.task.method.phases))]
    rows = []
    with Progressing("terms", len(cases) * (repeats + 2)) as progress:
        for method, model, n in cases:
            phase = jobs[method, model].task.method.phases[n]
            made = programs(jobs[method, model], phase)
            progress.step(f"compiled {method}, phase {n + 1}")
            turns: list[dict[str, float]] = []
            for turn, order in zip(range(repeats + 1), itertools.cycle((1, -1)), strict=False):
                taken = {name: made[name]() for name in list(made)[::order]}
                turns += [taken] if turn else []  # the first warms up
                progress.step(f"turn {turn} of {repeats}: {method}, phase {n + 1}")
            where = {"method": method, "model": model, "phase": n + 1}
            for name in made:
                alone = name in (NETWORK, WHOLE)
                each = [t[name] if alone else t[WHOLE] - t[name] for t in turns]
                rows.append(where | {"term": name, "ms": 1e3 * float(np.median(each))})
    return rows
