"""How much work a run is, found without training: parameters, FLOPs, memory, traffic."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import config, flops, models, protocols, tree
from fedjax_nc.data import augment
from fedjax_nc.data.catalogue import sized
from fedjax_nc.errors import UserError
from fedjax_nc.host import passes
from fedjax_nc.host.assemble import Job, make_task
from fedjax_nc.host.states import clients_on_host, first_state
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.methods.base import Phase
from fedjax_nc.metrics import duration
from fedjax_nc.train import local
from fedjax_nc.train import seeds as axis
from fedjax_nc.train.client import Row, make_broadcast, make_view
from fedjax_nc.train.round import make_round
from fedjax_nc.train.schedule import make_hyper
from fedjax_nc.train.traffic import by_part, traffic
from fedjax_nc.types import HeadSpec, Pool, State

MEASURED_SECONDS, MEASURED_STEPS = 2.0, 5  # of the measured local step, at most


def facts(job: Job) -> dict[str, str]:
    """Returns what a dry run shows of a job of one seed."""
    cfg, state = job.config, axis.take(first_state(job), 0)
    sizes = np.asarray(job.data.train.size)
    per_phase = [
        local.loop_counts(p, cfg.local, size=jnp.asarray(sizes)) for p in job.task.method.phases
    ]
    steps = np.sum([np.broadcast_to(a * b, sizes.shape) for a, b in per_phase], axis=0)
    share = cfg.federation.participants / cfg.federation.clients
    moved = by_part(job.task, job.data.pool)
    up, down = map(sum, zip(*moved.values(), strict=True))
    cost = passes.cost_of(job)
    params = {g: tree.num_elements(p) for g, p in state.weights.params.items()}
    on_host = clients_on_host(state)
    result = {
        "method": cfg.method,
        "model": f"{cfg.model}, {sum(params.values()):,} parameters "
        f"({', '.join(f'{k} {v:,}' for k, v in params.items())})",
        "data": f"{cfg.dataset}, {config.partition_name(cfg.data)}, {_where(job)}",
        "clients": f"{cfg.federation.clients}, {cfg.federation.participants} per round, "
        f"{sizes.min()} to {sizes.max()} examples (median {np.median(sizes):.0f})",
        "classes per client": _classes(np.asarray(job.data.class_counts)),
        "local steps": f"{steps.min()} to {steps.max()} per client, "
        f"{steps.sum() * share:.0f} per round on average",
        "FLOPs per round": f"{round_flops(job) / 1e9:.2f} G "
        f"({step_flops(job, job.task.method.phases[0]) / 1e6:.1f} M per step of "
        f"{cfg.local.batch_size})",
        "forward MFLOPs": f"{cost.multiply_adds / 1e6:.4g} per example, all passes of the method",
        "stored parameters": f"{cost.parameters:,} of a client, without normalisation",
        "upload, download": f"{up / 1e6:.3f} MB, {down / 1e6:.3f} MB per client and round",
        **{f"of which {name}": _kilobytes(each) for name, each in moved.items() if len(moved) > 1},
        "client state": f"{tree.num_bytes(state.clients) / 1e6:.1f} MB in "
        f"{'host memory' if on_host else 'device memory'}",
        "executor": f"{job.executor.name}, {job.executor.devices} device(s)",
        "rounds": str(cfg.rounds),
    }
    if job.executor.jit and not on_host:
        result["peak memory"] = _peak_memory(job, state)
    for warning in job.warnings:
        result["warning"] = warning
    return result


def _peak_memory(job: Job, state: State) -> str:
    """Returns what the compiled round needs on each device."""
    round_fn = make_round(job.task, job.executor)
    lowered = round_fn.lower(state, make_hyper(job.task, 0), job.data)  # type: ignore[attr-defined]
    memory = lowered.compile().memory_analysis()
    peak = memory.argument_size_in_bytes + memory.output_size_in_bytes
    peak += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    return f"about {peak / 1e6:.0f} MB per device (arguments + temporaries)"


def round_flops(job: Job) -> float:
    """Returns the operations of a round, on average over who takes part."""
    sizes, total = job.data.train.size, 0.0
    for phase in job.task.method.phases:
        shuffles, each = local.loop_counts(phase, job.config.local, size=sizes)
        steps = float(np.mean(np.broadcast_to(shuffles * each, sizes.shape)))
        total += step_flops(job, phase) * steps * job.config.federation.participants
    return total


def step_flops(job: Job, phase: Phase) -> int:
    """Returns the operations of one local step: forward and backward pass with all terms."""
    task = passes.plain_task(job)
    trainer = task.trainer
    state, pool = axis.take(first_state(job), 0), job.data.pool
    row = _one_batch(job, state)
    broadcast = make_broadcast(task, state, hyper=make_hyper(task, 0), pool=pool)
    view = make_view(task, broadcast, row=row)
    client = local.Client(pool, row.index, view=view, key=state.key)  # whose pool nobody reads
    groups = tuple(state.weights.params) if phase.train is None else phase.train

    def step(trainable, pool):
        objective = local.make_objective(
            trainer,
            phase,
            term_weights=local.default_weights(phase),
            client=client,
            start=state.weights,
        )
        batch = trainer.make_batch(pool, row.index, row.index == 0, None)
        return jax.grad(objective, has_aux=True)(trainable, state.weights.stats, batch, state.key)

    shape = augment.training_shape(job.config.data.augment, job.spec.shape)
    seen = pool._replace(x=jax.ShapeDtypeStruct((pool.y.shape[0], *shape), pool.x.dtype))
    return flops.count(step, tree.pick(state.weights.params, groups), seen)


class Size(NamedTuple):
    """How large a model with a linear head is."""

    parameters: int
    multiply_adds: int  # of one input's forward pass


def size_of(
    model: Any, shape: tuple[int, ...], classes: int, *, mapping: tuple[int, ...] = ()
) -> Size:
    """Counts a model on plain convolutions; papers call millions of multiply-adds MFLOPs."""
    plain = models.build(
        model, shape, classes=classes, head=HeadSpec(), conv="native", mapping=mapping
    )
    weights = jax.eval_shape(plain.init, jax.random.key(0))
    x = jnp.zeros((1, *shape), int if len(shape) == 1 else float)
    operations = flops.count(lambda w: plain.apply(w, x, train=False)[0].logits, weights)
    return Size(tree.num_elements(weights.params), operations // 2)


class Messages(NamedTuple):
    """How many bytes a client sends and receives in a round, with this model."""

    model: str
    up: int
    down: int


def messages(
    dataset: str, follow: Callable[[list[str]], Iterable[str]] = iter
) -> dict[str, Messages]:
    """Counts every method's bytes on a dataset.

    The network is the quick protocol's, or `resnet8` where the method needs blocks or norms.

    Args:
      dataset: the name of the dataset.
      follow: hands on the names of the methods and may show how far it is.
    """
    spec = sized(dataset, config.Data())
    pool = Pool(jnp.zeros((1, *spec.shape), jnp.uint8), jnp.zeros(1, jnp.int32))
    found = {}
    for name in follow(list(catalogue.bases())):
        cfg = protocols.resolve("quick", dataset, spec=name)
        for network in (cfg.model, "resnet8"):
            try:
                task = make_task(
                    dataclasses.replace(cfg, model=network), spec, method=registry.build(name)
                )
            except UserError:
                continue
            found[name] = Messages(network, *traffic(task, pool))
            break
    return found


def _where(job: Job) -> str:
    """Says where the examples are."""
    pool = tree.num_bytes(job.data.pool) / 1e6
    if job.host is None:
        return f"pool {pool:.1f} MB on the device"
    disk = "on disk" if isinstance(job.host.train_x, np.memmap) else "in host memory"
    return f"pool {job.host.num_bytes / 1e6:.1f} MB {disk}, {pool:.1f} MB of it on the device"


def _kilobytes(moved: tuple[int, int]) -> str:
    up, down = moved
    return f"{up / 1e3:.1f} kB, {down / 1e3:.1f} kB"


def _classes(counts: np.ndarray) -> str:
    held = (counts > 0).sum(axis=1)
    return f"{held.min()} to {held.max()} of {counts.shape[1]}"


def estimate(job: Job) -> dict[str, str]:
    """Returns about how long the rounds take on this machine, from a local step measured now.

    Steps of other phases count by their FLOPs; tests between rounds are left out.
    """
    if not job.executor.jit:
        return {}
    total, each = expected_seconds(job)
    about = f"about {duration(total)} on this machine, without tests"
    return {"time": f"{about} ({duration(each)} a local step, measured)"}


def expected_seconds(job: Job) -> tuple[float, float]:
    """Returns about how long all rounds take, and a local step, as it is measured now."""
    first = job.task.method.phases[0]
    each = step_seconds(job, first)
    steps = round_flops(job) / step_flops(job, first)
    at_once = min(job.executor.devices, job.config.federation.participants)
    return each * steps * job.config.rounds / at_once, each


def step_seconds(job: Job, phase: Phase) -> float:
    """Returns the seconds of one compiled local step on every device at once: a median."""
    task, state, pool = job.task, axis.take(first_state(job), 0), job.data.pool
    size = task.trainer.local.batch_size
    pool = Pool(jnp.zeros((size, *pool.x.shape[1:]), pool.x.dtype), jnp.zeros(size, pool.y.dtype))
    once = phase._replace(steps=1, epochs=None, share=1.0, repeats=None)

    @jax.jit
    def step(state, row, pool):
        broadcast = make_broadcast(task, state, hyper=make_hyper(task, 0), pool=pool)
        client = local.Client(
            pool, row.index, view=make_view(task, broadcast, row=row), key=row.key
        )
        return local.run_phase(
            task.trainer,
            once,
            term_weights=local.default_weights(phase),
            lr=broadcast.hyper.lr,
            client=client,
            start=client.view.received,
            opt=None,
            key=row.key,
        )[0]

    row = _one_batch(job, state)
    inputs = job.executor.place((dataclasses.replace(state, clients={}), row, pool))
    jax.block_until_ready(step(*inputs))
    times, end = [], time.perf_counter() + MEASURED_SECONDS
    while not times or (time.perf_counter() < end and len(times) < MEASURED_STEPS):
        start = time.perf_counter()
        jax.block_until_ready(step(*inputs))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _one_batch(job: Job, state: State) -> Row:
    """Returns a client that has one batch of examples."""
    size = job.task.trainer.local.batch_size
    return Row(
        jnp.asarray(0),
        jnp.arange(size),
        size=jnp.asarray(size, jnp.int32),
        steps=jnp.asarray(1, jnp.int32),
        class_counts=jnp.ones(job.spec.classes),
        relative_size=jnp.ones(()),
        key=state.key,
        state=tree.take(dict(state.clients), 0),
    )
