"""The records everything else is written in: weights, batches, model outputs, federated state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int, Key, Num, PyTree

Params = dict[str, Any]  # the top-level key is the parameter group: body, projector, head, scale

CLASSES = 0  # in HeadSpec.projector: as many units as there are classes
FEATURES = -1  # in HeadSpec.projector: as many units as the body has features


def narrow(channels: int, width: float) -> int:
    """How many channels remain: near a multiple of eight, not below nine tenths of the share."""
    return min(channels, divisible(channels * width))


def divisible(channels: float, by: int = 8) -> int:
    """FedAlign's rounding, which for fewer than four channels gives 1 or 9."""
    nearest = max(1, int(channels + by / 2) // by * by)
    return nearest + by if nearest < 0.9 * channels else nearest


class Weights(NamedTuple):
    """All a forward pass needs: parameters by group, and BatchNorm's running statistics."""

    params: Params
    stats: PyTree


class Batch(NamedTuple):
    """One mini-batch; `mask` is False on padding rows."""

    x: Num[Array, "b ..."]
    y: Int[Array, " b"]
    mask: Bool[Array, " b"]


class Outputs(NamedTuple):
    """Every intermediate a loss may want; jit prunes what nobody reads."""

    blocks: tuple[Float[Array, "b ..."], ...]  # one feature map per stage
    levels: tuple[Float[Array, "b ..."], ...]  # stem and stages before their last ReLU, pooled
    features: Float[Array, "b d"]  # h = f(x)
    projected: Float[Array, "b p"]  # g(h); equals the features without a projector
    logits: Float[Array, "b c"]


class Model(NamedTuple):
    """A network as pure functions; nothing outside `models/` knows that flax exists.

    init:  (key) -> Weights
    apply: (weights, x, *, train, mask=None, key=None, width=1.0) -> (Outputs, new statistics);
           a width below 1 keeps the first channels of every layer and leaves statistics alone
    head:  (params, features) -> (projected, logits), projector and head alone
    last_stage: (weights, map, *, width, mask=None) -> map, the last stage alone at this width
    """

    init: Callable[..., Weights]
    apply: Callable[..., tuple[Outputs, PyTree]]
    head: Callable[..., tuple[Array, Array]]
    last_stage: Callable[..., Array] | None = None  # None: not a network of stages
    channels: tuple[int, ...] = ()  # of every stage; empty: no widths


class HeadSpec(NamedTuple):
    """What sits on the features: optional projector, class vectors, optional learnable scale."""

    kind: str = "linear"  # linear | cosine | etf | orthonormal
    bias: bool = True
    projector: tuple[int, ...] = ()  # layer widths, ReLU between; CLASSES and FEATURES allowed
    normalise: bool = False  # unit-length projected features before the class vectors
    learn_scale: bool = False  # logits times a learnable temperature, `scale` at the start
    encoder: bool = False  # the body ends with two dense layers and BatchNorm (FedGELA)
    own: bool = False  # a second head that starts like the first, group `own_head` (Fed-RoD)
    projector_bias: bool = True  # whether the projector's layers have one
    scale: float = 1.0  # logits times this, unless it is learned


class ClientInfo(NamedTuple):
    """Facts about a client in this round, never state."""

    size: Int[Array, ""]
    class_counts: Float[Array, " c"]
    num_steps: Int[Array, ""]  # local steps of the round, all phases together
    lr: Float[Array, ""]
    momentum: float
    relative_size: Float[Array, ""] | float = 1.0  # its size beside the mean over all clients
    nesterov: bool = False  # whether momentum is Nesterov's


class Table(NamedTuple):
    """Rows of example numbers, one row per client, padded to the longest."""

    index: Int[Array, "n longest"]
    size: Int[Array, " n"]


class Pool(NamedTuple):
    """Training examples first, official test examples behind them."""

    x: Num[Array, "n ..."]  # uint8 images or int32 tokens
    y: Int[Array, " n"]


class FederatedData(NamedTuple):
    """Everything a round reads. Another partition or seed is only another table."""

    pool: Pool
    train: Table  # one row per client
    client_test: Table  # one row per client
    test: Table  # the official test examples, in rows of like length
    class_counts: Float[Array, "n c"]  # of the training rows


class Hyper(NamedTuple):
    """Numbers people sweep. Traced, so that another value does not compile again."""

    lr: Float[Array, ""]
    term_weights: tuple[tuple[Float[Array, ""], ...], ...]  # [phase][term]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Exactly what a checkpoint holds. `key` never changes: randomness = fold_in(key, round).

    The state of several seeds has a leading axis everywhere.
    """

    round: Int[Array, "*seeds"]
    key: Key[Array, "*seeds"]
    weights: Weights
    shared: Mapping[str, PyTree]  # per part, broadcast every round
    clients: Mapping[str, PyTree]  # per part, leading axis = clients
