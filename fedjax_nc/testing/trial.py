"""A method on trial: the tiny federation, and the rounds that several properties look at."""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import tree
from fedjax_nc.methods.base import Method
from fedjax_nc.testing.compare import Copy, fresh, plain
from fedjax_nc.testing.federation import SIZES, tiny
from fedjax_nc.train import keys
from fedjax_nc.train.client import make_broadcast, make_rows
from fedjax_nc.train.executors import make_executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.round import RoundMetrics, make_client, make_round
from fedjax_nc.types import FederatedData, Hyper, State, Table

PARTICIPANTS = 5  # of the six clients, in each round
HUGE = 1e5  # where pixels are from 0 to 255


class Seen(NamedTuple):
    """What a round leaves."""

    state: State
    metrics: RoundMetrics
    traced: int  # how much had been traced by then


class Trial:
    """A method in the tiny federation; what is computed once serves all properties."""

    def __init__(
        self, method: Method, *, on: Callable[[str], Method] | None = None, **options: Any
    ) -> None:
        """Makes the federation; nothing is trained yet.

        Args:
          method: what is on trial.
          on: if a regulariser is on trial, makes its method of another's specification.
          **options: of the tiny federation, such as `model`.
        """
        made = tiny(method, federation={"participants": PARTICIPANTS}, **options)
        self.name, self.method, self.on, self.traced = method.name, method, on, 0
        pool = made.data.pool
        if pool.x.ndim > 2:  # images: let any number fit
            pool = pool._replace(x=pool.x.astype(float))
        data = made.data._replace(pool=pool)
        self.tiny = made._replace(task=self.counted(made.task), data=data)
        self.scan = make_executor("scan")
        self._uploads: dict[int, Callable[..., Any]] = {}  # by batch size

    def counted(self, task: Task) -> Task:
        """Returns the task in a way that counts traces; another one each time, traced anew."""
        inner = task.trainer.make_batch

        def make_batch(*args: Any) -> Any:
            self.traced += 1
            return inner(*args)

        return task._replace(trainer=task.trainer._replace(make_batch=make_batch))

    @cached_property
    def initial(self) -> State:
        """The state before the first round."""
        return self.tiny.state()

    @cached_property
    def start(self) -> Copy:
        """The same in numpy arrays."""
        return plain(self.initial)

    @cached_property
    def round(self) -> Callable[..., tuple[State, RoundMetrics]]:
        """The round, compiled once."""
        return make_round(self.tiny.task, self.scan)

    @cached_property
    def program(self) -> Any:
        """The round as it is traced."""
        return self.traced_round(self.round)

    def traced_round(self, round_fn: Callable[..., Any]) -> Any:
        """Traces a round."""
        return jax.make_jaxpr(round_fn)(self.initial, self.tiny.hyper, self.tiny.data)

    @cached_property
    def rounds(self) -> tuple[Seen, Seen]:
        """The first two rounds."""
        first, metrics = self.run()
        traced = self.traced
        second, last = self.run(state=first)
        return Seen(first, metrics, traced=traced), Seen(second, last, traced=self.traced)

    def run(
        self,
        rounds: int = 1,
        *,
        state: State | None = None,
        data: FederatedData | None = None,
        hyper: Hyper | None = None,
    ) -> tuple[State, RoundMetrics]:
        """Runs rounds from a copy of the state, by default of the initial one."""
        last: Any = fresh(self.initial if state is None else state), None
        for _ in range(rounds):
            last = self.round(last[0], hyper or self.tiny.hyper, data or self.tiny.data)
        return last

    def only(self, *clients: int) -> FederatedData:
        """Returns the data of which these clients have theirs and the others none."""
        data, kept = self.tiny.data, np.isin(np.arange(len(SIZES)), clients)
        size = jnp.where(kept, data.train.size, 0)
        counts = jnp.where(kept[:, None], data.class_counts, 0.0)
        return data._replace(train=Table(data.train.index, size), class_counts=counts)

    @cached_property
    def dirty(self) -> FederatedData:
        """The data with absurd official test images, to which all padding points."""
        data, (x, y) = self.tiny.data, self.tiny.data.pool
        index, size = map(np.asarray, data.train)
        first = sum(SIZES)  # of those images, which nobody trains on
        garbage = np.random.RandomState(1).randint(first, len(y), index.shape, index.dtype)
        index = np.where(np.arange(index.shape[1]) < size[:, None], index, garbage)
        other = (y[first:] + 1) % data.class_counts.shape[1]
        pool = data.pool._replace(x=x.at[first:].set(HUGE), y=y.at[first:].set(other))
        return data._replace(pool=pool, train=Table(jnp.asarray(index), data.train.size))

    def uploads(self, batch_size: int) -> Callable[..., Any]:
        """Returns the sum of all clients' uploads, a function of (state, data, their order)."""
        if batch_size not in self._uploads:
            self._uploads[batch_size] = self._make_uploads(batch_size)
        return self._uploads[batch_size]

    def _make_uploads(self, batch_size: int) -> Callable[..., Any]:
        trainer = self.tiny.task.trainer
        local = dataclasses.replace(trainer.local, batch_size=batch_size)
        task = self.tiny.task._replace(trainer=trainer._replace(local=local))
        client = make_client(task)

        def total(state: State, data: FederatedData, order: jax.Array) -> Any:
            key = keys.of_round(state.key, state.round, stream=keys.LOCAL_TRAINING)
            ids = jnp.arange(len(SIZES))
            rows = make_rows(task, key, ids=ids, data=data, client_state=state.clients)
            broadcast = make_broadcast(task, state, hyper=self.tiny.hyper, pool=data.pool)
            return tree.unpack(self.scan.run(client, broadcast, rows, order)[1])

        return jax.jit(total)
