"""The premises of FedDW: soft labels agree with class vectors, and norms with class shares."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_nc import linalg, losses


class RelationDistance(NamedTuple):
    """The distance between soft labels and class relations, over the classes with soft labels."""

    frobenius: Float[Array, ""]  # |S - R|_F
    consistency: Float[Array, ""]  # |S - R|_F^2 / C^2 (FedDW, eq. 11)


class NormShare(NamedTuple):
    """Spearman's correlation between the norms of class vectors and the shares of classes."""

    clients: Float[Array, " k"]  # one per client, over classes
    pooled: Float[Array, ""]  # over all clients and classes


def soft_label_matrix(
    logits: Float[Array, "n c"], y: Int[Array, " n"], mask: Bool[Array, " n"], classes: int
) -> tuple[Float[Array, "c c"], Bool[Array, " c"]]:
    """Computes the mean softmax output of each class, and which classes have examples.

    These are FedDW's equations 4 to 6; over the data of all clients, the matrix of equation 7.
    """
    chex.assert_axis_dimension(logits, 1, classes)
    sums = losses.class_sums(jax.nn.softmax(logits), y, mask=mask, classes=classes)
    return sums.mean, sums.count > 0


def relation_distance(
    soft: Float[Array, "c c"], relations: Float[Array, "c c"], seen: Bool[Array, " c"]
) -> RelationDistance:
    """Computes how far soft labels are from the head's `losses.class_relations`."""
    consistency = losses.soft_label_consistency(soft, relations, seen=seen)
    return RelationDistance(len(soft) * linalg.safe_sqrt(consistency), consistency)


def relative_norms(vectors: Float[Array, "c d"]) -> Float[Array, " c"]:
    """Computes |w_c| / sum_i |w_i| (FedDW, figure 4).

    The figure's caption squares the norms; the text and the code do not.
    """
    chex.assert_rank(vectors, 2)
    norms = linalg.safe_norm(vectors)
    return norms / jnp.sum(norms)


def norm_share_correlation(
    vectors: Float[Array, "k c d"], counts: Float[Array, "k c"]
) -> NormShare:
    """Computes whether classes with more data have longer class vectors; FedDW finds shorter ones.

    The correlation is of ranks, so that it does not matter whether norms are squared. It is NaN for
    a client without data, and where all norms or all shares are equal.

    Args:
      vectors: class vectors of each client's trained head.
      counts: examples of each class on each client; 0 is a share like any other.
    """
    chex.assert_equal_shape_prefix([vectors, counts], 2)
    # in units of the mean norm; at five decimals, as a fixed head's norms differ by rounding only
    norms = jnp.round(jax.vmap(relative_norms)(vectors) * vectors.shape[1], 5)
    size = jnp.sum(counts, 1, keepdims=True)
    shares = counts / jnp.maximum(size, 1.0)
    exists = jnp.broadcast_to(size > 0, counts.shape)
    return NormShare(
        jax.vmap(_spearman)(norms, shares, exists),
        _spearman(norms.ravel(), shares.ravel(), exists=exists.ravel()),
    )


def _spearman(a: Array, b: Array, exists: Array) -> Array:
    """Computes Pearson's correlation of the ranks."""
    a, b = _centred_ranks(a, exists), _centred_ranks(b, exists)
    return jnp.where(jnp.any(a != 0) & jnp.any(b != 0), linalg.cosine(a, b), jnp.nan)


def _centred_ranks(x: Array, exists: Array) -> Array:
    """Computes ranks minus their mean; equal values share a mean rank, missing values have 0."""
    ordered = jnp.sort(jnp.where(exists, x, jnp.inf))
    below, up_to = (jnp.searchsorted(ordered, x, side=side) for side in ("left", "right"))
    return jnp.where(exists, (below + up_to - jnp.sum(exists)) / 2, 0.0)
