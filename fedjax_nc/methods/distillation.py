"""Methods that listen to another model: the received one, or the client's previous one."""

import itertools

import jax
import jax.numpy as jnp

from fedjax_nc import losses
from fedjax_nc.errors import UserError
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import (
    Context,
    Method,
    Part,
    Phase,
    Regulariser,
    Repeat,
    Term,
    above_zero,
    add,
    mix,
    mixed_terms,
    not_negative,
    per_example,
)
from fedjax_nc.methods.registry import base, regulariser
from fedjax_nc.types import FEATURES, HeadSpec


@base
def fedntd(*, beta: float = 1.0, tau: float = 1.0) -> Method:
    """FedNTD: keep what the received model says about the classes that are not the true one.

    Paper:    Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
              Learning, NeurIPS 2022.
    Changes:  + beta tau^2 KL(received softmax || own softmax) without the true class.
    Defaults: beta = 1, tau = 1 (both official and FedDr+'s configurations); tau = 3 in FedDr+'s
              table 10.
    Differs:  the teacher is in evaluation mode; public code leaves its mode to chance. FedDr+'s
              personalised copy leaves out tau^2.
    Uploads:  the model.

    Args:
      beta: weight of the distillation.
      tau: temperature of both softmaxes.
    """
    not_negative("fedntd", beta=beta)
    above_zero(tau=tau)
    return add(fedavg(), not_true(tau)._replace(weight=beta))


@base
def moon(*, mu: float = 1.0, tau: float = 0.5, dim: int = 256, buffer: int = 1) -> Method:
    """MOON: model-contrastive learning with the global and the previous local model.

    Paper:    Li et al., Model-Contrastive Federated Learning, CVPR 2021.
    Changes:  + mu * contrastive loss on a two-layer projection before the head.
    Defaults: mu = 1, tau = 0.5 (FedDr+, FedAlign), dimension 256 and one previous model (official
              code).
    Differs:  a client's previous model is at first the initial global one (FedDr+, FedAlign code),
              so that the first round's term is log 2 and moves nothing. The official code has no
              such model in that round, and later a random one for whoever has not trained yet.
              Its model_buffer_size is buffer: with two or more, the pool is empty in the first
              round and grows by what every client has after each, of absent ones their last model
              again. From three on that code's loop puts one model in several places; here they
              are the last ones, as its FIFO means. FedDW's keeps each of a client's models once.
              FedAlign's leaves the global and the previous model in training mode.
    Uploads:  the model with its projector.

    Args:
      mu: weight of the contrastive term.
      tau: temperature of the similarities.
      dim: output width of the projector; 0 leaves the projector out, as FedDr+'s code.
      buffer: how many of its last models a client is pushed away from.
    """
    not_negative("moon", mu=mu, dim=dim)
    above_zero(tau=tau, buffer=buffer)
    head = HeadSpec(projector=(FEATURES, dim) if dim else ())
    term = contrastive(tau, buffer)._replace(weight=mu)
    return add(fedavg()._replace(head=head), term, parts=previous_models(buffer))


@regulariser
def moon_reg(*, beta: float = 0.9, tau: float = 0.5, dim: int = 0) -> Regulariser:
    """MOON's term on any method: beta L + (1 - beta) L_moon.

    Paper:    Kim et al., FedDr+, arXiv 2406.02355, 2024, section 3.4.
    Uploads:  nothing more, or the projector.

    Args:
      beta: share of the base loss.
      tau: temperature of the similarities.
      dim: width of MOON's own projector under the head; 0 contrasts what the head already sees.
    """
    not_negative("moon", beta=beta, dim=dim)
    above_zero(tau=tau)

    def apply(method: Method) -> Method:
        if dim:
            trained = all(p.train is None for p in method.phases)
            if method.head.projector or not trained:
                raise UserError(
                    f"moon(dim={dim}) puts a projector under a head that is trained with it, and "
                    "this method has fixed class vectors or its own projector: use dim=0"
                )
            method = method._replace(head=method.head._replace(projector=(FEATURES, dim)))
        return mix(method, contrastive(tau), beta=beta, parts=previous_models())

    return apply


@regulariser
def kd(*, beta: float = 0.9, tau: float = 1.0) -> Regulariser:
    """Knowledge distillation from the received model: beta L + (1 - beta) L_KD.

    Paper:    Hinton et al., 2015; mixed as in Kim et al., FedDr+, arXiv 2406.02355, section 3.4.
    Changes:  + tau^2 KL(received softmax || own softmax).
    Differs:  FedDr+ does not give the temperature.
    Uploads:  nothing more.

    Args:
      beta: share of the base loss.
      tau: temperature of both softmaxes.
    """
    not_negative("kd", beta=beta)
    above_zero(tau=tau)
    term = per_example("kd", lambda c: losses.kd(c.out.logits, c.ref().logits, tau=tau))
    return lambda method: mix(method, term, beta=beta)


@regulariser
def ntd(*, beta: float = 0.9, tau: float = 1.0) -> Regulariser:
    """Not-true distillation from the received model: beta L + (1 - beta) L_NTD.

    Paper:    Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
              Learning, NeurIPS 2022; mixed as in FedDr+, arXiv 2406.02355, section 3.4.
    Changes:  as kd, over the classes that are not the true one.
    Differs:  FedDr+ does not give the temperature.
    Uploads:  nothing more.

    Args:
      beta: share of the base loss.
      tau: temperature of both softmaxes.
    """
    not_negative("ntd", beta=beta)
    above_zero(tau=tau)
    return lambda method: mix(method, not_true(tau), beta=beta)


def not_true(tau: float) -> Term:
    """Returns FedNTD's term (equation 4)."""

    def distance(c: Context) -> jax.Array:
        return losses.not_true_kd(c.out.logits, c.ref().logits, labels=c.batch.y, tau=tau)

    return per_example("ntd", distance)


@regulariser
def ld(*, beta: float = 0.9) -> Regulariser:
    """Logit distillation from the received model: beta L + (1 - beta) L_LD.

    Paper:    Kim et al., FedDr+, arXiv 2406.02355, 2024, section 3.4.
    Changes:  + mean squared distance of logits to the received model's.
    Uploads:  nothing more.

    Args:
      beta: share of the base loss.
    """
    not_negative("ld", beta=beta)
    term = per_example("ld", lambda c: losses.logit_l2(c.out.logits, c.ref().logits))
    return lambda method: mix(method, term, beta=beta)


@regulariser
def fd(*, beta: float = 0.9, finetune: bool = False) -> Regulariser:
    """Feature distillation from the received model: beta L + (1 - beta) L_FD.

    Paper:    Kim et al., FedDr+, arXiv 2406.02355, 2024, section 3.2.
    Changes:  + mean squared distance of raw features to the received model's.
    Defaults: beta = 0.9; fine-tuning stays the method's own.
    Uploads:  nothing more.

    Args:
      beta: share of the base loss.
      finetune: distil in personal fine-tuning too, from the global model (table 14).
    """
    not_negative("fd", beta=beta)
    term = per_example("fd", lambda c: losses.feature_l2(c.out.features, c.ref().features))

    def apply(method: Method) -> Method:
        mixed = mix(method, term, beta=beta)
        if not finetune:
            return mixed
        if not method.finetune:
            raise UserError(
                f"fd(finetune=True): '{method.name}' defines no fine-tuning: leave finetune out"
            )
        return mixed._replace(finetune=distilled(method.finetune, term, beta=beta))

    return apply


def distilled(
    phases: tuple[Phase | Repeat, ...], term: Term, beta: float
) -> tuple[Phase | Repeat, ...]:
    """Returns phases of fine-tuning whose objectives L are beta L + (1 - beta) R."""
    return tuple(
        p._replace(phases=distilled(p.phases, term, beta=beta))
        if isinstance(p, Repeat)
        else p._replace(terms=mixed_terms(p.terms, term, beta=beta))
        for p in phases
    )


def contrastive(tau: float, count: int = 1) -> Term:
    """Returns MOON's term (equation 3) against so many of a client's last models."""

    def contrast(c: Context) -> jax.Array:
        z, z_global = c.out.projected, c.ref("global").projected
        newest, *earlier = (c.ref(name).projected for name in _names(count))
        times = None if count == 1 else times_in_pool(c.client["pool"], rounds=c.shared["pool"])
        return losses.model_contrastive(
            z, z_global, z_previous=newest, tau=tau, earlier=tuple(earlier), times=times
        )

    return per_example("moon", contrast)


def previous_models(count: int = 1) -> tuple[Part, ...]:
    """Returns the parts that keep a client's models of the last rounds it took part in.

    With more than one, a further part has the rounds so far and, of each client, the rounds that
    its models are of: all that the pool of the official code depends on. So an absent client's
    state need not change when the pool does.
    """
    newest = Part("previous", init_client=lambda s: s.weights, keep=lambda f: f.weights)
    if count == 1:
        return (newest,)
    # whenever the client takes part, a model moves on by one place
    older = [
        newest._replace(name=name, keep=lambda f, before=before: f.client[before])
        for before, name in itertools.pairwise(_names(count))
    ]
    pool = Part(
        "pool",
        lambda setup: jnp.zeros((), jnp.int32),
        init_client=lambda setup: jnp.full(count, -1, jnp.int32),
        keep=lambda f: jnp.append(f.shared["pool"], f.client["pool"][:-1]),
        reduce=lambda rounds, uploads, arrived: rounds + 1,
    )
    return (newest, *older, pool)


def _names(count: int) -> list[str]:
    """Returns the names of the parts that keep a client's last models, newest first."""
    return ["previous", *(f"previous{n}" for n in range(2, count + 1))]


def times_in_pool(stored: jax.Array, rounds: jax.Array) -> jax.Array:
    """Counts how often each of a client's models is in the official code's pool.

    The pool holds what a client had at the end of each of the last rounds, as many as it has room
    for: the same model again where the client was absent.

    Args:
      stored: the round at whose end the client got each model, newest first; -1 is the first model.
      rounds: how many there have been.
    """
    ends = rounds - 1 - jnp.arange(len(stored))  # the rounds that the pool is of
    followed = jnp.append(rounds, stored[:-1])  # when the client got the next model
    held = (stored[:, None] <= ends) & (ends < followed[:, None]) & (ends >= 0)
    return jnp.sum(held, axis=1)
