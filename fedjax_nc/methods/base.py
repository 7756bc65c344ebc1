"""Term, Phase, Part and Method: the words every method is written in, and how they compose."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_nc import tree
from fedjax_nc.errors import UserError
from fedjax_nc.types import Batch, ClientInfo, HeadSpec, Model, Outputs, Weights


@dataclass(frozen=True)
class Context:
    """What a term may read; exists only while a step is traced."""

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
        """A frozen model's outputs on this batch, once however many terms ask."""
        if name not in self._teachers:
            weights = self.received if name == "global" else self.client[name]
            out, _ = self.model.apply(
                lax.stop_gradient(weights), self.batch.x, train=False, mask=self.batch.mask
            )
            self._teachers[name] = lax.stop_gradient(out)
        return self._teachers[name]

    def forward(self, x: jax.Array, width: float = 1.0) -> Outputs:
        """Another pass of the network being trained; what it would leave as statistics is lost."""
        out, _ = self.model.apply(
            self.weights, x, train=True, mask=self.batch.mask, key=self.key, width=width
        )
        return out


class Term(NamedTuple):
    """One summand of the local objective: a batch mean, with a weight that is traced."""

    name: str  # also the metric's name
    fn: Callable[[Context], jax.Array]
    weight: float = 1.0
    check: Callable[[Model, int], None] | None = None  # refuses (model, batch size) it cannot do


class View(NamedTuple):
    """What a gradient wrapper may read."""

    received: Weights
    shared: Mapping[str, Any]
    client: Mapping[str, Any]
    info: ClientInfo


def plain_gradient(value_and_grad: Callable, view: View) -> Callable:
    """The gradient of the objective, unchanged."""
    del view
    return value_and_grad


def clipped(limit: float) -> Callable[[Callable, View], Callable]:
    """The gradient cut to this norm, whatever the configuration says."""

    def wrap(value_and_grad: Callable, view: View) -> Callable:
        del view

        def cut(*args):
            value, grads = value_and_grad(*args)
            factor = jnp.minimum(1.0, limit / (optax.global_norm(grads) + 1e-6))
            return value, tree.scale(factor, grads)

        return cut

    return wrap


def as_it_is(batch: Batch, key: jax.Array) -> tuple[tuple[Batch, Any], ...]:
    """The batch, once."""
    del key
    return ((batch, 1.0),)


class SGD(NamedTuple):
    """An optimiser a phase brings along: the paper's, whatever the configuration says."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0


class Phase(NamedTuple):
    """Train these parameter groups with these terms for this long."""

    terms: tuple[Term, ...]
    train: tuple[str, ...] | None = None  # None: every group
    epochs: int | None = None  # None: what the configuration says
    optimizer: SGD | None = None  # None: the round's
    grad: Callable[[Callable, View], Callable] = plain_gradient  # value_and_grad -> value_and_grad
    # (batch, key) -> batches with one x and different y, and the weights of their objectives
    augment: Callable[[Batch, jax.Array], tuple[tuple[Batch, Any], ...]] = as_it_is


class Repeat(NamedTuple):
    """Alternate phases a number of times, as a loop."""

    times: int
    phases: tuple[Phase, ...]


class Setup(NamedTuple):
    """What a part may read when it is created or reduced."""

    weights: Weights
    num_clients: int


class Finished(NamedTuple):
    """What a part may read after a client's local training."""

    received: Weights
    weights: Weights
    shared: Mapping[str, Any]
    client: Mapping[str, Any]
    info: ClientInfo
    # ((outputs, batch) -> sums, augment=False) -> their sum over the client's data
    over_data: Callable[..., Any]


class Part(NamedTuple):
    """One extra quantity that travels server -> client -> server. All but the name is optional."""

    name: str
    init_shared: Callable[[Setup], Any] | None = None
    init_client: Callable[[Setup], Any] | None = None
    keep: Callable[[Finished], Any] | None = None  # new client state
    collect: Callable[[Finished], Any] | None = None  # upload: will be SUMMED over clients
    reduce: Callable[[Any, Any, Setup], Any] | None = None  # (old, summed uploads) -> new shared


class Posthoc(NamedTuple):
    """A step after the last round, from sums over everybody's data under the global model."""

    collect: Callable[[Outputs, Batch], Any]
    solve: Callable[[Weights, Any], Weights]  # (global model, sums) -> the one to be tested


def plain_logits(out: Outputs, class_counts: jax.Array) -> jax.Array:
    """What the head says, whoever is asked."""
    del class_counts
    return out.logits


def weighted_mean(received: Weights, mean_update: Weights) -> Weights:
    """FedAvg's server: apply the mean update."""
    return tree.add(received, mean_update)


class Method(NamedTuple):
    """A head, phases, parts and a server rule; nothing else."""

    name: str
    head: HeadSpec
    phases: tuple[Phase, ...]
    parts: tuple[Part, ...] = ()
    personal: tuple[str, ...] = ()  # groups that stay with the client
    server: Callable[[Weights, Weights], Weights] = weighted_mean  # (received, mean update) -> new
    finetune: tuple[Phase | Repeat, ...] = ()  # personalisation of the final model
    predict: Callable[[Outputs, jax.Array], jax.Array] = plain_logits  # of a client's own model
    posthoc: Posthoc | None = None
    # number of residual blocks -> the probability of each to be kept in training (StochDepth)
    survival: Callable[[int], tuple[float, ...]] | None = None


Regulariser = Callable[[Method], Method]


def add(method: Method, *terms: Term, parts: tuple[Part, ...] = ()) -> Method:
    """L + sum of the terms, in every phase."""
    phases = tuple(p._replace(terms=_named_once(p.terms + terms)) for p in method.phases)
    return method._replace(phases=phases, parts=_named_once(method.parts + parts))


def mix(method: Method, term: Term, beta: float, parts: tuple[Part, ...] = ()) -> Method:
    """beta * L + (1 - beta) * R in every phase (FedDr+, eq. 1)."""
    if not 0 <= beta <= 1:
        raise UserError(
            f"beta = {beta} must be between 0 and 1: it mixes the loss with '{term.name}'"
        )

    def scaled(terms):
        return tuple(t._replace(weight=beta * t.weight) for t in terms)

    phases = tuple(p._replace(terms=scaled(p.terms)) for p in method.phases)
    return add(method._replace(phases=phases), term._replace(weight=1 - beta), parts=parts)


def trained_groups(method: Method, groups: tuple[str, ...]) -> tuple[str, ...]:
    """The groups some phase trains; the others are the same everywhere and never travel."""
    if any(p.train is None for p in method.phases):
        return groups
    return tuple(g for g in groups if any(g in (p.train or ()) for p in method.phases))


def _named_once(items):
    names = [item.name for item in items]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two parts of the method are called '{name}': use the regulariser once"
            )
    return items
