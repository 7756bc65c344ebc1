"""Methods whose clients keep models, or parts of them, for themselves."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_nc import tree
from fedjax_nc.errors import UserError
from fedjax_nc.methods import terms
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import (
    SGD,
    Finished,
    Method,
    Part,
    Phase,
    Regulariser,
    Setup,
    View,
    not_negative,
)
from fedjax_nc.methods.fixed_head import dot_regression
from fedjax_nc.methods.registry import base, regulariser
from fedjax_nc.types import HeadSpec, Model, Weights


@base
def local(*, loss: Literal["ce", "ce_etf", "dr"] = "ce") -> Method:
    """Local training only: every client trains its own model, nothing is shared.

    Paper:    the baseline of Kim et al., FedDr+, arXiv 2406.02355, 2024, table 5.
    Changes:  no aggregation; look at personal accuracy, the global model stays as it started.
    Defaults: cross-entropy.
    Differs:  FedDr+'s code keeps the best epoch by test accuracy, here it is the last.
    Uploads:  nothing.

    Args:
      loss: cross-entropy, the same from an ETF head that is then trained, or dot regression.
    """
    method = dot_regression() if loss == "dr" else fedavg()
    if loss == "ce_etf":
        method = method._replace(head=HeadSpec("etf", bias=False))
    return method._replace(personal=("body", "head"), finetune=())


@base
def fedper() -> Method:
    """FedPer: the body is shared, every client keeps its own head.

    Paper:    Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 1912.00818,
              2019.
    Changes:  heads are not averaged; look at personal accuracy, the global head stays as it began.
    Defaults: the last layer is personal.
    Uploads:  the body.
    """
    return fedavg()._replace(personal=("head",))


@base
def lg_fedavg() -> Method:
    """LG-FedAvg: the head is shared, every client keeps its own body.

    Paper:    Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global
              Representations, arXiv 2001.01523, 2020.
    Changes:  bodies and BatchNorm statistics are not averaged; look at personal accuracy, the
              global body stays as it began.
    Defaults: the last layer is shared.
    Differs:  the official code starts from a model trained by FedAvg and shares the last layers, in
              a number that depends on the network; here all begin as the initial model.
    Uploads:  the head.
    """
    return fedavg()._replace(personal=("body",))


@base
def fedrep(
    *,
    epochs: Literal["original", "fedbabu", "fedetf", "feddw"] = "original",
    optimizer: Literal["each", "one"] = "each",
) -> Method:
    """FedRep: first the personal head with the body frozen, then the body with the head frozen.

    Paper:    Collins et al., Exploiting Shared Representations for Personalized Federated Learning,
              ICML 2021.
    Changes:  two phases; heads stay with their clients.
    Defaults: of E local epochs, E - 1 for the head and 1 for the body (official code).
    Differs:  FedBABU's and FedDr+'s code E and 1, FedETF's E and E, FedDW's 1 and E - 1 (epochs).
              FedBABU's has one SGD for both, in which what does not step gathers momentum and
              moves BatchNorm's statistics all the same (optimizer = one). Epochs are dealt:
              --local.steps goes with E and E in two optimisers only, where each makes so many.
    Uploads:  the body.

    Args:
      epochs: how the local epochs are dealt to head and body.
      optimizer: an optimiser for each of them, or one whose body has learning rate zero in the
        head's epochs, and whose head has it in the body's.
    """

    def every(count: int) -> int:
        return count

    def rest(count: int) -> int:
        return max(count - 1, 1)

    def counted(rule: Any, count: int) -> Any:
        return count if rule is None else rule(count) if callable(rule) else rule

    head, body = {
        "original": (rest, 1),
        "fedbabu": (every, 1),
        "fedetf": (None, None),
        "feddw": (1, rest),
    }[epochs]

    def moves(epoch, count: int) -> dict[str, Any]:
        first = epoch < counted(head, count)
        return {"head": first, "body": ~first}

    ce = (terms.cross_entropy(),)
    phases = (Phase(ce, ("head",), epochs=head), Phase(ce, ("body",), epochs=body))
    if optimizer == "one":
        both = Phase(ce, epochs=lambda e: counted(head, e) + counted(body, e), moves=moves)
        phases = (both,)
    return fedavg()._replace(phases=phases, personal=("head",))


@base
def ditto(
    *, lam: float = 1.0, plain: bool = True, rule: Literal["official", "fedbabu"] = "official"
) -> Method:
    """Ditto: FedAvg, and beside it a personal model that is pulled towards the global one.

    Paper:    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML
              2021.
    Changes:  v <- v - lr (grad CE(v) + lambda (v - w_g)) on the same batches; v stays.
    Defaults: lambda = 1 (official examples); 0.001 (FedETF's code), 0.75 (FedBABU's). The personal
              model takes plain steps, as in the official code and FedETF's.
    Differs:  the personal model starts as the global one, FedETF's from its own random start.
              Personal steps with the run's momentum (plain) are nobody's. In FedBABU's code (rule)
              a copy of the global model is trained first, the personal model is pulled towards it
              by a step of its own beside the momentum, and the personal models are averaged, so
              that every client begins a round with the global one; it pulls BatchNorm's statistics
              too, here only parameters, and steps are SGD with the run's momentum, without weight
              decay or clipping, whatever the run's optimiser, which is not kept either.
    Uploads:  the model.

    Args:
      lam: strength of the pull; 0 is local training, and by FedBABU's rule FedAvg.
      plain: personal steps of plain SGD, without the run's momentum and weight decay; the global
        model always has the run's optimiser.
      rule: the official method, or what FedBABU's code computes.
    """
    not_negative("ditto", lam=lam)
    if rule == "fedbabu":
        if not plain:
            raise UserError("ditto: plain=False belongs to rule='official': give one of them")
        return _ditto_of_fedbabu(lam)
    pull = terms.prox(lam)._replace(name="pull")
    method = fedavg()
    (phase,) = method.phases
    optimizer = SGD() if plain else None
    own = phase._replace(terms=(*phase.terms, pull), optimizer=optimizer, slot="own")
    part = Part("own", init_client=lambda s: s.weights, keep=lambda f: f.slots["own"])
    return method._replace(phases=(phase, own), parts=(part,))


def _ditto_of_fedbabu(lam: float) -> Method:
    """Returns FedAvg of models that are pulled towards a copy, which is trained before them."""

    def momentum(view: View) -> optax.GradientTransformation:
        return optax.chain(optax.trace(view.info.momentum), optax.scale(view.info.lr))

    def pulled(view: View) -> optax.GradientTransformation:
        plain, copy = momentum(view), view.client["copy"].params

        def update(grads, state, params=None):
            step, state = plain.update(grads, state, params)
            pull = tree.scale(view.info.lr * lam, tree.sub(params, copy))
            return tree.add(step, pull), state

        return optax.GradientTransformation(plain.init, update)  # type: ignore[arg-type]

    ce = (terms.cross_entropy(),)
    copy = Phase(ce, slot="copy", start=lambda _, __, view: view.received, optimizer=momentum)
    return fedavg()._replace(phases=(copy, Phase(ce, optimizer=pulled)))


class Mixing(NamedTuple):
    """FedALA's client state: its last model's head and statistics, and how they are mixed."""

    head: Any
    stats: Any
    share: Any  # of the global head, elementwise in [0, 1]
    fresh: jax.Array  # no round yet


@base
def fedala(*, eta: float = 1.0, share: float = 0.8, first: int = 11) -> Method:
    """FedALA: each client learns, number by number, how much of the global head it takes.

    Paper:    Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning,
              AAAI 2023.
    Changes:  the head starts as old + A (global - old), A in [0, 1] learned by one pass over the
              data before training; the body starts as the global one.
    Defaults: eta = 1, the last layer, 80 % of the data (official code).
    Differs:  at a client's first round the official code repeats passes until the deviation of the
              last ten losses is below 0.1, at least eleven: here it is that many (first). FedDW's
              code takes all data and always one pass (share = 1, first = 1). Every pass draws its
              share anew. Statistics stay with the client.
    Uploads:  the model.

    Args:
      eta: learning rate of A.
      share: of the client's data that a pass over A sees.
      first: passes in a client's first round.
    """
    not_negative("fedala", eta=eta)
    if not 0 < share <= 1 or first < 1:
        raise UserError(
            f"fedala with share = {share} and first = {first}: give a share above 0, at most 1, "
            "and at least one pass"
        )

    def start(received: Weights, client: Mapping[str, Any]) -> Weights:
        mine = client["mixing"]
        head = mixed(mine.head, received.params["head"], share=mine.share)
        return Weights({**received.params, "head": head}, mine.stats)

    def learn(view: View) -> optax.GradientTransformation:
        mine, new = view.client["mixing"], view.sent.params["head"]

        def update(grads, shares, params=None):
            shares = adapted(shares, grads["head"], old=mine.head, new=new, eta=eta)
            assert params is not None
            to = {"head": mixed(mine.head, new, share=shares)}
            return jax.tree.map(jnp.subtract, params, to), shares

        return optax.GradientTransformation(lambda params: mine.share, update)  # type: ignore[arg-type]

    def begin(setup: Setup) -> Mixing:
        head = setup.weights.params["head"]
        ones = jax.tree.map(jnp.ones_like, head)
        return Mixing(head, setup.weights.stats, share=ones, fresh=jnp.ones((), bool))

    def keep(f: Finished) -> Mixing:
        return Mixing(
            f.weights.params["head"], f.weights.stats, share=f.opts[0], fresh=jnp.zeros((), bool)
        )

    ce = (terms.cross_entropy(),)

    def passes(view: View) -> jax.Array:
        return jnp.where(view.client["mixing"].fresh, first, 1)

    choose = Phase(ce, ("head",), epochs=1, optimizer=learn, share=share, repeats=passes)
    return fedavg()._replace(
        phases=(choose, Phase(ce)),
        start=start,
        parts=(Part("mixing", init_client=begin, keep=keep),),
    )


def mixed(old, new, share):
    """Computes old + A (new - old), elementwise."""
    return jax.tree.map(lambda o, n, a: o + (n - o) * a, old, new, share)


def adapted(share, grads, old, new, eta: float):
    """Takes FedALA's step A <- clip(A - eta grad (new - old), 0, 1) (equation 5)."""
    return jax.tree.map(
        lambda a, g, o, n: jnp.clip(a - eta * g * (n - o), 0.0, 1.0), share, grads, old, new
    )


@base
def fedbn() -> Method:
    """FedBN: every client keeps its own normalising layers, the rest is shared.

    Paper:    Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch
              Normalization, ICLR 2021.
    Changes:  a client starts from the global model with its own BatchNorm parameters and
              statistics; look at personal accuracy.
    Defaults: BatchNorm or GroupNorm, whichever the network has.
    Differs:  clients' norms are averaged too, so that there is a global model to be tested, but
              no client takes their mean; the official code never uploads them. The paper has no
              GroupNorm. A client's norms begin as the initial model's.
    Uploads:  the model.
    """

    def own(weights: Weights) -> Weights:
        return Weights(norms(weights.params["body"]), weights.stats)

    def start(received: Weights, client: Mapping[str, Any]) -> Weights:
        mine = client["norms"]
        body = replaced(received.params["body"], mine.params)
        return Weights({**received.params, "body": body}, mine.stats)

    def check(model: Model, batch_size: int) -> None:
        del batch_size
        if not norms(jax.eval_shape(model.init, jax.random.key(0)).params["body"]):
            raise UserError(
                "fedbn keeps normalising layers, and this network has none: choose another model, "
                "or give it some by --federation.norm=group"
            )

    part = Part("norms", init_client=lambda s: own(s.weights), keep=lambda f: own(f.weights))
    phase = Phase((terms.cross_entropy()._replace(check=check),))
    return fedavg()._replace(phases=(phase,), parts=(part,), start=start)


def norms(layers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the normalising layers of a network, which are those with a scale, by their names."""
    inner = {
        name: layer if "scale" in layer else norms(layer)
        for name, layer in layers.items()
        if isinstance(layer, Mapping)
    }
    return {name: layer for name, layer in inner.items() if layer}


def replaced(layers: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a network's layers, of which some are others of the same name."""
    return {
        name: replaced(layer, others[name])
        if isinstance(layer, Mapping) and name in others
        else others.get(name, layer)
        for name, layer in layers.items()
    }


@regulariser
def ft(
    *, epochs: int = 5, lr: float = 0.0, groups: Literal["all", "body", "head"] = "all"
) -> Regulariser:
    """Personal fine-tuning of any method that has a global model; `X-ft` is short for `X | ft`.

    Paper:    Wang et al., Federated Evaluation of On-device Personalization, arXiv 1910.10252,
              2019; compared by FedETF, FedDr+ and FedBABU.
    Changes:  nothing in the rounds; then each client trains the final model by plain
              cross-entropy, and `finetuned_accuracy` is what that gives.
    Defaults: 5 epochs at the last round's learning rate (FedBABU's code base).
    Uploads:  nothing more.

    Args:
      epochs: passes over the client's data.
      lr: of plain SGD; 0 leaves it to the run's optimiser and last learning rate.
      groups: what is trained.
    """
    not_negative("ft", epochs=epochs, lr=lr)
    train = None if groups == "all" else (groups,)
    optimizer = SGD(lr) if lr else None
    phase = Phase((terms.cross_entropy(),), train, epochs=epochs, optimizer=optimizer)
    return lambda method: method._replace(finetune=(phase,))
