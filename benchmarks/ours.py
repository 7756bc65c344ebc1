"""The project's own round on a workload, as a child that takes turns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import workload
from turns import Turns

from fedjax_nc import cli, config, models, tree, work
from fedjax_nc.data import datasets, federated
from fedjax_nc.data.catalogue import DatasetSpec
from fedjax_nc.job import Job, first_state
from fedjax_nc.loop import make_hyper
from fedjax_nc.methods import registry
from fedjax_nc.train import local
from fedjax_nc.train.executors import make_executor
from fedjax_nc.train.round import Task, make_round


def make_job(w: workload.Workload) -> Job:
    """The workload as a run that is ready to start."""
    cfg = config.RunConfig(
        method=w.method, model=w.model, dataset="random",
        local=config.Local(epochs=w.epochs, batch_size=w.batch_size, lr=w.lr, momentum=w.momentum),
        federation=config.Federation(w.clients, w.participants, norm=w.norm),  # type: ignore[arg-type]
        execution=config.Execution(w.executor, w.chunk, w.devices, conv=w.conv),  # type: ignore[arg-type]
    )  # fmt: skip
    config.validate(cfg)
    half = (0.5,) * workload.SHAPE[-1]
    x, y = workload.arrays(w)
    spec = DatasetSpec("random", workload.CLASSES, workload.SHAPE, len(y), 0, half, half)
    parts = np.split(np.arange(len(y)), np.cumsum(w.sizes)[:-1])
    split = federated.Split(parts, [part[:0] for part in parts], "train")
    arrays = datasets.Arrays(x, y, x[:0], y[:0])
    method = registry.build(w.method)
    model = models.build(w.model, workload.SHAPE, workload.CLASSES, method.head, norm=w.norm,
                         conv=cfg.execution.conv)  # fmt: skip
    trainer = local.Trainer(model, cfg.local, federated.make_batches(spec))
    executor = make_executor(w.executor, devices=w.devices, chunk=w.chunk)
    data = executor.place(federated.assemble(arrays, split, workload.CLASSES))
    return Job(cfg, Task(method, trainer, cfg.federation), executor, split, data, ())


def round_flops(w: workload.Workload) -> float:
    """Nominal operations of a round: the multiply-adds of the layers, whatever a lowering does.

    They are counted on the `im2col` lowering, whose three products are exactly a convolution and
    its gradients; XLA's own gradient convolutions also multiply padding. The gradient by the
    images is not among them, since nobody needs it.
    """
    small = {"clients": 1, "participants": 1, "images": w.batch_size, "steps": (), "devices": 1}
    job = make_job(dataclasses.replace(w, **small, executor="scan", conv="im2col"))
    state, _ = first_state(job)
    sizes, total = jnp.asarray(w.sizes), 0.0
    for phase in job.task.method.phases:
        shuffles, each = local.loop_counts(phase, job.config.local, sizes)
        steps = np.mean(np.broadcast_to(shuffles * each, sizes.shape))
        total += work.step_flops(job, state, phase) * float(steps) * w.participants
    return total


def main() -> None:
    """Take turns."""
    turns = Turns()
    cli.start_jax(turns.workload.devices)
    job = make_job(turns.workload)
    state, on_host = first_state(job)
    round_fn = make_round(job.task, job.executor, clients_on_host=on_host)
    hyper = make_hyper(job, 0)
    turns.ready(
        parameters=tree.num_elements(state.weights.params),
        flops_per_round=round_flops(turns.workload),
        variant=f"{job.executor.name} x{job.executor.devices}",
        version=jax.__version__,
    )
    for _ in turns:
        state, _ = round_fn(state, hyper, job.data)
        jax.block_until_ready(state)


if __name__ == "__main__":
    main()
