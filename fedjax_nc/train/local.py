"""The only place where a gradient step is taken.

A client's steps are a loop with its own trip count: under scan a small client costs only its own
steps, and under vmap jax freezes the finished ones. Nothing is differentiated through the loop.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_nc import config, tree
from fedjax_nc.methods.base import SGD, Context, Method, Phase, Repeat, View
from fedjax_nc.train import keys
from fedjax_nc.types import Hyper, Model, Pool, Table, Weights


class Trainer(NamedTuple):
    """What local training needs besides the client: all of it static."""

    model: Model
    local: config.Local
    make_batch: Any  # (pool, indices, mask, key) -> Batch


class Task(NamedTuple):
    """What is trained and how: the static side of a run."""

    method: Method
    trainer: Trainer
    federation: config.Federation


class Client(NamedTuple):
    """One client's side of a round."""

    pool: Pool
    index: jax.Array  # of its examples, padded
    view: View
    key: jax.Array
    share: jax.Array | None = None  # of every phase that a straggler does


def direction(local: config.Local) -> optax.GradientTransformation:
    """Returns the optimiser without its learning rate, which is a traced input of the round."""
    steps = [optax.clip_by_global_norm(local.clip)] if local.clip else []
    if local.weight_decay:
        steps.append(optax.add_decayed_weights(local.weight_decay))  # before momentum: PyTorch's
    if local.optimizer == "adam":
        steps.append(optax.scale_by_adam())
    elif local.momentum:
        steps.append(optax.trace(local.momentum, local.nesterov))
    return optax.chain(*steps) if steps else optax.identity()


def of_phase(
    local: config.Local, phase: Phase, lr: Any, view: View | None = None
) -> tuple[optax.GradientTransformation, Any]:
    """Returns a phase's optimiser, its own or the configuration's, and its learning rate."""
    own = phase.optimizer
    if own is None:
        return direction(local), lr
    if not isinstance(own, SGD):
        assert view is not None
        return own(view), 1.0
    plain = dataclasses.replace(
        local,
        optimizer="sgd",
        momentum=own.momentum,
        nesterov=False,
        weight_decay=own.weight_decay,
        clip=0.0,
    )
    return direction(plain), lr if own.lr is None else own.lr


def loop_counts(
    phase: Phase, local: config.Local, *, size: jax.Array, share: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns how often the data is shuffled, and how many steps follow each shuffle.

    A fixed number of steps shuffles before each. The one-sample last batch of an epoch is kept
    unless `drop_last`; a client smaller than a batch always keeps its only one; an empty one has
    none. A straggler does a share of the shuffles, rounded up: of E epochs, a uniform share above
    0 gives 1 to E with equal probability.
    """
    fixed = phase.steps or (local.steps if phase.epochs is None else 0)
    if fixed:
        return jnp.where(size > 0, _done(fixed, share), 0), jnp.asarray(1)
    size = seen_in_epoch(phase, size)
    full = size // local.batch_size
    per_epoch = full if local.drop_last else -(-size // local.batch_size)
    epochs = phase.epochs(local.epochs) if callable(phase.epochs) else phase.epochs
    epochs = local.epochs if epochs is None else epochs
    shuffles = jnp.asarray(_done(epochs, share))
    steps = jnp.where(size > 0, jnp.maximum(per_epoch, 1), 0)
    if phase.visits is None:
        return shuffles, steps
    return shuffles, jnp.where(size > 0, phase.visits(steps, epochs), 0)


def _done(count: int, share: jax.Array | None) -> Any:
    """Returns how many of so many shuffles are done."""
    return count if share is None else jnp.ceil(share * count).astype(jnp.int32)


def seen_in_epoch(phase: Phase, size: jax.Array) -> jax.Array:
    """Returns how many of a client's examples an epoch visits."""
    return size if phase.share == 1 else jnp.ceil(phase.share * size).astype(size.dtype)


def make_objective(trainer: Trainer, phase: Phase, term_weights, client: Client, start: Weights):
    """Makes the local objective, a function of (trainable groups, statistics, batch, key)."""
    view, trains_body = client.view, phase.train is None or "body" in phase.train

    def objective(trainable, stats, batch, key, wanted=lambda name: True):
        weights = Weights({**start.params, **trainable}, stats)
        key_model, key_terms = jax.random.split(key)
        batches = phase.augment(batch, jax.random.fold_in(key, keys.AUGMENTED_BATCH))
        batch = batches[0][0]  # all have its x
        out, new_stats = trainer.model.apply(
            weights, batch.x, train=True, mask=batch.mask, key=key_model
        )
        terms = [t if wanted(t.name) else t._replace(fn=_nothing) for t in phase.terms]
        values = [jnp.zeros(()) for _ in terms]
        context = Context(
            trainer.model,
            weights,
            received=view.received,
            batch=batch,
            out=out,
            shared=view.shared,
            client=view.client,
            info=view.info,
            key=key_terms,
        )
        for seen, share in batches:
            of_batch = dataclasses.replace(context, batch=seen)
            values = [v + share * term.fn(of_batch) for v, term in zip(values, terms, strict=True)]
        total = sum((w * v for w, v in zip(term_weights, values, strict=True)), jnp.zeros(()))
        named = {t.name: v for t, v in zip(phase.terms, values, strict=True)} | {"loss": total}
        return total, (new_stats if trains_body else stats, named)

    return objective


def run_phase(
    trainer: Trainer, phase: Phase, term_weights, lr, client: Client, start: Weights, opt, key
) -> tuple[Weights, Any, dict[str, jax.Array]]:
    """Trains one phase; returns the weights, the optimiser's state and sums of every term."""
    local, size = trainer.local, client.view.info.size
    groups = tuple(start.params) if phase.train is None else phase.train
    tx, lr = of_phase(local, phase, lr=lr, view=client.view)
    objective = make_objective(
        trainer, phase, term_weights=term_weights, client=client, start=start
    )
    gradient = phase.grad(jax.value_and_grad(objective, has_aux=True), client.view)
    batch_size, seen = local.batch_size, seen_in_epoch(phase, size)
    shuffles, steps = loop_counts(phase, local, size=size, share=client.share)
    shuffles = shuffles if phase.repeats is None else shuffles * phase.repeats(client.view)
    again = phase._replace(visits=None) if phase.visits else None
    batches = loop_counts(again, local, size=size)[1] if again else None

    def epoch(i, carry):
        key_order, key_epoch = jax.random.split(jax.random.fold_in(key, i))
        order = shuffled(key_order, client.index, size=size, batch_size=batch_size)

        def step(j, carry):
            trainable, stats, opt, sums = carry
            key_batch, key_step = jax.random.split(jax.random.fold_in(key_epoch, j))
            j = j if batches is None else j % batches
            indices = lax.dynamic_slice(order, (j * batch_size,), (batch_size,))
            mask = j * batch_size + jnp.arange(batch_size) < seen
            batch = trainer.make_batch(client.pool, indices, mask, key_batch)
            (_, (stats, values)), grads = gradient(trainable, stats, batch, key_step)
            updates, opt = tx.update(grads, opt, trainable)
            if phase.moves:
                updates = _stepping(updates, phase.moves(i, local.epochs))
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


class Trained(NamedTuple):
    """What local training leaves behind."""

    weights: Weights
    slots: dict[str, Weights]  # models of phases with a slot
    opts: tuple  # the optimiser's state of each phase
    sums: dict[str, jax.Array]  # the last phase's that trains: others have other objectives
    seen: Any  # what `watch` gave after each phase and each cycle, stacked


def run_phases(
    trainer: Trainer,
    phases: tuple[Phase | Repeat, ...],
    hyper: Hyper,
    client: Client,
    opts=None,
    watch: Callable[[Weights], Any] = lambda weights: {},
) -> Trained:
    """Trains phases one after another, from what the client received."""
    weights, slots, sums, new_opts, seen = client.view.received, {}, {}, [], []
    turns: dict[str | None, int] = {}  # models that are trained side by side see the same batches
    for n, phase in enumerate(phases):
        slot = None if isinstance(phase, Repeat) else phase.slot
        key = jax.random.fold_in(client.key, turns.setdefault(slot, 0))
        turns[slot] += 1
        if isinstance(phase, Repeat):
            weights, history = _repeat(
                trainer, phase, lr=hyper.lr, client=client, weights=weights, key=key, watch=watch
            )
            seen.append(history)
            continue
        term_weights = hyper.term_weights[n] if hyper.term_weights else default_weights(phase)
        opt = None if opts is None or callable(phase.optimizer) else opts[n]
        known = {**client.view.client, **slots}
        if phase.start is not None:
            start = phase.start(weights, tuple(new_opts), client.view)
        else:
            start = weights if slot is None else known[slot]
        new, opt, last = run_phase(
            trainer,
            phase,
            term_weights=term_weights,
            lr=hyper.lr,
            client=client._replace(view=client.view._replace(client=known)),
            start=start,
            opt=opt,
            key=key,
        )
        sums = sums if phase.epochs == 0 else last
        slots |= {slot: new} if slot else {}
        weights = weights if slot else new
        new_opts.append(opt)
        seen.append(jax.tree.map(lambda x: x[None], watch(new)))
    return Trained(
        weights,
        slots,
        opts=tuple(new_opts),
        sums=sums,
        seen=jax.tree.map(lambda *x: jnp.concatenate(x), *seen),
    )


def _repeat(trainer, repeat, lr, client, weights, key, watch):
    """Alternates phases as a loop, and stacks what `watch` sees after each cycle."""

    def cycle(weights, i):
        for n, phase in enumerate(repeat.phases):
            phase_key = jax.random.fold_in(jax.random.fold_in(key, i), n)
            weights, _, _ = run_phase(
                trainer,
                phase,
                term_weights=default_weights(phase),
                lr=lr,
                client=client,
                start=weights,
                opt=None,
                key=phase_key,
            )
        return weights, watch(weights)

    return lax.scan(cycle, weights, jnp.arange(repeat.times))


def sum_over(
    trainer: Trainer,
    batch_size: int,
    weights: Weights,
    pool: Pool,
    row: Table,
    fn: Callable[..., Any],
    key: jax.Array | None = None,
    start: Any = None,
) -> Any:
    """Sums fn(outputs, batch) over a row of examples, the network in evaluation mode.

    Args:
      trainer: the network and how batches are made.
      batch_size: examples of a step; the row takes as many steps as it needs.
      weights: of the network.
      pool: where the examples are.
      row: which examples they are.
      fn: what is summed.
      key: if given, batches are augmented as in training.
      start: the sum of what came before.
    """
    index = jnp.pad(row.index, (0, -row.index.shape[0] % batch_size))

    def one(i):
        indices = lax.dynamic_slice(index, (i * batch_size,), (batch_size,))
        mask = i * batch_size + jnp.arange(batch_size) < row.size
        key_batch = None if key is None else jax.random.fold_in(key, i)
        batch = trainer.make_batch(pool, indices, mask, key_batch)
        out, _ = trainer.model.apply(weights, batch.x, train=False, mask=mask)
        return fn(out, batch)

    start = tree.zeros(jax.eval_shape(one, 0)) if start is None else start
    steps = -(-row.size // batch_size)
    return lax.fori_loop(0, steps, lambda i, total: tree.add(total, one(i)), start)


def _stepping(updates: Any, moves: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the updates of the groups that step, and zeros of the others."""
    return {group: tree.scale(moves[group], update) for group, update in updates.items()}


def _nothing(context: Context) -> jax.Array:
    """Returns zero in place of a term that is not wanted."""
    del context
    return jnp.zeros(())


def default_weights(phase: Phase) -> tuple[jax.Array, ...]:
    """Returns the term weights as written, ready to be traced."""
    return tuple(jnp.asarray(t.weight, jnp.result_type(float)) for t in phase.terms)


def shuffled(key: jax.Array, index: jax.Array, size: jax.Array, batch_size: int) -> jax.Array:
    """Returns a client's examples in random order, real ones first, padded to whole batches."""
    slots = jnp.arange(index.shape[0])
    draw = jnp.where(slots < size, jax.random.uniform(key, index.shape, jnp.float32), 2.0)
    order = index[jnp.argsort(draw)]
    return jnp.pad(order, (0, -index.shape[0] % batch_size), mode="edge")
