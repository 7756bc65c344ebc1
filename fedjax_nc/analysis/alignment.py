"""A client's model beside the global one, on classes it has observed or not (FedDr+)."""

from typing import NamedTuple

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_nc import linalg


class Alignment(NamedTuple):
    """Means over examples of observed and of unobserved classes; NaN where there are none."""

    cosine: Float[Array, "2"]  # cos(f(x; local), v_y) (FedDr+, figures 2b and 5)
    gap: Float[Array, "2"]  # the cosine minus the global model's (figure 2a)
    distance: Float[Array, "2"]  # |f(x; local) - f(x; global)| (figure 4a)
    relative: Float[Array, "2"]  # the distance over |f(x; global)|, not in the paper
    angle: Float[Array, "2"]  # between both features, degrees (figure 4b)
    count: Int[Array, "2"]  # examples


def alignment(
    local_features: Float[Array, "n d"],
    global_features: Float[Array, "n d"],
    local_projected: Float[Array, "n p"],
    global_projected: Float[Array, "n p"],
    vectors: Float[Array, "c p"],
    y: Int[Array, " n"],
    mask: Bool[Array, " n"],
    observed: Bool[Array, " c"],
) -> Alignment:
    """Computes how well features point to their class vectors, and how far training moved them.

    FedDr+ has no projector (sections 3.1 and 3.3). With one, cosines are taken after it, where the
    class vectors are, and distances and angles before it. A zero feature has cosine 0 and no angle,
    and no distance is relative to a zero global feature: these two means leave such examples out.

    Args:
      local_features: features under the client's model after its training.
      global_features: features of the same examples under the model it received.
      local_projected: what the client's head reads; without a projector, the features.
      global_projected: what the received model's head reads.
      vectors: class vectors; if clients train them, the caller chooses whose.
      y: true classes.
      mask: rows that are not padding.
      observed: classes in the client's training data.
    """
    chex.assert_equal_shape([local_features, global_features])
    chex.assert_equal_shape([local_projected, global_projected])
    chex.assert_equal_shape_suffix([local_projected, vectors], 1)
    groups = jnp.stack([observed[y], ~observed[y]]) & mask

    def mean(values, exists=mask):
        members = groups & exists
        return jnp.sum(jnp.where(members, values, 0.0), axis=1) / jnp.sum(members, axis=1)

    cosine = linalg.cosine(local_projected, vectors[y])
    distance = linalg.safe_norm(local_features - global_features)
    a, b = linalg.normalise(local_features), linalg.normalise(global_features)
    # accurate at small angles, where arccos has lost half the digits
    angle = 2 * jnp.arctan2(linalg.safe_norm(a - b), linalg.safe_norm(a + b))
    size = linalg.safe_norm(global_features)
    local_exists, global_exists = jnp.any(a != 0, axis=1), jnp.any(b != 0, axis=1)
    return Alignment(
        cosine=mean(cosine),
        gap=mean(cosine - linalg.cosine(global_projected, vectors[y])),
        distance=mean(distance),
        relative=mean(distance / size, global_exists),
        angle=mean(jnp.rad2deg(angle), local_exists & global_exists),
        count=jnp.sum(groups, axis=1),
    )
