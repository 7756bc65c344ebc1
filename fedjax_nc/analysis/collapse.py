"""Neural collapse: how close features are to one point per class, and these to a simplex ETF."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_nc import linalg, losses


class Collapse(NamedTuple):
    """Distances from neural collapse: all are zero on an exact simplex ETF of all classes."""

    nc1: Float[Array, ""]  # tr(S_W S_B^+) / C (Papyan et al. 2020)
    within_share: Float[Array, ""]  # tr S_W / tr S_T, between 0 and 1
    nc2_norms: Float[Array, ""]  # std / mean of the centred means' norms
    nc2_angles: Float[Array, ""]  # mean |cos + 1/(C-1)| over pairs of centred means
    nc2: Float[Array, ""]  # |Gram of centred unit means - that of the ETF|_F (FedBlade, eq. 4)
    nc3: Float[Array, ""]  # | W / |W|_F - M / |M|_F |_F, M the centred unit means (FedBlade, eq. 5)
    nc4: Float[Array, ""]  # share of examples where head and nearest mean disagree (eq. 6)
    nc_error: Float[Array, ""]  # mean (cos + 1/(C-1))^2 over pairs of uncentred means (FedETF)


def class_means(
    features: Float[Array, "n d"], y: Int[Array, " n"], mask: Bool[Array, " n"], classes: int
) -> tuple[Float[Array, "c d"], Bool[Array, " c"]]:
    """Computes each class's mean feature, zero without examples, and which classes have some."""
    sums = losses.class_sums(features, y, mask=mask, classes=classes)
    return sums.mean, sums.count > 0


def collapse(
    features: Float[Array, "n d"],
    logits: Float[Array, "n c"],
    y: Int[Array, " n"],
    mask: Bool[Array, " n"],
    vectors: Float[Array, "c d"],
) -> Collapse:
    """Computes the measures of neural collapse for one model.

    S_W, S_B and the centre are means over the classes seen, each of equal weight (FedBlade's mu_G),
    and S_T = S_W + S_B; C counts all classes. Classes without examples are left out; then even a
    part of an exact ETF has nc2 > 0, since its own centre is not zero. Where all class means agree,
    S_B^+ and nc1 are zero. nc4 is NaN without an example, the others with fewer than two classes.

    Args:
      features: what the head reads; behind a projector, if there is one.
      logits: the head's.
      y: true classes.
      mask: rows that are not padding.
      vectors: the head's class vectors.
    """
    chex.assert_equal_shape_prefix([features, logits, y, mask], 1)
    chex.assert_equal_shape_suffix([features, vectors], 1)
    means, seen = class_means(features, y, mask=mask, classes=len(vectors))
    centre = jnp.sum(means, 0) / jnp.maximum(jnp.sum(seen), 1)
    centred = jnp.where(seen[:, None], means - centre, 0.0)

    deviations = jnp.where(mask[:, None], features - means[y], 0.0)
    nc1, within_share = _variability(deviations, y, mask=mask, centred=centred, seen=seen)
    distances = jnp.sum(centred**2, 1) - 2 * (features - centre) @ centred.T  # less |x|^2
    nearest = jnp.argmin(jnp.where(seen, distances, jnp.inf), axis=1)
    disagree = (nearest != jnp.argmax(logits, axis=1)).astype(features.dtype)
    unit, heads = linalg.normalise(centred), jnp.where(seen[:, None], vectors, 0.0)
    dual = linalg.normalise(heads.ravel()) - linalg.normalise(unit.ravel())
    both, itself = seen[:, None] & seen, jnp.eye(len(seen), dtype=bool)
    gap = jnp.where(both, _from_simplex(unit), 0.0)
    angles = jnp.where(itself, 0.0, jnp.abs(gap))
    errors = jnp.where(both & ~itself, _from_simplex(linalg.normalise(means)) ** 2, 0.0)
    pairs = jnp.maximum(jnp.sum(both & ~itself), 1)
    values = Collapse(
        nc1=nc1,
        within_share=within_share,
        nc2_norms=_relative_spread(linalg.safe_norm(centred), seen),
        nc2_angles=jnp.sum(angles) / pairs,
        nc2=linalg.safe_norm(gap.ravel()),
        nc3=linalg.safe_norm(dual),
        nc4=losses.masked_mean(disagree, mask),
        nc_error=jnp.sum(errors) / pairs,
    )
    exists = Collapse(*[jnp.sum(seen) > 1] * len(values))._replace(nc4=jnp.any(mask))
    return jax.tree.map(lambda value, there: jnp.where(there, value, jnp.nan), values, exists)


def prototype_consistency(
    means: Float[Array, "k c d"], seen: Bool[Array, "k c"]
) -> Float[Array, ""]:
    """Computes the mean cosine of clients' class means, over pairs of clients, then over classes.

    That is figure 5a of FedETF, in the order of its code. Classes that fewer than two clients have
    are left out; NaN if no class is left.
    """
    chex.assert_equal_shape_prefix([means, seen], 2)
    unit = jnp.where(seen[..., None], linalg.normalise(means), 0.0)
    # sum_{i != j} u_i . u_j = |sum_i u_i|^2 - sum_i |u_i|^2
    cosines = jnp.sum(jnp.sum(unit, 0) ** 2, -1) - jnp.sum(unit**2, (0, 2))
    clients = jnp.sum(seen, 0)
    shared = clients > 1
    per_class = jnp.where(shared, cosines / jnp.maximum(clients * (clients - 1), 1), 0.0)
    return jnp.sum(per_class) / jnp.sum(shared)


def _variability(deviations, y, mask, centred, seen):
    """Computes tr(S_W S_B^+) / C and tr S_W / tr S_T without d x d matrices."""
    classes, count = len(seen), jnp.maximum(jnp.sum(seen), 1)

    def within(values):  # mean over classes of the mean of squares
        squares = jnp.sum(values**2, axis=-1, keepdims=True)
        return jnp.sum(class_means(squares, y, mask=mask, classes=classes)[0]) / count

    singular, axes = _axes(centred)  # S_B = axes^T singular^2 axes / count
    # centred means have one rank less than there are; what is left beyond that is rounding
    least = singular[0] * max(centred.shape) * jnp.finfo(centred.dtype).eps
    kept = (jnp.arange(len(singular)) < count - 1) & (singular > least)
    inverse = jnp.where(kept, 1 / jnp.where(kept, singular, 1.0), 0.0)
    trace = within(deviations)
    total = trace + jnp.sum(centred**2) / count
    nc1 = count * within(deviations @ axes.T * inverse) / classes
    return nc1, trace / jnp.where(total > 0, total, 1.0)


def _from_simplex(unit):
    """Subtracts the Gram matrix of a simplex ETF from that of unit vectors."""
    cosine = -1 / max(len(unit) - 1, 1)
    return unit @ unit.T - jnp.where(jnp.eye(len(unit), dtype=bool), 1.0, cosine)


def _relative_spread(norms, seen):
    """Computes the standard deviation over the mean."""
    count = jnp.maximum(jnp.sum(seen), 1)
    mean = jnp.sum(jnp.where(seen, norms, 0.0)) / count
    variance = jnp.sum(jnp.where(seen, (norms - mean) ** 2, 0.0)) / count
    return jnp.sqrt(variance) / jnp.maximum(mean, 1e-12)


def _svd(matrix: Float[Array, "c d"]) -> tuple[Float[Array, " r"], Float[Array, "r d"]]:
    """Returns the singular values, descending, and the right singular vectors."""
    _, singular, axes = jnp.linalg.svd(matrix, full_matrices=False)
    return singular, axes


_axes = jax.custom_batching.sequential_vmap(_svd)  # no batch of LAPACK calls, see `linalg`
