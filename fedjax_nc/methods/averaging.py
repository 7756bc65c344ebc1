"""Methods that change the server's average, and the baseline itself."""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_nc import tree
from fedjax_nc.errors import UserError
from fedjax_nc.methods import terms
from fedjax_nc.methods.base import (
    SGD,
    Arrived,
    Finished,
    Method,
    Part,
    Phase,
    Regulariser,
    above_zero,
    add,
    each_phase,
    mix,
    not_negative,
)
from fedjax_nc.methods.registry import base, regulariser
from fedjax_nc.types import ClientInfo, HeadSpec, Weights


@base
def fedavg() -> Method:
    """FedAvg: local cross-entropy, weighted mean of the models.

    Paper:    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
              Data, AISTATS 2017.
    Changes:  nothing; this is the baseline.
    Uploads:  the model.
    """
    finetune = (Phase((terms.cross_entropy(),), epochs=5),)
    return Method(
        "fedavg", HeadSpec(), phases=(Phase((terms.cross_entropy(),)),), finetune=finetune
    )


@base
def centralised() -> Method:
    """Centralised training: everybody's data in one place, the upper bound of a table.

    Paper:    the usual reference, as in McMahan et al., Communication-Efficient Learning of Deep
              Networks from Decentralized Data, AISTATS 2017.
    Changes:  one client holds the whole training set, whatever the protocol: a round is its local
              epochs over all of it, and as many rounds are as many passes.
    Defaults: cross-entropy with the settings that the protocol has for FedAvg; neither personal
              models nor fine-tuning.
    Differs:  a client that holds out test data (client_test = split) holds out its share of all.
              The number of steps that `feddr_plus/lda` fixes is that of its epochs here. The model
              is sent, if only to one client.
    Uploads:  the model.
    """
    return fedavg()._replace(finetune=())


@base
def fedprox(*, mu: float = 0.01, plain: bool = False) -> Method:
    """FedProx: FedAvg plus a pull towards the received model.

    Paper:    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
    Changes:  + mu/2 |w - w_g|^2 over all trained parameters.
    Defaults: mu = 0.01 (FedBlade, FedDW's code); 0.001 (FedDr+, FedETF), 0.0001 (FedAlign).
    Differs:  loss form inside the optimiser; FedETF's code takes plain steps instead (plain).
    Uploads:  the model.

    Args:
      mu: strength of the pull.
      plain: steps of plain SGD, without the run's momentum and weight decay.
    """
    not_negative("fedprox", mu=mu)
    return add(each_phase(fedavg(), optimizer=SGD() if plain else None), terms.prox(mu))


@regulariser
def prox(*, beta: float = 0.9) -> Regulariser:
    """Proximal regulariser: beta L + (1 - beta) 1/2 |w - w_g|^2.

    Paper:    Kim et al., FedDr+, arXiv 2406.02355, 2024, section 3.4.
    Uploads:  nothing more.

    Args:
      beta: share of the base loss.
    """
    not_negative("prox", beta=beta)
    return lambda method: mix(method, terms.prox(1.0), beta=beta)


@base
def fedexp(
    *,
    eps: float = 0.001,
    decay: float = 1.0,
    rule: Literal["official", "feddecorr", "feddr"] = "official",
) -> Method:
    """FedExP: the server goes further along the mean update the less the clients agree.

    Paper:    Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR
              2023.
    Changes:  w + eta D with eta = max(1, sum_k p_k |D_k|^2 / (2 (|D|^2 + |S| eps))).
    Defaults: eps = 0.001 (FedDr+, the official CIFAR runs).
    Differs:  FedDecorr's code leaves out |S|; FedDr+'s takes min(1, .), the plain mean of norms
              that are not squared, and eps times the number of all clients, so it never goes
              further than FedAvg (rule). As in the official code the mean of the last two global
              models is tested, under its rule; there eps falls each round by the square of the
              learning rate's decay, 0.998 (decay). BatchNorm statistics are averaged, not
              extrapolated.
    Uploads:  the model and one number.

    Args:
      eps: keeps the step finite when clients cancel out.
      decay: of the learning rate each round, by whose square eps falls; 1: it stays.
      rule: the authors' step, FedDecorr's or FedDr+'s.
    """
    not_negative("fedexp", eps=eps)
    above_zero(decay=decay)
    if decay != 1 and rule != "official":
        raise UserError(f"fedexp: decay={decay} belongs to rule='official': give one of them")
    plain = rule == "feddr"

    def collect(f: Finished) -> jax.Array:
        square = tree.sq_distance(f.weights.params, f.received.params)
        return jnp.sqrt(square) if plain else f.weight * square

    def server(arrived: Arrived, shared: Mapping[str, Any]) -> Weights:
        length = tree.sq_distance(arrived.mean.params, tree.zeros_like(arrived.mean.params))
        of_all = arrived.uploads["lengths"] / jnp.maximum(arrived.clients, 1.0)
        eta = extrapolation(
            of_all if plain else arrived.mean_of("lengths"),
            length,
            clients=arrived.num_clients if plain else arrived.clients,
            eps=eps * shared["fall"] if decay != 1 else eps,
            rule=rule,
        )
        return tree.add(
            arrived.sent, Weights(tree.scale(eta, arrived.mean.params), arrived.mean.stats)
        )

    parts = (Part("lengths", collect=collect),)
    if decay != 1:
        parts += (falling(decay**2),)
    method = fedavg()._replace(parts=parts, server=server)
    return mean_of_two(method) if rule == "official" else method


def falling(factor: float) -> Part:
    """Returns the part of a factor that is 1 in the first round and shrinks with every one."""
    return Part(
        "fall",
        lambda setup: jnp.asarray(1.0 / factor),
        send=lambda fall: (),
        reduce=lambda fall, uploads, arrived: factor * fall,
    )


def mean_of_two(method: Method) -> Method:
    """Makes tests use the mean of the last two global models, around which a far step swings."""
    before = Part(
        "before",
        lambda setup: setup.weights,
        send=lambda weights: (),
        reduce=lambda old, uploads, arrived: arrived.sent,
    )

    def tested(weights: Weights, shared: Mapping[str, Any]) -> Weights:
        return tree.scale(0.5, tree.add(weights, shared["before"]))

    return method._replace(parts=(*method.parts, before), tested=tested)


def extrapolation(mean_length, length_of_mean, clients, eps: Any, rule: str) -> jax.Array:
    """Computes FedExP's step from sum_k p_k |D_k|^2 (feddr: mean |D_k|) and |sum_k p_k D_k|^2.

    `clients` are the participants, or all clients by FedDr+'s rule.
    """
    if rule == "feddr":
        return jnp.minimum(1.0, mean_length / (2 * (jnp.sqrt(length_of_mean) + clients * eps)))
    many = clients if rule == "official" else 1.0
    return jnp.maximum(1.0, mean_length / (2 * (length_of_mean + many * eps)))


@base
def fednova() -> Method:
    """FedNova: clients that make more steps do not count for more.

    Paper:    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
              Optimization, NeurIPS 2020.
    Changes:  w + tau sum_k p_k D_k / tau_k with tau = sum_k p_k tau_k; tau_k are the client's
              steps, with momentum its effective ones.
    Defaults: none; with as many steps everywhere it is FedAvg.
    Differs:  BatchNorm statistics, which no step makes, are plainly averaged. Effective steps are
              of momentum that starts anew: those of a kept optimiser are not counted.
    Uploads:  the model and one number.
    """

    def update(update: Weights, info: ClientInfo) -> Weights:
        return Weights(tree.scale(1.0 / effective_steps(info), update.params), update.stats)

    def collect(f: Finished) -> jax.Array:
        return f.weight * effective_steps(f.info)

    def server(arrived: Arrived, shared: Mapping[str, Any]) -> Weights:
        del shared
        params = tree.scale(arrived.mean_of("steps"), arrived.mean.params)
        return tree.add(arrived.sent, Weights(params, arrived.mean.stats))

    return fedavg()._replace(parts=(Part("steps", collect=collect),), server=server, update=update)


def effective_steps(info: ClientInfo) -> jax.Array:
    """Computes how far K equal gradients go with momentum m, counted in gradients.

    K' = (K - m (1 - m^K) / (1 - m)) / (1 - m), from a buffer that starts empty. A step of
    Nesterov's momentum goes as far as the step after it would without: K'(K + 1) - K'(1).
    """
    m = info.momentum
    steps = info.num_steps + 1 if info.nesterov else info.num_steps
    effective = (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)
    return jnp.maximum(effective - 1.0 if info.nesterov else effective, 1.0)
