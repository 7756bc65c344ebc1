"""The only round: sample clients, train them, sum their uploads, apply the server's rule."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_nc import config, processes, tree
from fedjax_nc.methods.base import Arrived, Finished, Method, Part, Setup, trained_groups
from fedjax_nc.train import keys, local, schedule
from fedjax_nc.train.client import (
    Broadcast,
    Row,
    first_client_state,
    make_broadcast,
    make_rows,
    personal_of,
    train_client,
)
from fedjax_nc.train.executors import Executor
from fedjax_nc.train.local import Task
from fedjax_nc.train.seeds import ONE, Seeds
from fedjax_nc.types import FederatedData, Hyper, State, Weights


class RoundMetrics(NamedTuple):
    """What a round reports; the host fetches it while the next round runs."""

    sums: dict[str, jax.Array]  # per term: sum over examples; "examples" counts them
    ids: jax.Array  # participants
    finite: jax.Array  # per participant: no NaN or infinity in what the server gets of it
    # per participant, where the configuration says that it may happen
    dropped: jax.Array | None = None  # it never answered
    stragglers: jax.Array | None = None  # it did fewer epochs
    diverged: jax.Array | None = None  # it is left out: its upload or its state is not finite


RoundFn = Callable[[State, Hyper, FederatedData], tuple[State, RoundMetrics]]
RoundsFn = Callable[[State, Hyper, Any, FederatedData], tuple[State, RoundMetrics]]


def init_state(task: Task, key: jax.Array, *, host_above: float = float("inf")) -> State:
    """Returns one seed's state before the first round.

    Args:
      task: the static side of the run.
      key: the run's key.
      host_above: client state of more bytes than this is in host memory, as numpy arrays that only
        show one client's state again and again: nobody has written to them yet.
    """
    clients = task.federation.clients
    weights, shared, own = build(task, key)
    if clients * tree.num_bytes(own) > host_above:
        own = jax.tree.map(lambda x: np.broadcast_to(x, (clients, *x.shape)), own)
    else:
        own = jax.jit(tree.repeat, static_argnums=1)(own, clients)
    return State(jnp.zeros((), jnp.int32), key, weights=weights, shared=shared, clients=own)


@partial(jax.jit, static_argnums=0)
def build(task: Task, key: jax.Array) -> tuple[Weights, dict[str, Any], dict[str, Any]]:
    """Returns the first weights, the server's shared state, and one client's state."""
    weights = task.trainer.model.init(keys.of_run(key, keys.INITIAL_WEIGHTS))
    setup = Setup(weights, task.federation.clients)
    parts = task.method.parts
    shared = {p.name: p.init_shared(setup) for p in parts if p.init_shared}
    own = {p.name: p.init_client(setup) for p in parts if p.init_client}
    return weights, shared, first_client_state(task, weights, parts=own)


def make_client(task: Task) -> Callable[[Broadcast, Row], tuple[Any, Any]]:
    """Makes one client's round: train, keep its state, upload weighted sums."""
    method, trainer, federation = task

    def client(broadcast: Broadcast, row: Row) -> tuple[Any, Any]:
        view, trained = train_client(task, broadcast, row=row)

        def over_data(fn, augment=False):
            key = jax.random.fold_in(row.key, keys.OVER_DATA)
            return local.sum_over(
                trainer,
                trainer.local.batch_size,
                weights=trained.weights,
                pool=broadcast.pool,
                row=row.table,
                fn=fn,
                key=key if augment else None,
            )

        active = row.size > 0  # a client without data changes nothing
        kind = method.weights or federation.weights
        weight = _weight(kind, trainer.local, size=row.size)
        finished = Finished(
            view.received,
            trained.weights,
            shared=broadcast.shared,
            client=row.state,
            info=view.info,
            weight=weight,
            slots=trained.slots,
            opts=trained.opts,
            over_data=over_data,
        )
        new = {p.name: p.keep(finished) for p in method.parts if p.keep}
        if method.personal:
            new["personal"] = personal_of(method, trained.weights)
        if trainer.local.keep_optimizer:
            new["optimizer"] = tuple(
                () if callable(p.optimizer) else opt
                for p, opt in zip(method.phases, trained.opts, strict=True)
            )
        update = tree.sub(upload_of(method, trained.weights), upload_of(method, broadcast.weights))
        upload = {
            "update": tree.scale(weight, method.update(update, view.info)),
            "weight": weight,
            "clients": jnp.ones_like(weight),
            "sums": trained.sums,
        }
        upload |= {p.name: p.collect(finished) for p in method.parts if p.collect}
        old, counts = tree.pick(dict(row.state), tuple(new)), active
        if federation.nan == "skip":
            counts = active & tree.all_finite((upload, new))
        client_state = {**row.state, **tree.select(counts, new, b=old)}
        upload = tree.pack(upload)
        upload = tree.select(counts, upload, b=tree.zeros_like(upload))
        out = {"state": client_state, "finite": tree.all_finite(upload)}
        return out | ({"diverged": active & ~counts} if federation.nan == "skip" else {}), upload

    return client


def make_round(task: Task, executor: Executor, *, clients_on_host: bool = False) -> RoundFn:
    """Makes the round of one seed, a function of (state, hyper, data) that is compiled once.

    Args:
      task: the static side of the run.
      executor: how clients are run.
      clients_on_host: whether `state.clients` holds numpy arrays, of which only the participants'
        rows move to the devices.
    """
    choose, core, on_device = _pieces(task, executor)
    if not executor.jit:
        return on_device
    if not clients_on_host:
        return executor.compile_rounds(on_device)

    choose = jax.jit(choose, out_shardings=executor.everywhere)
    core = jax.jit(core, donate_argnums=(0, 1), out_shardings=executor.everywhere)

    def on_host(state: State, hyper: Hyper, data: FederatedData) -> tuple[State, RoundMetrics]:
        ids = choose(state.key, state.round)
        chosen = np.asarray(ids)
        rows = executor.place(tree.take(state.clients, chosen))
        new, rows, metrics = core(dataclasses.replace(state, clients={}), rows, ids, hyper, data)
        rows = jax.tree.map(np.asarray, processes.until_ready(rows))
        return dataclasses.replace(new, clients=tree.put(state.clients, chosen, rows=rows)), metrics

    return on_host


def make_rounds(task: Task, executor: Executor, *, at_once: int, seeds: Seeds = ONE) -> RoundsFn:
    """Makes several rounds without a word to the host between them, compiled once.

    The result is a function of (state, hyper, count, data) for a state with an axis of seeds.
    `hyper.lr` holds `at_once` learning rates and the metrics as many rounds, of which `count` are
    run; the metrics' axes are rounds, then seeds.
    """
    _, _, one_round = _pieces(task, executor)
    one_round = jax.jit(seeds.over(one_round, (0, None, seeds.data)), inline=True)

    def run(state, hyper, count, data):
        def body(i, carry):
            state, metrics = carry
            state, new = one_round(state, hyper._replace(lr=hyper.lr[i]), data)
            return state, tree.put(metrics, i, rows=new)

        first = hyper._replace(lr=hyper.lr[0])
        shapes = jax.eval_shape(lambda *x: one_round(*x)[1], state, first, data)
        return lax.fori_loop(0, count, body, (state, tree.zeros(shapes, at_once)))

    return executor.compile_rounds(run, axes=1)


def _pieces(task: Task, executor: Executor):
    """Returns who takes part, the round of those, and both with client state on the device."""
    method, trainer, federation = task
    client = make_client(task)

    def choose(key, round_number):
        return schedule.participants(key, round_number, federation=federation)

    def exchange(broadcast: Broadcast, row: Row) -> tuple[Any, Any]:
        sums = partial(
            local.sum_over,
            trainer,
            trainer.local.batch_size,
            weights=broadcast.weights,
            pool=broadcast.pool,
            row=row.table,
        )
        return {}, {p.name: sums(fn=p.exchange) for p in method.parts if p.exchange}

    def core(state, client_state, ids, hyper, data):
        key = keys.of_round(state.key, state.round, stream=keys.LOCAL_TRAINING)
        odd = schedule.odd_clients(state.key, state.round, ids=ids, federation=federation)
        rows = make_rows(task, key, ids=ids, data=data, client_state=client_state, odd=odd)
        broadcast = make_broadcast(task, state, hyper=hyper, pool=data.pool)
        out, packed = executor.run(client, broadcast, rows, rows.steps)
        diverged = out.get("diverged")
        sums = tree.unpack(packed)
        total = jnp.maximum(sums["weight"], jnp.finfo(sums["weight"].dtype).tiny)
        arrived = Arrived(
            upload_of(method, state.weights),
            tree.scale(1.0 / total, sums["update"]),
            uploads=sums,
            weight=sums["weight"],
            clients=sums["clients"],
            num_clients=federation.clients,
        )

        def reduced(shared: dict[str, Any], sums: Any, parts: list[Part]) -> dict[str, Any]:
            return shared | {
                p.name: p.reduce(shared[p.name], sums.get(p.name), arrived)
                for p in parts
                if p.reduce
            }

        shared = reduced(dict(state.shared), sums, [p for p in method.parts if not p.exchange])
        # groups nobody trains and personal ones are not in the update: they stay bit for bit
        new = method.server(arrived, shared)
        weights = Weights(state.weights.params | new.params, new.stats or state.weights.stats)
        later = [p for p in method.parts if p.exchange]
        if later:
            again = broadcast._replace(weights=weights)
            if diverged is not None:  # who is left out of the first exchange is so of the second
                rows = rows._replace(size=jnp.where(diverged, 0, rows.size))
            _, second = executor.run(exchange, again, rows, rows.steps)
            shared = reduced(shared, second, later)
        # a round in which nobody has data changes nothing
        weights, shared = tree.select(
            sums["clients"] > 0, (weights, shared), b=(state.weights, dict(state.shared))
        )
        new_state = dataclasses.replace(
            state, round=state.round + 1, weights=weights, shared=shared, clients={}
        )
        metrics = RoundMetrics(
            sums["sums"],
            ids,
            finite=out["finite"],
            dropped=odd.dropped,
            stragglers=None if odd.share is None else (odd.share < 1) & (rows.steps > 0),
            diverged=diverged,
        )
        return new_state, out["state"], metrics

    def on_device(state, hyper, data):
        ids = choose(state.key, state.round)
        new, rows, metrics = core(state, executor.rows(state.clients, ids), ids, hyper, data)
        clients = executor.with_rows(state.clients, ids, rows)
        return dataclasses.replace(new, clients=clients), metrics

    return choose, core, on_device


def upload_of(method: Method, weights: Weights) -> Weights:
    """Returns the groups a client sends: those it trains without the personal ones.

    BatchNorm's statistics go with the body.
    """
    groups = [g for g in trained_groups(method, tuple(weights.params)) if g not in method.personal]
    stats = weights.stats if "body" in groups else {}
    return Weights(tree.pick(weights.params, tuple(groups)), stats)


def _weight(kind: str, settings: config.Local, size: jax.Array) -> jax.Array:
    """Returns a client's weight in the server's mean."""
    if kind == "equal":
        return jnp.ones(())
    if kind == "batches":
        size = jnp.maximum(size // settings.batch_size, 1)
    return size.astype(jnp.result_type(float))
