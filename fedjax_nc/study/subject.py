"""A run at one of its checkpoints, and what several studies read of it, each computed once."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import losses, tree
from fedjax_nc.analysis import outputs
from fedjax_nc.errors import UserError
from fedjax_nc.host import examples
from fedjax_nc.host.assemble import Job, assemble, place, state_of_seed
from fedjax_nc.io import checkpoint, rundir
from fedjax_nc.methods.base import Method, trained_groups
from fedjax_nc.study.options import Options
from fedjax_nc.train.schedule import make_hyper
from fedjax_nc.types import FederatedData, State, Table, Weights

Progress = Callable[[str, int, int], None]  # (what, done, of how many)


class Own(NamedTuple):
    """Sums over each client's own examples under its own model, by class."""

    features: losses.ClassSums
    projected: losses.ClassSums
    soft_labels: losses.ClassSums


@dataclass(frozen=True)
class Subject:
    """A run, its state at a checkpoint, and how closely it is looked at."""

    directory: Path
    job: Job
    state: State
    options: Options
    kept: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once however many studies ask for it by this name."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    @property
    def method(self) -> Method:
        """What was trained."""
        return self.job.task.method

    @property
    def trained(self) -> tuple[str, ...]:
        """Parameter groups that are trained and shared: those a global model has learnt."""
        groups = trained_groups(self.method, tuple(self.state.weights.params))
        return tuple(g for g in groups if g not in self.method.personal)

    @property
    def has_class_vectors(self) -> bool:
        """Whether the global model's head is everybody's."""
        return "head" not in self.method.personal

    @cached_property
    def weights(self) -> Weights:
        """The global model that was tested."""
        return self.method.tested(self.state.weights, self.state.shared)

    @cached_property
    def probe(self) -> examples.Probe:
        """The examples all studies share."""
        return examples.choose(self.job, self.options.examples, few=self.options.few)

    @cached_property
    def seen(self) -> outputs.Seen:
        """The global model on the test examples."""
        fn = outputs.make_outputs(self.job.task, self.job.executor)
        return _alone(jax.jit(fn)(self.weights, self.probe.pool, self.probe.test))

    @cached_property
    def ids(self) -> np.ndarray:
        """Clients whose local models are looked at."""
        return examples.spread(self.job, self.options.clients)

    @cached_property
    def data(self) -> FederatedData:
        """With these clients' training examples on the device."""
        return next(iter(self.job.feed.clients([self.ids])))

    @cached_property
    def local_models(self) -> Weights:
        """What these clients would upload in the coming round, stacked."""
        job, state = self.job, self.state
        fn = outputs.make_local_models(job.task, job.executor)
        kept = jax.tree.map(lambda x: np.asarray(x)[self.ids], dict(state.clients))
        kept, ids = job.executor.place((kept, jnp.asarray(self.ids)))
        light = State(
            state.round, state.key, weights=state.weights, shared=state.shared, clients={}
        )
        hyper = make_hyper(job.task, int(state.round))
        return jax.jit(fn)(light, ids, kept, hyper, self.data)

    @cached_property
    def local_seen(self) -> outputs.Seen:
        """These clients' models on the test examples."""
        fn = outputs.make_outputs_of_clients(self.job.task, self.job.executor)
        return _alone(jax.jit(fn)(self.local_models, self.probe.pool, self.probe.test))

    @cached_property
    def own(self) -> Own:
        """These clients' models on their own training examples."""

        def sums(out, batch):
            values = (out.features, out.projected, jax.nn.softmax(out.logits))
            classes = out.logits.shape[-1]
            return Own(
                *(losses.class_sums(v, batch.y, mask=batch.mask, classes=classes) for v in values)
            )

        fn = outputs.make_sums_of_clients(
            self.job.task, self.job.executor, batch_size=examples.BATCH, fn=sums
        )
        table = Table(*tree.take(self.data.train, self.ids))
        return _alone(jax.jit(fn)(self.local_models, self.data.pool, table))

    @cached_property
    def counts(self) -> jax.Array:
        """Training examples of every class that these clients have."""
        return _alone(self.job.data.class_counts)[self.ids]


def load(directory: Path, options: Options, data_dir: str | None = None) -> Subject:
    """A run from its directory; refuses one without a checkpoint or a global model."""
    cfg = rundir.read(directory)
    where = cfg.data.dir if data_dir is None else data_dir
    cfg = dataclasses.replace(
        cfg,
        data=dataclasses.replace(cfg.data, dir=where),
        execution=dataclasses.replace(cfg.execution, executor="auto", devices=0),
    )
    job = assemble(cfg)
    template = state_of_seed(job, 0)
    number = options.round or checkpoint.last(directory / "ckpt")
    state = checkpoint.load(directory / "ckpt", template, step=number)
    found = Subject(directory, job, state=place(job, state), options=options)
    if not found.trained:
        raise UserError(
            f"{directory}: '{cfg.method}' shares no parameters, so there is no global model to "
            "analyse: choose a run of another method"
        )
    return found


def class_vectors(weights: Weights) -> jax.Array:
    """Rows of the head, [c d]; of several models with a leading axis."""
    return jnp.swapaxes(_alone(weights.params["head"]["kernel"]), -1, -2)


def _alone(arrays: Any) -> Any:
    """On the first device, so that what follows is computed once and not on each."""
    return jax.device_put(arrays, jax.devices()[0])
