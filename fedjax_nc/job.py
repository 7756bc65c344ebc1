"""From a configuration to everything a run needs: data, model, method, executor."""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_nc import config, models
from fedjax_nc.data import datasets, federated
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.errors import UserError
from fedjax_nc.methods import registry
from fedjax_nc.train import local
from fedjax_nc.train.executors import Executor, make_executor
from fedjax_nc.train.round import Task, init_state
from fedjax_nc.types import State


class Job(NamedTuple):
    """A run, ready to start; nothing has been written yet."""

    config: config.RunConfig
    task: Task
    executor: Executor
    split: federated.Split
    data: federated.FederatedData
    warnings: tuple[str, ...]


def prepare(cfg: config.RunConfig, *, strict: bool = False) -> Job:
    """Load the data, deal it, build the model. Bad input is found here, before any file."""
    spec = DATASETS[cfg.dataset]
    method = registry.build(cfg.method)
    norm = cfg.federation.norm
    model = models.build(
        cfg.model, spec.shape, spec.classes, method.head, norm=norm, conv=cfg.execution.conv
    )
    jax.eval_shape(model.init, jax.random.key(0))  # a head that does not fit is told here
    batches = federated.make_batches(spec, cfg.data.augment, cfg.data.normalise)
    arrays = datasets.load(cfg.dataset, cfg.data.dir)
    x, y = federated.limit_examples(arrays.train_x, arrays.train_y, cfg.data.limit)
    arrays = arrays._replace(train_x=x, train_y=y)
    split = federated.split_clients(
        cfg.data, cfg.federation.clients, cfg.partition_seed, y, arrays.test_y
    )
    empty = [k for k, part in enumerate(split.train) if not len(part)]
    warnings = []
    if empty:
        listed = ", ".join(map(str, empty[:10])) + ("..." if len(empty) > 10 else "")
        message = f"{len(empty)} of {len(split.train)} clients have no training data ({listed})"
        if strict or len(empty) == len(split.train):
            raise UserError(f"{message}: choose another partition or seed, or leave out --strict")
        warnings.append(f"{message}: they are skipped")
    executor = make_executor(
        cfg.execution.executor, devices=cfg.execution.devices, chunk=cfg.execution.chunk
    )
    data = executor.place(federated.assemble(arrays, split, spec.classes))
    task = Task(method, local.Trainer(model, cfg.local, batches), cfg.federation)
    return Job(cfg, task, executor, split, data, tuple(warnings))


def first_state(job: Job) -> tuple[State, bool]:
    """The state before round one, and whether client state stays in host memory."""
    limit = job.config.execution.client_state_mb * 1e6 if job.executor.jit else float("inf")
    state = init_state(job.task, jax.random.key(job.config.seed), host_above=limit)
    on_host = any(isinstance(x, np.ndarray) for x in jax.tree.leaves(state.clients))
    return place(job, state, on_host), on_host


def place(job: Job, state: State, on_host: bool) -> State:
    """Put a state where rounds expect it: on the devices, large client state in host memory."""
    clients = dict(state.clients)
    light = job.executor.place(State(state.round, state.key, state.weights, state.shared, {}))
    if on_host:
        clients = jax.tree.map(lambda x: np.array(x, copy=True), clients)
    else:
        clients = job.executor.place(clients)
    return State(light.round, light.key, light.weights, light.shared, clients)
