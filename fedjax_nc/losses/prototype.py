"""Class means, and losses against them."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_nc import linalg
from fedjax_nc.losses.classification import cross_entropy


class ClassSums(NamedTuple):
    """Sums over the examples of each class, which can be added up over batches and clients."""

    total: Float[Array, "*n c k"]
    count: Float[Array, "*n c"]

    @property
    def mean(self) -> Float[Array, "*n c k"]:
        """The mean of each class, zero for a class without examples."""
        return self.total / jnp.maximum(self.count, 1.0)[..., None]


def class_sums(
    values: Float[Array, "b k"], labels: Int[Array, " b"], mask: Bool[Array, " b"], classes: int
) -> ClassSums:
    """Computes the sum of the rows of each class, and how many there are."""
    chex.assert_equal_shape_prefix([values, labels, mask], 1)
    member = jax.nn.one_hot(labels, classes, dtype=values.dtype) * mask[:, None]
    return ClassSums(member.T @ jnp.where(mask[:, None], values, 0.0), jnp.sum(member, 0))


def projector_alignment(
    projected: Float[Array, "c p"], vectors: Float[Array, "c p"], seen: Bool[Array, " c"]
) -> Float[Array, ""]:
    """Computes L_PA = sum_c 1/2 (1 - cos(prototype_c, class vector_c))^2 (FedBlade, eq. 15).

    The prototypes are projected ones, and classes that were not `seen` do not count.
    """
    chex.assert_equal_shape([projected, vectors])
    values = 0.5 * (1 - linalg.cosine(projected, vectors)) ** 2
    return jnp.sum(jnp.where(seen, values, 0.0))


def prototype_contrast(
    features: Float[Array, "b d"],
    labels: Int[Array, " b"],
    prototypes: Float[Array, "c d"],
    seen: Bool[Array, " c"],
    shift: Float[Array, " c"],
    tau: float,
) -> Float[Array, " b"]:
    """Computes L_FA = CE( cos(z, prototype_c) / tau + shift_c, y ) (FedBlade, eq. 16).

    Classes without a prototype are no candidates, and examples of them give zero.

    Args:
      features: of the batch.
      labels: true classes.
      prototypes: of every class, constants.
      seen: which of them exist.
      shift: log n_c, or zeros to leave the class distribution out.
      tau: temperature.
    """
    chex.assert_equal_shape_suffix([features, prototypes], 1)
    cosines = linalg.normalise(features) @ linalg.normalise(prototypes).T
    logits = jnp.where(seen, cosines / tau + shift, -1e9)
    return jnp.where(seen[labels], cross_entropy(logits, labels), 0.0)


def prototype_l2(
    features: Float[Array, "b d"],
    targets: Float[Array, "b d"],
    seen: Bool[Array, " b"],
    unit: bool = False,
) -> Float[Array, " b"]:
    """Computes the mean square of z - P_y over dimensions (FedProto's code, FedFM's L2 form).

    Args:
      features: of the batch.
      targets: prototype of each row's class, constants.
      seen: whether it exists; rows without give zero but stay in the mean.
      unit: normalise both first (FedFM).
    """
    chex.assert_equal_shape([features, targets])
    if unit:
        features, targets = linalg.normalise(features), linalg.normalise(targets)
    return jnp.where(seen, jnp.mean((features - targets) ** 2, axis=-1), 0.0)


def moving_prototypes(
    vectors: Float[Array, "c d"], mean: Float[Array, "c d"], rho: float
) -> Float[Array, "c d"]:
    """Moves class vectors towards the class means (FedNH, eq. 7).

    W <- normalised(rho W + (1 - rho) normalised(mean)); a zero mean keeps W.
    """
    chex.assert_equal_shape([vectors, mean])
    return linalg.normalise(rho * vectors + (1 - rho) * linalg.normalise(mean))
