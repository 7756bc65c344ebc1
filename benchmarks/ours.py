"""The project's own round on a workload, as a child that takes turns."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import workload
from turns import Turns

from fedjax_nc import config, devices, models, tree
from fedjax_nc.data import datasets, federated
from fedjax_nc.data.catalogue import DATASETS, DatasetSpec
from fedjax_nc.errors import unknown
from fedjax_nc.host import dry_run
from fedjax_nc.host.assemble import Job, Seeds, first_state, place
from fedjax_nc.host.loop import AT_ONCE
from fedjax_nc.methods import registry
from fedjax_nc.models.catalogue import MODELS
from fedjax_nc.train import local
from fedjax_nc.train.executors import make_executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.round import make_round, make_rounds
from fedjax_nc.train.schedule import make_hyper
from fedjax_nc.types import FederatedData


def make_job(w: workload.Workload) -> Job:
    """The workload as a run that is ready to start."""
    cfg = config.RunConfig(
        method=w.method,
        model=w.model,
        dataset="random",
        local=config.Local(epochs=w.epochs, batch_size=w.batch_size, lr=w.lr, momentum=w.momentum),
        federation=config.Federation(w.clients, w.participants, norm=w.norm),  # type: ignore[arg-type]
        execution=config.Execution(w.executor, w.chunk, devices=w.devices, conv=w.conv),  # type: ignore[arg-type]
    )
    config.validate(cfg)
    text, half = DATASETS["imdb_reviews"], (0.5,) * workload.SHAPE[-1]
    if w.model not in MODELS:
        raise unknown("model", w.model, allowed=MODELS)
    if MODELS[w.model].text:
        spec, (x, y) = text, workload.reviews(w, text.shape[0], words=text.words)
    else:
        x, y = workload.arrays(w)
        spec = DatasetSpec(
            name="random",
            classes=workload.CLASSES,
            shape=workload.SHAPE,
            train=len(y),
            test=0,
            mean=half,
            std=half,
        )
    parts = np.split(np.arange(len(y)), np.cumsum(w.sizes)[:-1])
    split = federated.Split(parts, [part[:0] for part in parts], pool="train")
    arrays = datasets.Arrays(x, y, test_x=x[:0], test_y=y[:0])
    method = registry.build(w.method)
    model = models.build(
        w.model,
        spec.shape,
        classes=spec.classes,
        head=method.head,
        norm=w.norm,
        conv=cfg.execution.conv,
    )
    trainer = local.Trainer(model, cfg.local, batches=federated.make_batch(spec))
    executor = make_executor(w.executor, devices=w.devices, chunk=w.chunk)
    data = executor.place(federated.assemble(arrays, split, classes=spec.classes))
    configs = tuple(dataclasses.replace(cfg, seed=seed) for seed in range(w.seeds))
    shared: Any = None  # by all seeds: the data
    seeds = Seeds(configs, (split,) * w.seeds, axes=FederatedData(*[shared] * 5))
    task = Task(method, trainer, federation=cfg.federation)
    return Job(
        cfg,
        task,
        executor=executor,
        split=split,
        data=data,
        warnings=(),
        seeds=seeds if w.seeds > 1 else None,
    )


def make_step(job: Job) -> Callable[[], Any]:
    """A function that runs the next round as the project's own loop does, and gives the state."""
    states = [first_state(job, number) for number in range(len(job.configs))]
    state, on_host = states[0]
    if len(states) > 1:
        state = place(
            job, jax.tree.map(lambda *x: jnp.stack(x), *(s for s, _ in states)), on_host=False
        )
    hyper = make_hyper(job.task, 0)
    if on_host or not job.executor.jit:
        round_fn = make_round(job.task, job.executor, clients_on_host=on_host)
    else:
        rounds_fn = make_rounds(job.task, job.executor, at_once=AT_ONCE, seeds=job.axes)
        hyper = hyper._replace(lr=jnp.full(AT_ONCE, hyper.lr))
        round_fn = lambda state, hyper, data: rounds_fn(state, hyper, 1, data)  # noqa: E731

    def step():
        nonlocal state
        state, _ = round_fn(state, hyper, job.data)
        return state

    return step


def main() -> None:
    """Take turns."""
    turns = Turns()
    devices.start(turns.workload.devices)
    job = make_job(turns.workload)
    step = make_step(job)
    weights = jax.eval_shape(job.task.trainer.model.init, jax.random.key(0))
    turns.ready(
        parameters=tree.num_elements(weights.params),
        flops_per_round=dry_run.round_flops(job, first_state(job)[0]),
        variant=f"{job.executor.name} x{job.executor.devices}",
        version=jax.__version__,
    )
    for _ in turns:
        jax.block_until_ready(step())


if __name__ == "__main__":
    main()
