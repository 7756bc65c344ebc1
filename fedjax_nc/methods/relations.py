"""Methods that share how classes resemble each other: FedDW and Fedistill+."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_nc import losses
from fedjax_nc.errors import UserError
from fedjax_nc.methods import parts, terms
from fedjax_nc.methods.averaging import fedavg
from fedjax_nc.methods.base import (
    Arrived,
    Context,
    Method,
    Part,
    Regulariser,
    Term,
    above_zero,
    add,
    not_negative,
)
from fedjax_nc.methods.registry import base, regulariser
from fedjax_nc.types import HeadSpec


@base
def feddw(
    *,
    mu: float = 0.1,
    rule: Literal["paper", "code"] = "paper",
    decay: bool = False,
    form: Literal["softmax", "linear"] = "softmax",
    refresh: int = 1,
    bias: bool = False,
) -> Method:
    """FedDW: class vectors relate to each other as the soft labels of all clients do.

    Paper:    Liu et al., FedDW: Distilling Weights through Consistency Optimization in
              Heterogeneous Federated Learning, 2024, eqs. 7, 11, 26-30.
    Changes:  + mu/C^2 |S - softmax(W W^T)|_F^2 with the soft-label matrix S; head without bias.
    Defaults: mu = 0.1 (CIFAR-10), 10 (CIFAR-100); S by equation 7 over the round's participants;
              the linear form's reference is each round's received W.
    Differs:  the code starts S at the identity, averages it with all uploads of all past rounds
              (rule = code), divides mu by 10 every ninth round (decay), keeps the head's bias
              (bias), and has no linear form. The paper gives no number for the intervals at which
              A_0 moves (refresh). Unknown rows of S count nothing under rule = paper.
    Uploads:  the model, a C x C matrix and C counts.

    Args:
      mu: weight of the consistency term.
      rule: how the server updates S, by equation 7 or as the released code.
      decay: divide mu by 10 in every ninth round.
      form: softmax of W W^T, or W W^T to first order around the received W, which is convex.
      refresh: rounds after which the linear form's reference A_0 becomes the received W again.
      bias: keep the bias of the last layer.
    """
    not_negative("feddw", mu=mu)
    plain = fedavg()._replace(head=HeadSpec(bias=bias))
    return dw(mu=mu, rule=rule, decay=decay, form=form, refresh=refresh)(plain)


@regulariser
def dw(
    *,
    mu: float = 0.1,
    rule: Literal["paper", "code"] = "paper",
    decay: bool = False,
    form: Literal["softmax", "linear"] = "softmax",
    refresh: int = 1,
) -> Regulariser:
    """FedDW's term on any method that trains its class vectors: L + mu L_reg.

    Paper:    Liu et al., FedDW, 2024, section V-E.
    Changes:  as feddw; the head keeps its bias if it has one.
    Uploads:  in addition a C x C matrix and C counts.

    Args:
      mu: weight of the consistency term.
      rule: how the server updates S, by equation 7 or as the released code; feddistill's own S
        stays as it is.
      decay: divide mu by 10 in every ninth round.
      form: softmax of W W^T, or W W^T to first order around the received W.
      refresh: rounds after which the linear form's reference A_0 becomes the received W again.
    """
    not_negative("dw", mu=mu)
    above_zero(refresh=refresh)
    if refresh != 1 and form != "linear":
        raise UserError(f"dw: refresh={refresh} belongs to form='linear': give both, or neither")

    def consistency(c: Context) -> jax.Array:
        soft, vectors = c.shared["soft_labels"], terms.class_vectors(c)
        if form == "linear":
            received = c.received.params["head"]["kernel"]
            point = received if refresh == 1 else expanded(c.shared["reference"], received)
            relations = losses.linearised_gram(vectors, point.T)
        else:
            relations = losses.class_relations(vectors)
        value = losses.soft_label_consistency(soft.matrix, relations, seen=soft.seen)
        return value * 0.1 ** ((soft.rounds + 1) // 9) if decay else value

    def apply(method: Method) -> Method:
        frozen = all(p.train is not None and "head" not in p.train for p in method.phases)
        if frozen or method.head.kind != "linear":
            raise UserError(
                "dw moves the class vectors, and this method keeps them fixed: use a method that "
                "trains a linear head, such as fedavg, fedprox, moon or scaffold"
            )
        if refresh != 1 and "head" in method.personal:
            raise UserError(
                f"dw: refresh={refresh} needs one head for all, and this method's stay with the "
                "clients: leave refresh out"
            )
        known = any(part.name == "soft_labels" for part in method.parts)  # Fedistill+ has them
        new = () if known else (parts.soft_labels(rule),)
        new += () if refresh == 1 else (reference,)
        return add(method, Term("dw", consistency, weight=mu), parts=new)

    def expanded(last: Reference, received: jax.Array) -> jax.Array:
        return jnp.where(last.rounds % refresh == 0, received, last.kernel)

    def moved(last: Reference, uploads: Any, arrived: Arrived) -> Reference:
        del uploads
        received = arrived.sent.params["head"]["kernel"]
        return Reference(expanded(last, received), last.rounds + 1)

    reference = Part(
        "reference",
        lambda setup: Reference(
            setup.weights.params["head"]["kernel"], rounds=jnp.zeros((), jnp.int32)
        ),
        reduce=moved,
    )
    return apply


class Reference(NamedTuple):
    """The point A_0 around which FedDW's linear form expands, as the server keeps it."""

    kernel: jax.Array
    rounds: jax.Array  # so far


@base
def feddistill(
    *,
    gamma: float = 1.0,
    rule: Literal["paper", "code", "fedgen"] = "code",
    form: Literal["kl", "linear"] = "kl",
) -> Method:
    """Fedistill+: FedAvg that listens to the mean soft label of each class.

    Paper:    Jeong et al., Communication-Efficient On-Device Machine Learning, arXiv 1811.11479,
              2018; with averaged models in Liu et al., FedDW, 2024, table IV.
    Changes:  + gamma KL(S_y || softmax(z)) with FedDW's soft-label matrix S.
    Defaults: gamma = 1; S as FedDW's code keeps it.
    Differs:  FedDW's code gives PyTorch's KL probabilities in place of log-probabilities, so its
              term is linear in them (form = linear). FedGen's code shares mean logits of each
              class, with counts that start at 1, and their softmax teaches (rule = fedgen).
    Uploads:  the model, a C x C matrix and C counts.

    Args:
      gamma: weight of the term.
      rule: how the server updates S, by FedDW's equation 7, as its code, or as FedGen's.
      form: the divergence, or what FedDW's code computes.
    """
    not_negative("feddistill", gamma=gamma)
    known = parts.soft_labels(rule)

    def divergence(c: Context) -> jax.Array:
        soft = c.shared[known.name]
        matrix = jax.nn.softmax(soft.matrix) if rule == "fedgen" else soft.matrix
        values = losses.soft_label_kl(c.out.logits, matrix[c.batch.y], form=form)
        return losses.masked_mean(values, c.batch.mask & soft.seen[c.batch.y])

    return add(fedavg(), Term("soft_labels", divergence, weight=gamma), parts=(known,))
