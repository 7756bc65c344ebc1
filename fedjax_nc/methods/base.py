"""Term, Phase, Part and Method: the words every method is written in, and how they compose."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_nc import losses, tree
from fedjax_nc.errors import UserError
from fedjax_nc.types import Batch, ClientInfo, HeadSpec, Model, Outputs, Weights


@dataclass(frozen=True)
class Context:
    """Everything a term may read of a step; exists only while the step is traced."""

    model: Model
    weights: Weights  # being trained
    received: Weights  # what the client started the round with
    batch: Batch
    out: Outputs  # the one forward pass every term shares
    shared: Mapping[str, Any]
    client: Mapping[str, Any]
    info: ClientInfo
    key: jax.Array
    _teachers: dict[str, Outputs] = field(default_factory=dict)

    def ref(self, name: str = "global") -> Outputs:
        """Returns a frozen model's outputs on this batch, computed once for all terms.

        Args:
          name: `global` for the model the client received, otherwise the part that keeps one.
        """
        if name not in self._teachers:
            weights = self.received if name == "global" else self.client[name]
            out, _ = self.model.apply(
                lax.stop_gradient(weights), self.batch.x, train=False, mask=self.batch.mask
            )
            self._teachers[name] = lax.stop_gradient(out)
        return self._teachers[name]

    def forward(self, x: jax.Array, width: float = 1.0) -> Outputs:
        """Runs the network being trained on other inputs and drops its new statistics."""
        out, _ = self.model.apply(
            self.weights, x, train=True, mask=self.batch.mask, key=self.key, width=width
        )
        return out


class Term(NamedTuple):
    """One summand of the local objective: a mean over the batch times a weight.

    The weight is traced, so another value does not compile again.
    """

    name: str  # also the metric's name
    fn: Callable[[Context], jax.Array]
    weight: float = 1.0
    check: Callable[[Model, int], None] | None = None  # refuses (model, batch size) it cannot do


def per_example(name: str, fn: Callable[[Context], jax.Array], weight: float = 1.0) -> Term:
    """Makes the term that averages a loss of every example over the rows that are not padding.

    Args:
      name: the term's and its metric's.
      fn: from the context to one value per row of the batch.
      weight: of the term in the objective.
    """
    return Term(name, lambda c: losses.masked_mean(fn(c), c.batch.mask), weight=weight)


class View(NamedTuple):
    """Everything a gradient wrapper, an optimiser or a prediction may read of a client."""

    received: Weights  # what the client starts the round with
    sent: Weights  # the global model
    shared: Mapping[str, Any]
    client: Mapping[str, Any]
    info: ClientInfo
    optimizer: Any = None  # the run's, without its learning rate


def plain_gradient(value_and_grad: Callable, view: View) -> Callable:
    """Leaves the gradient of the objective as it is.

    Args:
      value_and_grad: (trainable, statistics, batch, key, wanted) -> ((objective, (new statistics,
        terms by name)), gradient); `wanted` picks terms by name, by default all.
      view: what the client knows in this round.
    """
    del view
    return value_and_grad


def clipped(limit: float) -> Callable[[Callable, View], Callable]:
    """Makes a wrapper that scales gradients down to a norm, besides what the run does; 0: none."""
    if not limit:
        return plain_gradient

    def wrap(value_and_grad: Callable, view: View) -> Callable:
        del view

        def cut(*args):
            value, grads = value_and_grad(*args)
            factor = jnp.minimum(1.0, limit / (optax.global_norm(grads) + 1e-6))
            return value, tree.scale(factor, grads)

        return cut

    return wrap


def as_it_is(batch: Batch, key: jax.Array) -> tuple[tuple[Batch, Any], ...]:
    """Trains on the batch unchanged."""
    del key
    return ((batch, 1.0),)


class SGD(NamedTuple):
    """Stochastic gradient descent as a paper has it, in place of the run's optimiser."""

    lr: float | None = None  # None: the round's
    momentum: float = 0.0
    weight_decay: float = 0.0


class Phase(NamedTuple):
    """A stretch of local training: which groups, by which terms, for how long.

    A phase with a slot trains the model the client keeps under that name, not the one it uploads;
    later phases find it, trained, among the client's state. One of no epochs only names a model.
    """

    terms: tuple[Term, ...]
    train: tuple[str, ...] | None = None  # None: every group
    epochs: int | Callable[[int], int] | None = None  # None: the configuration's, which a rule gets
    optimizer: SGD | Callable[[View], optax.GradientTransformation] | None = None  # None: the run's
    grad: Callable[[Callable, View], Callable] = plain_gradient  # value_and_grad -> value_and_grad
    # (batch, key) -> batches with one x and different y, and the weights of their objectives
    augment: Callable[[Batch, jax.Array], tuple[tuple[Batch, Any], ...]] = as_it_is
    slot: str | None = None
    steps: int | None = None  # so many random batches instead of epochs
    share: float = 1.0  # of the client's data in each epoch
    repeats: Callable[[View], jax.Array] | None = None  # as often as that
    # in fine-tuning: the number of the round's phase whose kept optimiser it goes on with
    resume: int | None = None
    # of a slot, (uploaded model so far, optimisers' states so far, ..) -> where it begins; None: at
    # what the client keeps
    start: Callable[[Weights, tuple, View], Weights] | None = None
    # (epoch, the configuration's epochs) -> which groups step; the others only gather momentum
    moves: Callable[[Any, int], Mapping[str, Any]] | None = None
    # (batches of an epoch, epochs) -> its steps, which begin again at the first batch
    visits: Callable[[Any, int], Any] | None = None


class Repeat(NamedTuple):
    """Phases that take turns a number of times, compiled as one loop."""

    times: int
    phases: tuple[Phase, ...]


class Setup(NamedTuple):
    """Everything a part may read when its first state is made."""

    weights: Weights
    num_clients: int


class Arrived(NamedTuple):
    """Everything the server has once the uploads of a round are summed."""

    sent: Weights  # the groups that travel, as clients got them
    mean: Weights  # weighted mean update of them
    uploads: Mapping[str, Any]  # of every part, summed
    weight: jax.Array  # sum of the participants' weights
    clients: jax.Array  # participants that have data
    num_clients: int  # of the federation

    def mean_of(self, part: str) -> Any:
        """Returns the weighted mean of a part that clients upload multiplied by their weight."""
        return self.uploads[part] / jnp.maximum(self.weight, jnp.finfo(self.weight.dtype).tiny)


class Finished(NamedTuple):
    """Everything a part may read after a client's local training."""

    received: Weights
    weights: Weights
    shared: Mapping[str, Any]
    client: Mapping[str, Any]
    info: ClientInfo
    weight: jax.Array  # of its update in the server's mean
    slots: Mapping[str, Weights]  # models of phases with a slot
    opts: tuple  # the optimiser's state at the end of each phase
    # ((outputs, batch) -> sums, augment=False) -> their sum over the client's data
    over_data: Callable[..., Any]


class Part(NamedTuple):
    """A quantity besides the model that travels or stays with clients; only a name is required."""

    name: str
    init_shared: Callable[[Setup], Any] | None = None
    init_client: Callable[[Setup], Any] | None = None
    keep: Callable[[Finished], Any] | None = None  # new client state
    collect: Callable[[Finished], Any] | None = None  # upload: will be SUMMED over clients
    reduce: Callable[[Any, Any, Arrived], Any] | None = None  # (old, summed uploads) -> new shared
    send: Callable[[Any], Any] = lambda shared: shared  # what of it clients get
    # a second exchange, (outputs, batch) -> upload: sums over data under the new global model
    exchange: Callable[[Outputs, Batch], Any] | None = None


class Posthoc(NamedTuple):
    """A step after the last round, from sums over all clients' data under the global model."""

    collect: Callable[[Outputs, Batch], Any]
    # (model, global weights, sums, key) -> the weights to be tested
    solve: Callable[[Model, Weights, Any, jax.Array], Weights]
    upload: Callable[[Any], Any] = lambda sums: sums  # what a client makes of its own sums


def plain_logits(out: Outputs, weights: Weights, view: View) -> jax.Array:
    """Returns the head's logits, the same prediction for every client."""
    del weights, view
    return out.logits


def weighted_mean(arrived: Arrived, shared: Mapping[str, Any]) -> Weights:
    """Adds the weighted mean update to the model that was sent, as FedAvg's server does."""
    del shared
    return tree.add(arrived.sent, arrived.mean)


def the_last(weights: Weights, shared: Mapping[str, Any]) -> Weights:
    """Returns the global model as the one to be tested."""
    del shared
    return weights


def as_received(received: Weights, client: Mapping[str, Any]) -> Weights:
    """Starts local training from the global model with the client's personal groups."""
    del client
    return received


def whole(update: Weights, info: ClientInfo) -> Weights:
    """Uploads the update unchanged."""
    del info
    return update


class Method(NamedTuple):
    """A federated method: a head, phases of local training, parts that travel, and server rules."""

    name: str
    head: HeadSpec
    phases: tuple[Phase, ...]
    parts: tuple[Part, ...] = ()
    personal: tuple[str, ...] = ()  # groups that stay with the client
    server: Callable[[Arrived, Mapping[str, Any]], Weights] = weighted_mean  # (.., shared) -> new
    tested: Callable[[Weights, Mapping[str, Any]], Weights] = the_last  # (.., shared) -> is tested
    start: Callable[[Weights, Mapping[str, Any]], Weights] = as_received  # before local training
    update: Callable[[Weights, ClientInfo], Weights] = whole  # before it is weighted and sent
    weights: str | None = None  # of clients in the mean; None: the configuration's
    finetune: tuple[Phase | Repeat, ...] = ()  # personalisation of the final model
    predict: Callable[[Outputs, Weights, View], jax.Array] = plain_logits  # of a client's own model
    posthoc: Posthoc | None = None
    # number of residual blocks -> the probability of each to be kept in training (StochDepth)
    survival: Callable[[int], tuple[float, ...]] | None = None


Regulariser = Callable[[Method], Method]


def each_phase(method: Method, **changes: Any) -> Method:
    """Replaces fields of every phase of a method."""
    return method._replace(phases=tuple(p._replace(**changes) for p in method.phases))


def add(method: Method, *terms: Term, parts: tuple[Part, ...] = ()) -> Method:
    """Adds terms to the objective of every phase, and parts to the method."""
    phases = tuple(p._replace(terms=_named_once(p.terms + terms)) for p in method.phases)
    return method._replace(phases=phases, parts=_named_once(method.parts + parts))


def mix(method: Method, term: Term, beta: float, parts: tuple[Part, ...] = ()) -> Method:
    """Replaces the objective L of every phase by beta L + (1 - beta) R (FedDr+, eq. 1).

    Args:
      method: whose phases have the objectives L.
      term: R.
      beta: the share of L, between 0 and 1.
      parts: what R needs besides the model.
    """
    if not 0 <= beta <= 1:
        raise UserError(
            f"beta = {beta} must be between 0 and 1: it mixes the loss with '{term.name}'"
        )
    phases = tuple(p._replace(terms=mixed_terms(p.terms, term, beta=beta)) for p in method.phases)
    return add(method._replace(phases=phases), parts=parts)


def mixed_terms(terms: tuple[Term, ...], term: Term, beta: float) -> tuple[Term, ...]:
    """Returns the terms of beta L + (1 - beta) R."""
    scaled = tuple(t._replace(weight=beta * t.weight) for t in terms)
    return _named_once((*scaled, term._replace(weight=1 - beta)))


def trained_groups(method: Method, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the groups that some phase trains; the others never change and never travel."""
    phases = [p for p in method.phases if p.slot is None]
    if any(p.train is None for p in phases):
        return groups
    return tuple(g for g in groups if any(g in (p.train or ()) for p in phases))


def above_zero(**hyper: float | int) -> None:
    """Refuses hyperparameters at or below zero, which a method divides by or counts with."""
    for name, value in hyper.items():
        if value <= 0:
            raise UserError(f"{name} = {value}: give a number above zero")


def not_negative(method: str, /, **hyper: float | int) -> None:
    """Refuses hyperparameters below zero."""
    for name, value in hyper.items():
        if value < 0:
            raise UserError(f"hyperparameter {name}={value} of {method}: give zero or more")


def no_effect(method: str, where: str, /, **hyper: tuple[Any, Any]) -> None:
    """Refuses hyperparameters that change nothing beside `where`, unless they have their default.

    Each is given as (value, default).
    """
    for name, (value, default) in hyper.items():
        if value != default:
            raise UserError(
                f"{method}: {name}={value} has no effect with {where}: give one of them"
            )


def _named_once(items):
    names = [item.name for item in items]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two parts of the method are called '{name}': use the regulariser once"
            )
    return items
