"""The loss on a plane through a model: the plane's directions, other models in it, its heights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key

from fedjax_nc import linalg, losses, tree
from fedjax_nc.analysis.outputs import Batches
from fedjax_nc.train.executors import Executor
from fedjax_nc.train.local import Task
from fedjax_nc.types import Params, Pool, Weights


class Plane(NamedTuple):
    """The points origin + x * first + y * second; groups without a direction stay the origin's."""

    origin: Weights
    first: Params
    second: Params


def at(plane: Plane, x: Any, y: Any) -> Weights:
    """Returns the model at a point of the plane; statistics stay the origin's."""
    moved = jax.tree.map(
        lambda o, a, b: o + x * a + y * b,
        tree.pick(plane.origin.params, tuple(plane.first)),
        plane.first,
        plane.second,
    )
    return plane.origin._replace(params={**plane.origin.params, **moved})


def coordinates(plane: Plane, params: Params) -> Float[Array, "2"]:
    """Computes where the plane is nearest to parameters, by least squares along its directions."""
    groups = tuple(plane.first)
    away = tree.sub(tree.pick(params, groups), tree.pick(plane.origin.params, groups))
    basis = (plane.first, plane.second)
    gram = jnp.stack([jnp.stack([tree.dot(a, b) for b in basis]) for a in basis])
    right = jnp.stack([tree.dot(a, away) for a in basis])
    return jnp.linalg.pinv(gram, rtol=1e-6, hermitian=True) @ right


def filter_normalised(params: Params, key: Key[Array, ""]) -> Params:
    """Draws a random direction whose filters are as long as the model's (Li et al. 2018).

    As in their section 4, it is zero for biases and normalisation layers.
    """
    leaves, shape = jax.tree_util.tree_flatten_with_path(params)
    keys = jax.random.split(key, len(leaves))

    def direction(path, leaf, key):
        if getattr(path[-1], "key", "") != "kernel":
            return jnp.zeros_like(leaf)
        drawn = jax.random.normal(key, leaf.shape, leaf.dtype)
        blocks = leaf.ndim % 2  # a loop over blocks has an axis for them in front
        axes = tuple(range(blocks, leaf.ndim - 1))
        ratio = _length(leaf, axes) / _length(drawn, axes)
        return drawn * ratio

    return shape.unflatten([direction(*item, k) for item, k in zip(leaves, keys, strict=True)])


def principal(origin: Params, models: Params) -> tuple[Params, Params]:
    """Computes the two unit directions in which stacked models spread most around the origin."""
    away = jax.tree.map(lambda m, o: m - o, models, origin)
    count = len(jax.tree.leaves(away)[0])
    rows = [x.reshape(count, -1) for x in jax.tree.leaves(away)]
    values, vectors = jnp.linalg.eigh(sum(x @ x.T for x in rows))

    def direction(rank: int) -> Params:
        # a single model spans a line only: the second direction is then zero
        scale = jnp.where(values[-rank] > 1e-9 * values[-1], values[-rank], jnp.inf) ** -0.5
        return jax.tree.map(lambda x: jnp.tensordot(vectors[:, -rank] * scale, x, 1), away)

    return direction(1), direction(min(2, count))


def make_surface(task: Task, executor: Executor) -> Callable[..., Float[Array, " m"]]:
    """Makes the function (plane, pool, batches, points) -> mean cross-entropy at each point.

    Devices share the points; on an accelerator those of a chunk are evaluated at once.
    """
    trainer = task.trainer

    def loss_at(broadcast, point):
        plane, pool, batches = broadcast
        weights = at(plane, point[0], y=point[1])

        def step(i, total):
            batch = trainer.make_batch(pool, batches.indices[i], batches.mask[i], None)
            out, _ = trainer.model.apply(weights, batch.x, train=False, mask=batch.mask)
            values = losses.cross_entropy(out.logits, batch.y)
            return total + jnp.sum(jnp.where(batch.mask, values, 0.0))

        total = lax.fori_loop(0, len(batches.mask), step, jnp.zeros(()))
        return total / jnp.sum(batches.mask), {}

    def losses_at(
        plane: Plane, pool: Pool, batches: Batches, points: Float[Array, "m 2"]
    ) -> Float[Array, " m"]:
        steps = jnp.ones(len(points), int)
        return executor.run(loss_at, (plane, pool, batches), points, steps)[0]

    return jax.jit(losses_at) if executor.jit else losses_at


def surface(
    fn: Callable[[Float[Array, "m 2"]], Float[Array, " m"]],
    xs: np.ndarray,
    ys: np.ndarray,
    at_once: int,
    progress: Callable[[int, int], None],
) -> np.ndarray:
    """Computes heights over a grid.

    Args:
      fn: points, [m 2], to their heights.
      xs: of the grid.
      ys: of the grid.
      at_once: points in one call, so that progress shows.
      progress: told how many points are done.

    Returns:
      The heights, [y, x].
    """
    points = np.stack(np.meshgrid(xs, ys), -1).reshape(-1, 2)
    found = []
    for start in range(0, len(points), at_once):
        some = points[start : start + at_once]
        filled = np.pad(some, ((0, at_once - len(some)), (0, 0)), mode="edge")  # one program
        found.append(np.asarray(fn(jnp.asarray(filled, jnp.result_type(float))))[: len(some)])
        progress(min(start + at_once, len(points)), len(points))
    return np.concatenate(found).reshape(len(ys), len(xs))


def _length(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Computes the norm over some axes, and keeps them."""
    return linalg.safe_sqrt(jnp.sum(x * x, axis=axes, keepdims=True))
