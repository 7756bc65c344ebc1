"""Parts that several methods share: what travels besides the model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_nc import losses
from fedjax_nc.methods.base import Arrived, Finished, Part, Setup
from fedjax_nc.types import Batch, Outputs


class ClassMeans(NamedTuple):
    """One vector per class, and which classes have one yet."""

    mean: jax.Array
    seen: jax.Array


def no_class_means(setup: Setup) -> ClassMeans:
    """Returns the class means before the first round: none exists."""
    params = setup.weights.params
    first = params["projector"]["0"] if "projector" in params else params["head"]
    features, classes = len(first["kernel"]), params["head"]["kernel"].shape[1]
    return ClassMeans(jnp.zeros((classes, features)), jnp.zeros(classes, bool))


class PastMeans(NamedTuple):
    """Class means over all past rounds, and the sums they are made of, which the server keeps."""

    mean: jax.Array
    seen: jax.Array
    history: Any


def prototypes(weighted: bool = True, history: bool = False) -> Part:
    """Returns the part of every class's mean feature over participants (FedBlade, eq. 13-14).

    Without weights it is the mean of the clients' means (FedProto). A class that no participant
    has keeps its old mean.

    Args:
      weighted: weigh a client's mean by how many examples it is of.
      history: average the uploads of all past rounds, which FedDW's code never clears.
    """

    def reduce(old: ClassMeans, sums: losses.ClassSums, arrived: Arrived) -> ClassMeans:
        del arrived
        present = sums.count > 0
        mean = jnp.where(present[:, None], sums.mean, old.mean)
        return ClassMeans(mean, old.seen | present)

    def collect(f: Finished) -> losses.ClassSums:
        sums = per_class(lambda out: out.features)(f)
        return sums if weighted else losses.ClassSums(sums.mean, jnp.minimum(sums.count, 1.0))

    def none_yet(setup: Setup) -> PastMeans:
        none = no_class_means(setup)
        nothing = losses.ClassSums(none.mean, jnp.zeros(len(none.mean)))
        return PastMeans(none.mean, none.seen, history=nothing)

    def with_past(old: PastMeans, new: losses.ClassSums, arrived: Arrived) -> PastMeans:
        total = losses.ClassSums(old.history.total + new.total, old.history.count + new.count)
        mean, seen = reduce(ClassMeans(old.mean, old.seen), total, arrived)
        return PastMeans(mean, seen, history=total)

    if not history:
        return Part("prototypes", no_class_means, collect=collect, reduce=reduce)
    return Part(
        "prototypes",
        none_yet,
        collect=collect,
        reduce=with_past,
        send=lambda past: past._replace(history=()),
    )


def per_class(
    of: Callable[[Outputs], jax.Array], augment: bool = False
) -> Callable[[Finished], losses.ClassSums]:
    """Makes the upload of a client's sums per class under its new model.

    Args:
      of: from outputs to the rows that are summed.
      augment: whether images are augmented as in training.
    """

    def sums(out: Outputs, batch: Batch) -> losses.ClassSums:
        return losses.class_sums(of(out), batch.y, mask=batch.mask, classes=out.logits.shape[-1])

    return lambda f: f.over_data(sums, augment)


class SoftLabels(NamedTuple):
    """FedDW's matrix: row c is the mean softmax output on data of class c."""

    matrix: jax.Array
    seen: jax.Array
    history: Any  # ClassSums of all rounds, which the released rule never clears; server only
    rounds: jax.Array


def soft_labels(rule: str) -> Part:
    """Returns the part of the soft-label matrix, by a rule of three.

    Args:
      rule: FedDW's equation 7 (`paper`), FedDW's code (`code`) or FedGen's code (`fedgen`).
    """

    def start(setup: Setup) -> SoftLabels:
        classes = setup.weights.params["head"]["kernel"].shape[1]
        nothing = losses.ClassSums(jnp.zeros((classes, classes)), jnp.zeros(classes))
        seen = jnp.full(classes, rule == "code")
        return SoftLabels(jnp.eye(classes), seen, history=nothing, rounds=jnp.zeros((), jnp.int32))

    def reduce(old: SoftLabels, new: losses.ClassSums, arrived: Arrived) -> SoftLabels:
        del arrived
        update = soft_labels_by_code if rule == "code" else soft_labels_by_paper
        return update(old, new)

    def collect(f: Finished) -> losses.ClassSums:
        if rule == "fedgen":
            logits = mean_logits(per_class(lambda out: out.logits)(f))
            return losses.ClassSums(logits, jnp.ones(len(logits)))
        # FedDW's code measures on augmented images, as they come from its training loader
        return per_class(lambda out: jax.nn.softmax(out.logits), augment=rule == "code")(f)

    return Part(
        "mean_logits" if rule == "fedgen" else "soft_labels",
        start,
        collect=collect,
        reduce=reduce,
        send=lambda soft: soft._replace(history=()),
    )


def soft_labels_by_paper(old: SoftLabels, new: losses.ClassSums) -> SoftLabels:
    """Updates the matrix by FedDW's equation 7; a class no participant has keeps its row."""
    present = new.count > 0
    matrix = jnp.where(present[:, None], new.mean, old.matrix)
    return old._replace(matrix=matrix, seen=old.seen | present, rounds=old.rounds + 1)


def soft_labels_by_code(old: SoftLabels, new: losses.ClassSums) -> SoftLabels:
    """Updates S <- (S + mean of all rounds' uploads) / 2, the identity's row for unseen classes."""
    total = losses.ClassSums(old.history.total + new.total, old.history.count + new.count)
    eye = jnp.eye(len(old.matrix), dtype=old.matrix.dtype)
    fresh = jnp.where((total.count > 0)[:, None], total.mean, eye)
    return SoftLabels(
        0.5 * old.matrix + 0.5 * fresh, old.seen, history=total, rounds=old.rounds + 1
    )


def mean_logits(sums: losses.ClassSums) -> jax.Array:
    """Computes a client's mean logits of each class; counts start at one as in FedGen's code."""
    return sums.total / (sums.count + 1.0)[:, None]
