"""A run at one of its rounds, and what several studies need of it, each computed once.

The only file of this folder that knows how runs are assembled.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import losses, tree
from fedjax_nc.analysis.outputs import (
    ExampleOutputs,
    make_local_models,
    make_outputs,
    make_outputs_of_clients,
    make_sums_of_clients,
)
from fedjax_nc.errors import UserError
from fedjax_nc.host import dry_run, examples, passes
from fedjax_nc.host.assemble import NOTHING, Given, Job, assemble
from fedjax_nc.host.states import place, state_of_seed
from fedjax_nc.io import checkpoint, rundir
from fedjax_nc.methods.base import Method, trained_groups
from fedjax_nc.study.options import Options
from fedjax_nc.train.schedule import make_hyper
from fedjax_nc.types import FederatedData, State, Table, Weights

BATCH = examples.BATCH  # examples of a forward pass, and of a Hessian product
Progress = Callable[[str, int, int], None]  # (what, done, of how many)


def silent(what: str, done: int, total: int) -> None:
    """Shows no progress."""


class OwnSums(NamedTuple):
    """Sums by class over each client's own training examples, under the client's own model."""

    features: losses.ClassSums
    projected: losses.ClassSums
    soft_labels: losses.ClassSums


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run of one seed, its state after some round, and how closely it is looked at.

    A run in memory has no directory; `rows` are the records of its rounds, as in `metrics.jsonl`.
    """

    job: Job
    state: State
    rows: Sequence[dict[str, Any]] = ()
    directory: Path | None = None
    options: Options = field(default_factory=Options)
    progress: Progress = silent
    cache: dict[str, Any] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses a run without a global model."""
        if not self.trained:
            where = "" if self.directory is None else f"{self.directory}: "
            raise UserError(
                f"{where}'{self.job.config.method}' shares no parameters, so there is no global "
                "model to analyse: choose a run of another method"
            )

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns what `make` returns, called once for all studies that use this name."""
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]

    @property
    def method(self) -> Method:
        """The method that was trained."""
        return self.job.task.method

    @property
    def trained(self) -> tuple[str, ...]:
        """Parameter groups that are trained and shared, which make up the global model."""
        groups = trained_groups(self.method, tuple(self.state.weights.params))
        return tuple(g for g in groups if g not in self.method.personal)

    @property
    def shares_head(self) -> bool:
        """Whether the head belongs to the global model, and not to each client."""
        return "head" not in self.method.personal

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one example's forward pass."""
        job, spec = self.job, self.job.spec
        model = job.config.model if job.given.model is None else job.given.model
        mapping = job.config.federation.mapping
        size = dry_run.size_of(model, spec.shape, classes=spec.classes, mapping=mapping)
        return size.multiply_adds

    @property
    def cost(self) -> passes.Cost:
        """The method's forward passes, and what a client stores."""
        return passes.cost_of(self.job)

    @property
    def round_flops(self) -> float:
        """Operations of a round's local training."""
        return dry_run.round_flops(self.job)

    def tracked(self, name: str) -> list[dict[str, Any]]:
        """Returns what `--track` recorded for a study, up to this round."""
        last = int(self.state.round)
        rows = [
            row for row in self.rows if row["round"] <= last and isinstance(row.get(name), dict)
        ]
        return [{"round": row["round"]} | row[name] for row in rows]

    @cached_property
    def weights(self) -> Weights:
        """The global model, as the run tests it."""
        return self.method.tested(self.state.weights, self.state.shared)

    @cached_property
    def probe(self) -> examples.Probe:
        """The test and training examples that all studies look at."""
        return examples.choose(self.job, self.options.examples, few=self.options.few)

    @cached_property
    def outputs(self) -> ExampleOutputs:
        """The global model's outputs on the test examples."""
        fn = make_outputs(self.job.task, self.job.executor)
        return _on_one_device(jax.jit(fn)(self.weights, self.probe.pool, self.probe.test))

    @cached_property
    def ids(self) -> np.ndarray:
        """The clients whose local models are looked at."""
        return examples.spread(self.job, self.options.clients)

    @cached_property
    def data(self) -> FederatedData:
        """The federated data, with the training examples of these clients on the device."""
        return next(iter(self.job.feed.clients([self.ids])))

    @cached_property
    def local_models(self) -> Weights:
        """The models that these clients would upload in the coming round, stacked."""
        job, state = self.job, self.state
        fn = make_local_models(job.task, job.executor)
        client_state = jax.tree.map(lambda x: np.asarray(x)[self.ids], dict(state.clients))
        client_state, ids = job.executor.place((client_state, jnp.asarray(self.ids)))
        light = dataclasses.replace(state, clients={})
        hyper = make_hyper(job.task, int(state.round))
        return jax.jit(fn)(light, ids, client_state, hyper, self.data)

    @cached_property
    def local_outputs(self) -> ExampleOutputs:
        """The outputs of these clients' models on the test examples."""
        fn = make_outputs_of_clients(self.job.task, self.job.executor)
        return _on_one_device(jax.jit(fn)(self.local_models, self.probe.pool, self.probe.test))

    @cached_property
    def own_sums(self) -> OwnSums:
        """Sums by class of what these clients' models compute on their own training examples."""

        def sums(out, batch):
            values = (out.features, out.projected, jax.nn.softmax(out.logits))
            classes = out.logits.shape[-1]
            return OwnSums(
                *(losses.class_sums(v, batch.y, mask=batch.mask, classes=classes) for v in values)
            )

        fn = make_sums_of_clients(self.job.task, self.job.executor, batch_size=BATCH, fn=sums)
        table = Table(*tree.take(self.data.train, self.ids))
        return _on_one_device(jax.jit(fn)(self.local_models, self.data.pool, table))

    @cached_property
    def counts(self) -> jax.Array:
        """How many training examples of each class these clients have, [k c]."""
        return _on_one_device(self.job.data.class_counts)[self.ids]


def load(
    directory: Path,
    options: Options,
    *,
    data_dir: str | None = None,
    given: Given = NOTHING,
    progress: Progress = silent,
) -> Subject:
    """Reads a run from its directory.

    Args:
      directory: the run's; refused without a checkpoint.
      options: `round` says which checkpoint, 0 the newest.
      data_dir: where the datasets are now, if not where the run found them.
      given: objects that the run was given in place of names.
      progress: told how far a study is.
    """
    cfg = rundir.read(directory)
    where = cfg.data.dir if data_dir is None else data_dir
    told = cfg.data.order if cfg.data.partition_file else None  # so the run has read its indices
    cfg = dataclasses.replace(
        cfg,
        data=dataclasses.replace(cfg.data, dir=where, partition_order=told),
        execution=dataclasses.replace(cfg.execution, executor="auto", devices=0, shard=False),
    )
    job = assemble(cfg, given=given)
    template = state_of_seed(job)
    step = options.round or checkpoint.last(directory / "ckpt")
    state = checkpoint.load(directory / "ckpt", template, step=step)
    return Subject(
        job=job,
        state=place(job, state),
        rows=rundir.results(directory)[0],
        directory=directory,
        options=options,
        progress=progress,
    )


def class_vectors(weights: Weights) -> jax.Array:
    """Returns the head's class vectors as rows, [c d], or [k c d] for several models."""
    return jnp.swapaxes(_on_one_device(weights.params["head"]["kernel"]), -1, -2)


def _on_one_device(arrays: Any) -> Any:
    """Moves arrays to the first device, where a computation runs once instead of on each."""
    return jax.device_put(arrays, jax.devices()[0])
