"""Counts the forward passes of a client's step under a method, and the parameters it holds."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_nc import flops, tree
from fedjax_nc.host.assemble import Job, build_model
from fedjax_nc.methods.base import Phase
from fedjax_nc.train import local
from fedjax_nc.train.client import Broadcast, Row, make_view, sent
from fedjax_nc.train.local import Task
from fedjax_nc.train.round import build
from fedjax_nc.train.schedule import make_hyper
from fedjax_nc.types import Model, Outputs, Pool, Weights

EXAMPLES = 2  # of the batch that is traced
DRAWS, MORE_DRAWS = 8, 4000  # of a step's randomness; more where the first ones differ


class Cost(NamedTuple):
    """The columns of FedAlign's table 5."""

    multiply_adds: float  # of all forward passes for an example seen once, on average
    parameters: int  # that a client holds while it trains


def cost_of(job: Job) -> Cost:
    """Counts a job's method on its network and data."""
    return cost(plain_task(job), job.data.pool)


def plain_task(job: Job) -> Task:
    """Returns the task on plain convolutions, whatever the run's lowering computes instead."""
    model = build_model(
        job.config, job.spec, method=job.task.method, module=job.given.model, conv="native"
    )
    return job.task._replace(trainer=job.task.trainer._replace(model=model))


def cost(task: Task, pool: Pool) -> Cost:
    """Counts the passes of a method and what its client holds; nothing is trained.

    A phase counts as often as it sees an example beside the run's own epochs or steps. Held are the
    model, the received one if a step reads it, and what the method's parts send and keep;
    statistics of BatchNorm and the optimiser's state are left out.
    """
    settings = task.trainer.local
    steps = [_steps(phase, settings) for phase in task.method.phases]
    found = [_count(task, phase, pool=pool) for phase in task.method.phases]
    each = [n * work for n, (work, _) in zip(steps, found, strict=True)]
    weights, shared, own = jax.eval_shape(lambda key: build(task, key), jax.random.key(0))
    kept = [state for name, state in own.items() if name not in ("personal", "optimizer")]
    models = (weights,) * (2 if any(reads for _, reads in found) else 1)
    held = _numbers((models, sent(task.method, shared), kept))
    return Cost(sum(each) / _steps(Phase(()), settings), held)


def _steps(phase: Phase, settings: Any) -> float:
    """Returns the steps of a phase for a client of many batches."""
    shuffles, each = local.loop_counts(phase, settings, size=jnp.asarray(100 * settings.batch_size))
    return float(shuffles * each)


def _numbers(held: Any) -> int:
    """Counts numbers as FedAlign's table 5 does, without those of normalisation."""
    own = jax.tree.map(
        lambda x: x.params if isinstance(x, Weights) else x,
        held,
        is_leaf=lambda x: isinstance(x, Weights),
    )
    leaves = jax.tree_util.tree_leaves_with_path(own)
    return sum(x.size for path, x in leaves if "Norm" not in jax.tree_util.keystr(path))


def _count(task: Task, phase: Phase, pool: Pool) -> tuple[float, bool]:
    """Returns the multiply-adds of a step per example, and whether it reads the received model."""
    tally: Counter[Any] = Counter()
    works: dict[Any, Any] = {}
    model = _pretending(task.trainer.model, tally, works=works)
    trainer = task.trainer._replace(model=model)
    few = Pool(
        jnp.zeros((EXAMPLES, *pool.x.shape[1:]), pool.x.dtype), jnp.zeros(EXAMPLES, jnp.int32)
    )

    def step(weights: Weights, received: Weights, shared: Any, state: Any, key: jax.Array):
        size = jnp.asarray(EXAMPLES)
        row = Row(
            jnp.asarray(0),
            jnp.arange(EXAMPLES),
            size=size,
            steps=jnp.asarray(1),
            class_counts=jnp.ones(weights.params["head"]["kernel"].shape[1]),
            relative_size=jnp.ones(()),
            key=key,
            state=state,
        )
        hyper = make_hyper(task, 0)
        broadcast = Broadcast(received, sent(task.method, shared), hyper=hyper, pool=few)
        view = make_view(task, broadcast, row=row)
        objective = local.make_objective(
            trainer,
            phase,
            term_weights=local.default_weights(phase),
            client=local.Client(few, row.index, view=view, key=key),
            start=weights,
        )

        def value_and_grad(*args: Any):  # only the forward passes
            value = objective(*args)
            return value, tree.scale(value[0], args[0])

        groups = tuple(weights.params) if phase.train is None else phase.train
        trainable = tree.pick(weights.params, groups)
        batch = trainer.make_batch(few, row.index, row.index >= 0, None)
        gradient = phase.grad(value_and_grad, view)
        value, grads = gradient(trainable, weights.stats, batch, key)
        tx, _ = local.of_phase(trainer.local, phase, lr=hyper.lr, view=view)
        return value[0], tx.update(grads, tx.init(trainable), trainable)[0]

    weights, shared, own = tree.zeros(
        jax.eval_shape(lambda key: build(task, key), jax.random.key(0))
    )
    reads = flops.used(step, weights, weights, shared, own, jax.random.key(0))[1][1]

    @jax.jit
    def several(keys):
        return lax.map(lambda key: step(weights, weights, shared, own, key)[0], keys)

    def draw(number: int) -> None:
        tally.clear()
        jax.block_until_ready(several(jax.random.split(jax.random.key(0), number)))
        jax.effects_barrier()

    draw(draws := DRAWS)
    if any(times % draws for times in tally.values()):
        draw(draws := MORE_DRAWS)
    total = sum(times * works[name]() for name, times in tally.items())
    return total / draws / EXAMPLES, any(jax.tree.leaves(reads.params))


def _pretending(model: Model, tally: Counter[Any], *, works: dict[Any, Any]) -> Model:
    """Returns a model that computes nothing, and notes each of its passes when it is run.

    Args:
      model: the network, whose outputs have their shapes and are zero.
      tally: how often each pass is run, by its name.
      works: a function for the multiply-adds of each pass, by the same name.
    """
    known: dict[Any, Any] = {}

    def run(name: Any, fn: Callable[..., Any], charged: Callable[..., Any], params, *args) -> Any:
        name = (*name, args[0].shape)
        if name not in known:
            inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params, *args))
            out = known[name] = jax.eval_shape(fn, *inputs)
            works[name] = lambda: flops.count(charged, *inputs) // 2 + _averaged(out)
        read = jnp.sum(jnp.stack([jnp.ravel(leaf)[0] for leaf in jax.tree.leaves(params)]))
        jax.debug.callback(lambda _: tally.update([name]), read)
        return jax.tree.map(
            lambda s: jnp.zeros(s.shape, s.dtype) + (0 * read).astype(s.dtype), known[name]
        )

    def apply(weights, x, *, train, mask=None, key=None, width=1.0):
        def whole(weights, x, mask, key, train=train):
            return model.apply(weights, x, train=train, mask=mask, key=key, width=width)[0]

        def logits(*args):  # without the batch's statistics
            return whole(*args, train=False).logits

        return run(("apply", train, width), whole, logits, weights, x, mask, key), weights.stats

    def head(params, features):
        return run(("head",), model.head, model.head, params, features)

    def last_stage(weights, x, *, width, mask=None):
        def stage(weights, x, mask):
            assert model.last_stage is not None
            return model.last_stage(weights, x, width=width, mask=mask)

        return run(("last stage", width), stage, stage, weights, x, mask)

    return model._replace(
        apply=apply, head=head, last_stage=None if model.last_stage is None else last_stage
    )


def _averaged(out: Any) -> int:
    """Counts the numbers of the last map if its averages are the features.

    FedAlign's 87.3 MFLOPs have them; normalisation and activations are left out there, too.
    """
    if not isinstance(out, Outputs) or not out.blocks:
        return 0
    last = out.blocks[-1]
    return last.size if last.ndim == 4 and last.shape[-1] == out.features.shape[-1] else 0
