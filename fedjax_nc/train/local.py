"""The only place where a gradient step is taken.

A client's steps are a loop with its own trip count: under scan a small client costs only its own
steps, and under vmap jax freezes the finished ones. Nothing is differentiated through the loop.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_nc import config, tree
from fedjax_nc.data.federated import Pool
from fedjax_nc.methods.base import Context, Phase, Repeat, View
from fedjax_nc.types import Hyper, Model, Weights


class Trainer(NamedTuple):
    """What local training needs besides the client: all of it static."""

    model: Model
    local: config.Local
    batches: Any  # (pool, numbers, mask, key) -> Batch


class Client(NamedTuple):
    """One client's side of a round."""

    pool: Pool
    index: jax.Array  # numbers of its examples, padded
    view: View
    key: jax.Array


def direction(local: config.Local) -> optax.GradientTransformation:
    """The optimiser without its learning rate, which is a traced input of the round."""
    steps = [optax.clip_by_global_norm(local.clip)] if local.clip else []
    if local.weight_decay:
        steps.append(optax.add_decayed_weights(local.weight_decay))  # before momentum: PyTorch's
    if local.optimizer == "adam":
        steps.append(optax.scale_by_adam())
    elif local.momentum:
        steps.append(optax.trace(local.momentum, local.nesterov))
    return optax.chain(*steps) if steps else optax.identity()


def loop_counts(phase: Phase, local: config.Local, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How often the data is shuffled, and steps after each shuffle.

    Fixed steps shuffle before each. The one-sample last batch of an epoch is kept unless
    `drop_last`; a client smaller than a batch always keeps its only one; an empty one has none.
    """
    if local.steps and phase.epochs is None:
        return jnp.where(size > 0, local.steps, 0), jnp.asarray(1)
    full = size // local.batch_size
    per_epoch = full if local.drop_last else -(-size // local.batch_size)
    epochs = local.epochs if phase.epochs is None else phase.epochs
    return jnp.asarray(epochs), jnp.where(size > 0, jnp.maximum(per_epoch, 1), 0)


def make_objective(trainer: Trainer, phase: Phase, term_weights, client: Client, start: Weights):
    """The local objective, a function of (trainable groups, statistics, batch, key)."""
    view, trains_body = client.view, phase.train is None or "body" in phase.train

    def objective(trainable, stats, batch, key):
        weights = Weights({**start.params, **trainable}, stats)
        key_model, key_terms = jax.random.split(key)
        out, new_stats = trainer.model.apply(
            weights, batch.x, train=True, mask=batch.mask, key=key_model
        )
        context = Context(trainer.model, weights, view.received, batch, out, view.shared,
                          view.client, view.info, key_terms)  # fmt: skip
        values = [term.fn(context) for term in phase.terms]
        total = sum((w * v for w, v in zip(term_weights, values, strict=True)), jnp.zeros(()))
        named = {t.name: v for t, v in zip(phase.terms, values, strict=True)} | {"loss": total}
        return total, (new_stats if trains_body else stats, named)

    return objective


def run_phase(
    trainer: Trainer, phase: Phase, term_weights, lr, client: Client, start: Weights, opt, key
) -> tuple[Weights, Any, dict[str, jax.Array]]:
    """Train one phase; returns the weights, the optimiser's state and sums of every term."""
    local, size = trainer.local, client.view.info.size
    groups = tuple(start.params) if phase.train is None else phase.train
    tx = direction(local)
    objective = make_objective(trainer, phase, term_weights, client, start)
    gradient = phase.grad(jax.value_and_grad(objective, has_aux=True), client.view)
    batch_size = local.batch_size
    shuffles, steps = loop_counts(phase, local, size)

    def epoch(i, carry):
        key_order, key_epoch = jax.random.split(jax.random.fold_in(key, i))
        order = shuffled(key_order, client.index, size, batch_size)

        def step(j, carry):
            trainable, stats, opt, sums = carry
            key_batch, key_step = jax.random.split(jax.random.fold_in(key_epoch, j))
            numbers = lax.dynamic_slice(order, (j * batch_size,), (batch_size,))
            mask = j * batch_size + jnp.arange(batch_size) < size
            batch = trainer.batches(client.pool, numbers, mask, key_batch)
            (_, (stats, values)), grads = gradient(trainable, stats, batch, key_step)
            updates, opt = tx.update(grads, opt, trainable)
            trainable = jax.tree.map(lambda p, u: p - (lr * u).astype(p.dtype), trainable, updates)
            count = jnp.sum(mask)
            sums = {k: sums[k] + count * values[k] for k in values} | {
                "examples": sums["examples"] + count
            }
            return trainable, stats, opt, sums

        return lax.fori_loop(0, steps, step, carry)

    trainable = tree.pick(start.params, groups)
    names = [*(t.name for t in phase.terms), "loss", "examples"]
    sums = {name: jnp.zeros(()) for name in names}
    opt = tx.init(trainable) if opt is None else opt
    carry = (trainable, start.stats, opt, sums)
    trainable, stats, opt, sums = lax.fori_loop(0, shuffles, epoch, carry)
    return Weights({**start.params, **trainable}, stats), opt, sums


def run_phases(
    trainer: Trainer, phases: tuple[Phase | Repeat, ...], hyper: Hyper, client: Client, opts=None
) -> tuple[Weights, tuple, dict[str, jax.Array]]:
    """Train phases one after another from what the client received.

    The sums are the last phase's: with several phases they describe different objectives.
    """
    weights, sums, new_opts = client.view.received, {}, []
    for n, phase in enumerate(phases):
        key = jax.random.fold_in(client.key, n)
        if isinstance(phase, Repeat):
            weights = _repeat(trainer, phase, hyper.lr, client, weights, key)
            continue
        term_weights = hyper.term_weights[n] if hyper.term_weights else default_weights(phase)
        opt = None if opts is None else opts[n]
        lr = hyper.lr if phase.lr is None else phase.lr
        weights, opt, sums = run_phase(trainer, phase, term_weights, lr, client, weights, opt, key)
        new_opts.append(opt)
    return weights, tuple(new_opts), sums


def _repeat(trainer, repeat, lr, client, weights, key):
    def cycle(i, weights):
        for n, phase in enumerate(repeat.phases):
            phase_lr = lr if phase.lr is None else phase.lr
            phase_key = jax.random.fold_in(jax.random.fold_in(key, i), n)
            weights, _, _ = run_phase(
                trainer, phase, default_weights(phase), phase_lr, client, weights, None, phase_key
            )
        return weights

    return lax.fori_loop(0, repeat.times, cycle, weights)


def default_weights(phase: Phase) -> tuple[jax.Array, ...]:
    """The term weights as written, ready to be traced."""
    return tuple(jnp.asarray(t.weight, jnp.result_type(float)) for t in phase.terms)


def shuffled(key: jax.Array, index: jax.Array, size: jax.Array, batch_size: int) -> jax.Array:
    """The client's examples in random order, real ones first, long enough for a last batch."""
    slots = jnp.arange(index.shape[0])
    draw = jnp.where(slots < size, jax.random.uniform(key, index.shape, jnp.float32), 2.0)
    order = index[jnp.argsort(draw)]
    return jnp.pad(order, (0, -index.shape[0] % batch_size), mode="edge")
