"""One client's side of a round: what it receives, what is its own, and its training."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedjax_nc import tree
from fedjax_nc.methods.base import Method, Phase, Repeat, View
from fedjax_nc.train import keys, local, schedule
from fedjax_nc.train.local import Task, Trained
from fedjax_nc.types import ClientInfo, FederatedData, Hyper, Pool, State, Table, Weights

NOBODY = schedule.Odd()  # who drops out, or does less than all


class Broadcast(NamedTuple):
    """What every participant of a round receives."""

    weights: Weights  # the global model
    shared: Mapping[str, Any]  # what each part sends of the server's state
    hyper: Hyper
    pool: Pool


class Row(NamedTuple):
    """What one participant has of its own; the rows of a round have a leading axis."""

    id: Int[Array, "*n"]
    index: Int[Array, "*n longest"]  # of its training examples, padded
    size: Int[Array, "*n"]
    steps: Int[Array, "*n"]  # local steps of the round, all phases together
    class_counts: Float[Array, "*n c"]
    relative_size: Float[Array, "*n"]  # beside the mean over all clients
    key: Key[Array, "*n"]
    state: Mapping[str, Any]  # its client state, by part
    share: Float[Array, "*n"] | None = None  # of its training, where some do less than all of it

    @property
    def table(self) -> Table:
        """Its training examples."""
        return Table(self.index, self.size)


def make_broadcast(task: Task, state: State, *, hyper: Hyper, pool: Pool) -> Broadcast:
    """Returns what the server sends out at the beginning of a round."""
    return Broadcast(state.weights, sent(task.method, state.shared), hyper=hyper, pool=pool)


def make_rows(
    task: Task,
    key: jax.Array,
    *,
    ids: jax.Array,
    data: FederatedData,
    client_state: Any,
    odd: schedule.Odd = NOBODY,
) -> Row:
    """Returns the rows of these clients; `key` is that of the round's stream.

    Who drops out is a client without data, which does nothing and changes nothing.
    """
    size, sizes = data.train.size[ids], jnp.sum(data.class_counts, axis=-1)
    if odd.dropped is not None:
        size = jnp.where(odd.dropped, 0, size)
    steps = jnp.zeros_like(size)
    for phase in task.method.phases:
        shuffles, each = local.loop_counts(phase, task.trainer.local, size=size, share=odd.share)
        steps += (shuffles * each).astype(steps.dtype)
    return Row(
        ids,
        data.train.index[ids],
        size=size,
        steps=steps,
        class_counts=data.class_counts[ids],
        relative_size=jnp.maximum(sizes[ids], 1.0) / jnp.mean(jnp.maximum(sizes, 1.0)),
        key=keys.of_clients(key, ids),
        state=client_state,
        share=odd.share,
    )


def make_view(task: Task, broadcast: Broadcast, row: Row) -> View:
    """Returns a client's facts for the round it is about to run."""
    settings = task.trainer.local
    momentum = settings.momentum if settings.optimizer == "sgd" else 0.0
    info = ClientInfo(
        row.size,
        row.class_counts,
        num_steps=row.steps,
        lr=broadcast.hyper.lr,
        momentum=momentum,
        relative_size=row.relative_size,
        nesterov=momentum > 0 and settings.nesterov,
    )
    start = task.method.start(_with_personal(broadcast.weights, row.state), row.state)
    return View(
        start,
        broadcast.weights,
        shared=broadcast.shared,
        client=row.state,
        info=info,
        optimizer=local.direction(settings),
    )


def train_client(
    task: Task,
    broadcast: Broadcast,
    row: Row,
    *,
    phases: tuple[Phase | Repeat, ...] | None = None,
    watch: Callable[[Weights, View], Any] = lambda weights, view: {},
) -> tuple[View, Trained]:
    """Trains one client from what it received; rounds, personal models and studies all do this.

    Args:
      task: the static side of the run.
      broadcast: what the client received.
      row: what is its own.
      phases: what it trains; by default the method's phases of a round, which go on with the
        optimiser's state where clients keep it, as other phases do that say so.
      watch: looked at after each phase and each cycle; its values are stacked in `Trained.seen`.
    """
    view = make_view(task, broadcast, row=row)
    kept = opts = row.state.get("optimizer")
    if kept is not None and phases not in (None, task.method.phases):
        numbers = [None if isinstance(p, Repeat) else p.resume for p in phases]
        opts = tuple(None if n is None else kept[n] for n in numbers)
    trained = local.run_phases(
        task.trainer,
        task.method.phases if phases is None else phases,
        hyper=broadcast.hyper,
        client=local.Client(broadcast.pool, row.index, view=view, key=row.key, share=row.share),
        opts=opts,
        watch=lambda weights: watch(weights, view),
    )
    return view, trained


def first_client_state(task: Task, weights: Weights, parts: dict[str, Any]) -> dict[str, Any]:
    """Returns a client's state before its first round; `parts` is what the method's parts keep."""
    client_state = dict(parts)
    if task.method.personal:
        client_state["personal"] = personal_of(task.method, weights)
    if task.trainer.local.keep_optimizer:
        client_state["optimizer"] = tuple(
            ()
            if callable(p.optimizer)
            else local.of_phase(task.trainer.local, p, lr=1.0)[0].init(
                weights.params if p.train is None else tree.pick(weights.params, p.train)
            )
            for p in task.method.phases
        )
    return client_state


def personal_of(method: Method, weights: Weights) -> Weights:
    """Returns the groups that stay with the client; the body's statistics stay with the body."""
    stats = weights.stats if "body" in method.personal else {}
    return Weights(tree.pick(weights.params, method.personal), stats)


def sent(method: Method, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what clients get of the server's state."""
    return {p.name: p.send(shared[p.name]) for p in method.parts if p.init_shared}


def _with_personal(received: Weights, client_state: Mapping[str, Any]) -> Weights:
    """Replaces the personal groups of the global model by the client's own."""
    own = client_state.get("personal", Weights({}, {}))
    return Weights({**received.params, **own.params}, own.stats or received.stats)
