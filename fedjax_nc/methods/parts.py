"""Parts that several methods share: what travels besides the model."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_nc import losses
from fedjax_nc.methods.base import Finished, Part, Setup
from fedjax_nc.types import Batch, Outputs


class ClassMeans(NamedTuple):
    """One vector per class, and which of them exist yet."""

    mean: jax.Array
    seen: jax.Array


def prototypes() -> Part:
    """Mean feature of every class over the participants' data (FedBlade, eq. 13-14).

    A class that no participant has keeps its old one.
    """

    def empty(setup: Setup) -> ClassMeans:
        params = setup.weights.params
        first = params["projector"]["0"] if "projector" in params else params["head"]
        features, classes = len(first["kernel"]), params["head"]["kernel"].shape[1]
        return ClassMeans(jnp.zeros((classes, features)), jnp.zeros(classes, bool))

    def reduce(old: ClassMeans, sums: losses.ClassSums, setup: Setup) -> ClassMeans:
        del setup
        present = sums.count > 0
        mean = jnp.where(present[:, None], sums.mean, old.mean)
        return ClassMeans(mean, old.seen | present)

    collect = per_class(lambda out: out.features)
    return Part("prototypes", empty, collect=collect, reduce=reduce)


def per_class(
    of: Callable[[Outputs], jax.Array], augment: bool = False
) -> Callable[[Finished], losses.ClassSums]:
    """What a client uploads: sums over its classes under its new model."""

    def sums(out: Outputs, batch: Batch) -> losses.ClassSums:
        return losses.class_sums(of(out), batch.y, batch.mask, out.logits.shape[-1])

    return lambda f: f.over_data(sums, augment)


class SoftLabels(NamedTuple):
    """FedDW's matrix: row c is the mean softmax output on data of class c."""

    matrix: jax.Array
    seen: jax.Array
    history: losses.ClassSums  # of all rounds, which the released rule never clears
    rounds: jax.Array


def soft_labels(rule: str) -> Part:
    """The soft-label matrix by equation 7 (`paper`) or as FedDW's code does it (`code`)."""

    def start(setup: Setup) -> SoftLabels:
        classes = setup.weights.params["head"]["kernel"].shape[1]
        nothing = losses.ClassSums(jnp.zeros((classes, classes)), jnp.zeros(classes))
        seen = jnp.full(classes, rule == "code")
        return SoftLabels(jnp.eye(classes), seen, nothing, jnp.zeros((), jnp.int32))

    def reduce(old: SoftLabels, new: losses.ClassSums, setup: Setup) -> SoftLabels:
        del setup
        update = soft_labels_by_code if rule == "code" else soft_labels_by_paper
        return update(old, new)

    # the released code measures on augmented images, as they come from its training loader
    collect = per_class(lambda out: jax.nn.softmax(out.logits), augment=rule == "code")
    return Part("soft_labels", start, collect=collect, reduce=reduce)


def soft_labels_by_paper(old: SoftLabels, new: losses.ClassSums) -> SoftLabels:
    """Equation 7 over the round's participants; a class nobody has keeps its row."""
    present = new.count > 0
    matrix = jnp.where(present[:, None], new.mean, old.matrix)
    return old._replace(matrix=matrix, seen=old.seen | present, rounds=old.rounds + 1)


def soft_labels_by_code(old: SoftLabels, new: losses.ClassSums) -> SoftLabels:
    """S <- (S + mean of all uploads of all rounds) / 2; unseen classes have the identity's row."""
    total = losses.ClassSums(old.history.total + new.total, old.history.count + new.count)
    eye = jnp.eye(len(old.matrix), dtype=old.matrix.dtype)
    fresh = jnp.where((total.count > 0)[:, None], total.mean, eye)
    return SoftLabels(0.5 * old.matrix + 0.5 * fresh, old.seen, total, old.rounds + 1)
