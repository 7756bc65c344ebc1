"""The project's own round on a workload, as a child that takes turns."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import workload
from turns import Turns

from fedjax_nc import config, devices, tree
from fedjax_nc.data import federated
from fedjax_nc.data.arrays import Arrays
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import unknown
from fedjax_nc.host import dry_run
from fedjax_nc.host.assemble import Given, Job, assemble
from fedjax_nc.host.loop import AT_ONCE, make_rounds_of
from fedjax_nc.host.states import first_state
from fedjax_nc.models.catalogue import MODELS
from fedjax_nc.train.schedule import make_hyper


def make_job(w: workload.Workload, module: Any = None) -> Job:
    """Assembles the workload as a run that is ready to start; a module may replace the model."""
    cfg = config.RunConfig(
        method=w.method,
        dataset="random",
        model=w.model,
        data=config.Data(normalise="half"),
        local=config.Local(epochs=w.epochs, batch_size=w.batch_size, lr=w.lr, momentum=w.momentum),
        federation=config.Federation(
            clients=w.clients,
            participants=w.participants,
            norm=w.norm,  # type: ignore[arg-type]
        ),
        evaluation=config.Evaluation(finetune=False),
        execution=config.Execution(
            executor=w.executor,  # type: ignore[arg-type]
            chunk=w.chunk,
            devices=w.devices,
            conv=w.conv,  # type: ignore[arg-type]
            pool_mb=10**9,  # everything is on the devices
        ),
    )
    config.validate(cfg)
    if w.model not in MODELS:
        raise unknown("model", w.model, allowed=MODELS)
    if MODELS[w.model].text:
        spec = DATASETS["imdb_reviews"]
        x, y = workload.reviews(w, spec.shape[0], words=spec.words)
    else:
        x, y = workload.arrays(w)
        spec = DatasetSpec(
            name="random", classes=workload.CLASSES, shape=workload.SHAPE, train=len(y), test=0
        )
    parts = np.split(np.arange(len(y)), np.cumsum(w.sizes)[:-1])
    given = Given(
        model=module,
        dataset=(spec, Arrays(x, y, test_x=x[:0], test_y=y[:0])),
        split=federated.Split(parts, [part[:0] for part in parts], pool="train"),
    )
    configs = [dataclasses.replace(cfg, seed=seed) for seed in range(w.seeds)]
    # the host's copy is let go, as a run lets go of a dataset it has read: memory is measured
    return assemble(*configs, given=given)._replace(given=given._replace(dataset=None))


def make_step(job: Job) -> Callable[[], Any]:
    """Makes a function that runs the next round as the project's own loop does."""
    state = first_state(job)
    rounds_fn = make_rounds_of(job, state)
    hyper = make_hyper(job.task, 0)
    hyper = hyper._replace(lr=jnp.full(AT_ONCE, hyper.lr))

    def step():
        nonlocal state
        state, _ = rounds_fn(state, hyper, 1, job.data)
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
        flops_per_round=dry_run.round_flops(job),
        variant=f"{job.executor.name} x{job.executor.devices}",
        version=jax.__version__,
    )
    for _ in turns:
        jax.block_until_ready(step())


if __name__ == "__main__":
    main()
