"""The only round: sample, train locally, sum, apply the server's rule."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_nc import config, tree
from fedjax_nc.methods.base import Arrived, Finished, Method, Setup, View, trained_groups
from fedjax_nc.train import local, schedule
from fedjax_nc.train.executors import Executor
from fedjax_nc.train.local import Task
from fedjax_nc.types import ClientInfo, FederatedData, Hyper, State, Table, Weights


class RoundMetrics(NamedTuple):
    """What a round reports; fetched by the host while the next one runs."""

    sums: dict[str, jax.Array]  # per term: sum over examples; "examples" counts them
    ids: jax.Array  # participants
    finite: jax.Array  # per participant: no NaN or infinity in what it uploads


RoundFn = Callable[[State, Hyper, FederatedData], tuple[State, RoundMetrics]]
RoundsFn = Callable[[State, Hyper, Any, FederatedData], tuple[State, RoundMetrics]]


def init_state(task: Task, key: jax.Array, *, host_above: float = float("inf")) -> State:
    """The state before the first round; client state of more bytes than that is in host memory."""
    clients = task.federation.clients
    weights, shared, kept = build(task, key)
    if clients * tree.num_bytes(kept) > host_above:
        kept = jax.tree.map(lambda x: np.broadcast_to(x, (clients, *x.shape)).copy(), kept)
    else:
        kept = jax.jit(tree.repeat, static_argnums=1)(kept, clients)
    return State(jnp.zeros((), jnp.int32), key, weights=weights, shared=shared, clients=kept)


@partial(jax.jit, static_argnums=0)
def build(task: Task, key: jax.Array) -> tuple[Weights, dict[str, Any], dict[str, Any]]:
    """Weights, shared state, and one client's state."""
    # no round has this number: split and fold_in give the same keys, so 0 would be round 0's
    weights = task.trainer.model.init(jax.random.fold_in(key, 2**32 - 1))
    setup = Setup(weights, task.federation.clients)
    parts = task.method.parts
    shared = {p.name: p.init_shared(setup) for p in parts if p.init_shared}
    kept = {p.name: p.init_client(setup) for p in parts if p.init_client}
    if task.method.personal:
        kept["personal"] = personal_of(task.method, weights)
    if task.trainer.local.keep_optimizer:
        kept["optimizer"] = tuple(
            ()
            if callable(p.optimizer)
            else local.of_phase(task.trainer.local, p, lr=1.0)[0].init(
                weights.params if p.train is None else tree.pick(weights.params, p.train)
            )
            for p in task.method.phases
        )
    return weights, shared, kept


def start_weights(task: Task, received: Weights, kept: dict[str, Any]) -> Weights:
    """What a client begins with: the global model, with its own personal groups."""
    own = kept.get("personal", Weights({}, {}))
    return Weights({**received.params, **own.params}, own.stats or received.stats)


def personal_of(method: Method, weights: Weights) -> Weights:
    """The groups that stay with the client; the body's statistics stay with it."""
    stats = weights.stats if "body" in method.personal else {}
    return Weights(tree.pick(weights.params, method.personal), stats)


def make_rows(task: Task, key: jax.Array, ids: jax.Array, data: FederatedData) -> dict[str, Any]:
    """What each of these clients gets of its own."""
    size = data.train.size[ids]
    steps = jnp.zeros_like(size)
    for phase in task.method.phases:
        shuffles, each = local.loop_counts(phase, task.trainer.local, size=size)
        steps += (shuffles * each).astype(steps.dtype)
    return {
        "id": ids,
        "index": data.train.index[ids],
        "size": size,
        "steps": steps,
        "counts": data.class_counts[ids],
        "key": jax.vmap(jax.random.fold_in, (None, 0))(key, ids),
    }


def make_view(task: Task, received, shared, kept, row, lr) -> View:
    """A client's facts for the round it is about to run."""
    cfg = task.trainer.local
    momentum = cfg.momentum if cfg.optimizer == "sgd" else 0.0
    info = ClientInfo(row["size"], row["counts"], num_steps=row["steps"], lr=lr, momentum=momentum)
    start = task.method.start(start_weights(task, received, kept=kept), kept)
    return View(start, received, shared=shared, client=kept, info=info)


def make_client(task: Task) -> Callable[[Any, Any], tuple[Any, Any]]:
    """One client's round: train, keep its state, upload weighted sums."""
    method, trainer, federation = task

    def client(broadcast, row):
        received, shared, hyper, pool = broadcast
        kept = row["kept"]
        view = make_view(task, received, shared=shared, kept=kept, row=row, lr=hyper.lr)
        me = local.Client(pool, row["index"], view=view, key=row["key"])
        trained = local.run_phases(
            trainer, method.phases, hyper=hyper, client=me, opts=kept.get("optimizer")
        )
        weights = trained.weights

        def over_data(fn, augment=False):
            table, key = Table(row["index"], row["size"]), jax.random.fold_in(row["key"], 2**31)
            return local.sum_over(
                trainer,
                trainer.local.batch_size,
                weights=weights,
                pool=pool,
                row=table,
                fn=fn,
                key=key if augment else None,
            )

        active = row["size"] > 0  # a client without data changes nothing
        kind = method.weights or federation.weights
        weight = jnp.where(active, _weight(kind, trainer.local, size=row["size"]), 0.0)
        finished = Finished(
            view.received,
            weights,
            shared=shared,
            client=kept,
            info=view.info,
            weight=weight,
            slots=trained.slots,
            opts=trained.opts,
            over_data=over_data,
        )
        new = {p.name: p.keep(finished) for p in method.parts if p.keep}
        if method.personal:
            new["personal"] = personal_of(method, weights)
        if trainer.local.keep_optimizer:
            new["optimizer"] = tuple(
                () if callable(p.optimizer) else opt
                for p, opt in zip(method.phases, trained.opts, strict=True)
            )

        update = tree.sub(upload_of(method, weights), upload_of(method, received))
        update = tree.scale(weight, method.update(update, view.info))
        upload = {
            "update": update,
            "weight": weight,
            "clients": active.astype(weight.dtype),
            "sums": trained.sums,
        }
        upload |= {p.name: p.collect(finished) for p in method.parts if p.collect}
        kept = {**kept, **tree.select(active, new, b=tree.pick(kept, tuple(new)))}
        upload = tree.pack(upload)
        upload = tree.select(active, upload, b=tree.zeros_like(upload))
        return {"kept": kept, "finite": tree.all_finite(upload)}, upload

    return client


def make_round(task: Task, executor: Executor, *, clients_on_host: bool = False) -> RoundFn:
    """The round as one function of (state, hyper, data), compiled once.

    With `clients_on_host`, `state.clients` holds numpy arrays; only participants' rows move.
    """
    choose, core, on_device = _pieces(task, executor)
    if not executor.jit:
        return on_device
    if not clients_on_host:
        return jax.jit(on_device, donate_argnums=0, out_shardings=executor.everywhere)

    choose = jax.jit(choose, out_shardings=executor.everywhere)
    core = jax.jit(core, donate_argnums=(0, 1), out_shardings=executor.everywhere)

    def on_host(state, hyper, data):
        ids = choose(state.key, state.round)
        chosen = np.asarray(ids)
        rows = executor.place(tree.take(state.clients, chosen))
        new, kept, metrics = core(_with_clients(state, {}), rows, ids, hyper, data)
        kept = jax.tree.map(np.asarray, kept)
        return _with_clients(new, tree.put(state.clients, chosen, rows=kept)), metrics

    return on_host


def make_rounds(
    task: Task, executor: Executor, *, at_once: int, seeds: FederatedData | None = None
) -> RoundsFn:
    """Rounds without a word to the host between them: (state, hyper, count, data), compiled once.

    `hyper.lr` holds `at_once` learning rates and the metrics as many rounds, of which `count` are
    run. `seeds` are `jax.vmap`'s axes of the data when the state is of several seeds.
    """
    _, _, one = _pieces(task, executor)
    one = jax.jit(one if seeds is None else jax.vmap(one, (0, None, seeds)), inline=True)

    def run(state, hyper, count, data):
        def body(i, carry):
            state, metrics = carry
            state, new = one(state, hyper._replace(lr=hyper.lr[i]), data)
            return state, tree.put(metrics, i, rows=new)

        shapes = jax.eval_shape(lambda *x: one(*x)[1], state, hyper._replace(lr=hyper.lr[0]), data)
        return lax.fori_loop(0, count, body, (state, tree.zeros(shapes, at_once)))

    return jax.jit(run, donate_argnums=0, out_shardings=executor.everywhere)


def _pieces(task: Task, executor: Executor):
    """Who takes part, the round of those, and both with client state on the device."""
    method, trainer, federation = task
    client = make_client(task)

    def choose(key, round_number):
        return schedule.participants(key, round_number, federation=federation)

    def exchange(broadcast, row):
        weights, pool = broadcast
        table = Table(row["index"], row["size"])
        size = trainer.local.batch_size
        return {}, {
            p.name: local.sum_over(
                trainer, size, weights=weights, pool=pool, row=table, fn=p.exchange
            )
            for p in method.parts
            if p.exchange
        }

    def core(state, kept, ids, hyper, data):
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.round), 1)
        rows = make_rows(task, key, ids=ids, data=data) | {"kept": kept}
        broadcast = (state.weights, sent(method, state.shared), hyper, data.pool)
        out, packed = executor.run(client, broadcast, rows, rows["steps"])
        sums = tree.unpack(packed)
        total = jnp.maximum(sums["weight"], jnp.finfo(sums["weight"].dtype).tiny)
        mean = tree.scale(1.0 / total, sums["update"])
        arrived = Arrived(
            upload_of(method, state.weights),
            mean,
            uploads=sums,
            weight=sums["weight"],
            clients=sums["clients"],
            num_clients=federation.clients,
        )

        def reduce(shared, sums, parts):
            return shared | {
                p.name: p.reduce(shared[p.name], sums.get(p.name), arrived)
                for p in parts
                if p.reduce
            }

        shared = reduce(dict(state.shared), sums, [p for p in method.parts if not p.exchange])
        # groups nobody trains and personal ones are not in the update: they stay bit for bit
        new = method.server(arrived, shared)
        weights = Weights(state.weights.params | new.params, new.stats or state.weights.stats)
        later = [p for p in method.parts if p.exchange]
        if later:
            _, second = executor.run(exchange, (weights, data.pool), rows, rows["steps"])
            shared = reduce(shared, second, later)
        # a round in which nobody has data changes nothing
        weights, shared = tree.select(
            sums["clients"] > 0, (weights, shared), b=(state.weights, dict(state.shared))
        )
        new_state = State(state.round + 1, state.key, weights=weights, shared=shared, clients={})
        return new_state, out["kept"], RoundMetrics(sums["sums"], ids, finite=out["finite"])

    def on_device(state, hyper, data):
        ids = choose(state.key, state.round)
        new, kept, metrics = core(state, tree.take(state.clients, ids), ids, hyper, data)
        return _with_clients(new, tree.put(state.clients, ids, rows=kept)), metrics

    return choose, core, on_device


def upload_of(method: Method, weights: Weights) -> Weights:
    """The groups a client sends: those it trains, without the personal ones; statistics follow."""
    groups = [g for g in trained_groups(method, tuple(weights.params)) if g not in method.personal]
    stats = weights.stats if "body" in groups else {}
    return Weights(tree.pick(weights.params, tuple(groups)), stats)


def sent(method: Method, shared: Mapping[str, Any]) -> dict[str, Any]:
    """What clients get of the server's state."""
    return {p.name: p.send(shared[p.name]) for p in method.parts if p.init_shared}


def _weight(kind: str, cfg: config.Local, size: jax.Array) -> jax.Array:
    if kind == "equal":
        return jnp.ones(())
    if kind == "batches":
        size = jnp.maximum(size // cfg.batch_size, 1)
    return size.astype(jnp.result_type(float))


def _with_clients(state: State, clients: Any) -> State:
    return State(
        state.round, state.key, weights=state.weights, shared=state.shared, clients=clients
    )
