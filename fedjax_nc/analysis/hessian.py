"""The Hessian of a model's mean loss over fixed examples, known by its products with vectors.

The loss is the cross-entropy of the logits in evaluation mode, a function of the parameter groups
given; statistics are constants. For every batch the gradient is linearised once, and its linear map
takes one vector after another, so that they share the pass over the batch. On two CPU cores that
was faster than vmap over the vectors, and with four of them it took half the memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from fedjax_nc import losses, tree
from fedjax_nc.analysis.outputs import Batches, in_batches
from fedjax_nc.train.executors import Executor
from fedjax_nc.types import Batch, Model, Pool, Weights

Progress = Callable[[int, int], None]  # (done, of how many)
Reduce = Callable[[Any, Any], Any]  # (vectors, products), linear in the products


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Hessian:
    """The Hessian of one model, or of several whose weights are stacked on a leading axis."""

    weights: Weights
    pool: Pool
    batches: Batches
    apply: Callable[..., Any] = field(metadata={"static": True})
    groups: tuple[str, ...] = field(metadata={"static": True})
    several: bool = field(metadata={"static": True})

    @property
    def point(self) -> PyTree:
        """The parameters that vary, of one model; vectors have their shape."""
        params = tree.pick(self.weights.params, self.groups)
        return tree.take(params, 0) if self.several else params

    @property
    def size(self) -> int:
        """The number of rows, and of columns."""
        return tree.num_elements(jax.eval_shape(lambda h: h.point, self))

    def sums(self, vectors: PyTree, reduce: Reduce) -> PyTree:
        """Computes reduce(vectors, products), for each model if there are several.

        Args:
          vectors: stacked on a leading axis.
          reduce: linear in the products, since it is applied batch by batch.
        """
        apply = partial(self.apply, reduce=reduce)
        if self.several:  # the executor deals out pairs of model and batch
            apply = jax.vmap(apply, (0, None, None, None))
        return apply(self.weights, self.pool, self.batches, vectors)


def make_hessian(
    model: Model,
    batches: Callable[..., Batch],
    executor: Executor,
    batch_size: int,
    groups: tuple[str, ...],
) -> Callable[..., Hessian]:
    """Makes the function (weights, pool, indices, several=False) -> Hessian.

    What is computed from its Hessians is compiled once for each number of examples.

    Args:
      model: evaluated without training, so that statistics and dropout are fixed.
      batches: (pool, indices, mask, None) -> Batch, as `local.Trainer.batches`.
      executor: shares the batches out among devices.
      batch_size: examples linearised at once; memory grows with it, the result does not change.
      groups: names of the parameter groups that vary, those a method trains.
    """

    def products_of_batch(weights: Weights, pool: Pool, row: Batches, vectors: PyTree) -> PyTree:
        batch = batches(pool, row.indices, row.mask, None)

        def loss(trained):
            varied = Weights({**weights.params, **trained}, weights.stats)
            out, _ = model.apply(varied, batch.x, train=False, mask=batch.mask)
            values = losses.cross_entropy(out.logits, batch.y)
            return jnp.sum(jnp.where(batch.mask, values, 0.0))

        _, product = jax.linearize(jax.grad(loss), tree.pick(weights.params, groups))
        return lax.map(product, vectors)

    def apply(weights: Weights, pool: Pool, rows: Batches, vectors: PyTree, reduce: Reduce):
        def of_batch(broadcast, row):
            weights, pool, vectors = broadcast
            return {}, reduce(vectors, products_of_batch(weights, pool, row, vectors))

        steps = jnp.ones(len(rows.mask), jnp.int32)
        _, total = executor.run(of_batch, (weights, pool, vectors), rows, steps)
        return tree.scale(1 / jnp.sum(rows.mask), total)

    def at(weights: Weights, pool: Pool, indices: Any, several: bool = False) -> Hessian:
        chex.assert_rank(indices, 1)
        chex.assert_equal(set(groups) <= set(weights.params), True)
        rows = in_batches(indices, batch_size)
        weights, pool, rows = executor.place((weights, pool, rows))
        return Hessian(weights, pool, batches=rows, apply=apply, groups=groups, several=several)

    return at


@jax.jit
def products(hessian: Hessian, vectors: PyTree) -> PyTree:
    """Computes H v for stacked vectors v; several models each take all of them."""
    return hessian.sums(vectors, lambda _, products: products)


@partial(jax.jit, static_argnames="chunk")
def _rows(hessian: Hessian, first: Int[Array, ""], chunk: int) -> Float[Array, "chunk n"]:
    """Computes some rows of the matrix, by products with unit vectors."""
    flat, unravel = ravel_pytree(hessian.point)
    units = jax.nn.one_hot(first + jnp.arange(chunk), flat.size, dtype=flat.dtype)
    found = hessian.sums(jax.vmap(unravel)(units), lambda _, products: products)
    return jax.vmap(lambda row: ravel_pytree(row)[0])(found)


def dense(
    hessian: Hessian, *, chunk: int = 16, progress: Progress = lambda done, total: None
) -> np.ndarray:
    """Computes the whole matrix of a small model, by products with unit vectors.

    Rows and columns are in the order of `ravel_pytree(hessian.point)`.
    """
    chex.assert_equal(hessian.several, False)
    rows, size = [], hessian.size
    for first in range(0, size, chunk):
        rows.append(np.asarray(_rows(hessian, jnp.asarray(first), chunk)))
        progress(min(first + chunk, size), size)
    return np.concatenate(rows)[:size]
