"""Trace, diagonal and dominant eigenvalues of Hessians, as PyHessian and FedAlign estimate them."""

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from fedjax_nc import linalg, tree
from fedjax_nc.analysis.hessian import Hessian, Progress


class Samples(NamedTuple):
    """A Hessian's products with random probes v; those of several models have a leading axis."""

    tensors: np.ndarray  # [probe, tensor]: sum of v * Hv over each parameter tensor
    diagonal: PyTree  # mean over probes of v * Hv, an estimate of the Hessian's diagonal


class Trace(NamedTuple):
    """Hutchinson's estimate of a trace."""

    mean: float
    error: float  # standard error of the mean
    probes: int


class Eigen(NamedTuple):
    """Eigenvalues and their eigenvectors, stacked."""

    values: np.ndarray
    vectors: PyTree
    errors: np.ndarray  # how far each value may be from an eigenvalue of the matrix
    products: int  # Hessian products it took


def rademacher(point: PyTree, key: Key[Array, ""], indices: Int[Array, " m"]) -> PyTree:
    """Draws vectors of random signs, stacked.

    Args:
      point: a tree of the vectors' shape.
      key: of all vectors.
      indices: which vectors to draw; each is the same whichever others are drawn with it.
    """
    flat, unravel = ravel_pytree(point)  # one draw: a draw for every tensor takes long to compile

    def draw(index):
        return unravel(
            jax.random.rademacher(jax.random.fold_in(key, index), flat.shape, flat.dtype)
        )

    return jax.vmap(draw)(indices)


def probe(
    hessian: Hessian,
    key: Key[Array, ""],
    *,
    probes: int = 100,
    chunk: int = 10,
    progress: Progress = lambda done, total: None,
) -> Samples:
    """Multiplies a Hessian with random probes, from which Hutchinson estimates trace and diagonal.

    Args:
      hessian: of one model, or of several, which share the probes.
      key: of the probes.
      probes: how many.
      chunk: probes that share a pass over the data; the samples are the same for any.
      progress: told how many probes are done.
    """
    tensors, diagonal = [], None
    for first in range(0, probes, chunk):
        end = min(first + chunk, probes)
        sums, total = probe_chunk(hessian, key, jnp.asarray([first, end]), min(chunk, probes))
        tensors.append(np.asarray(sums)[..., : end - first, :])
        diagonal = total if diagonal is None else tree.add(diagonal, total)
        progress(end, probes)
    return Samples(np.concatenate(tensors, -2), tree.scale(1 / probes, diagonal))


@partial(jax.jit, static_argnames="chunk")
def probe_chunk(
    hessian: Hessian, key: Key[Array, ""], ends: Int[Array, "2"], chunk: int
) -> tuple[Float[Array, "*models chunk t"], PyTree]:
    """Multiplies the Hessian with the probes v of a range of indices.

    Args:
      hessian: of one model, or of several.
      key: of the probes.
      ends: the range's first index, and the index after its last.
      chunk: the number of probes the program is compiled for, at least as many as the range has.

    Returns:
      The sums of v * Hv over each parameter tensor, and the sum of v * Hv over the range's probes.
    """
    indices = ends[0] + jnp.arange(chunk)
    signs = rademacher(hessian.point, key, indices=indices)
    inside = indices < ends[1]  # zeros fill up the last chunk and add nothing
    signs = jax.tree.map(lambda x: jnp.where(inside.reshape(-1, *[1] * (x.ndim - 1)), x, 0), signs)

    def reduce(signs, products):
        entries = jax.tree.map(jnp.multiply, signs, products)
        sums = [jnp.sum(x.reshape(chunk, -1), 1) for x in jax.tree.leaves(entries)]
        return jnp.stack(sums, 1), tree.sum_leading(entries)

    return hessian.sums(signs, reduce)


def trace(samples: Samples, tol: float | None = None) -> Trace:
    """Estimates the trace of one model's Hessian.

    Args:
      samples: of the model.
      tol: if given, later probes than PyHessian would take are ignored: it stops when a probe
        changes the mean by less than this share of it.
    """
    chex.assert_rank(samples.tensors, 2)
    values = np.sum(np.asarray(samples.tensors, float), -1)
    if tol is not None:
        means = np.cumsum(values) / np.arange(1, len(values) + 1)
        before = np.concatenate([[0.0], means[:-1]])
        stops = np.abs(means - before) / (np.abs(before) + 1e-6) < tol
        values = values[: np.argmax(stops) + 1] if np.any(stops) else values
    count = len(values)
    error = np.std(values, ddof=1) / np.sqrt(count) if count > 1 else np.inf
    return Trace(float(np.mean(values)), float(error), probes=count)


def power_iteration(
    hessian: Hessian,
    key: Key[Array, ""],
    *,
    count: int = 1,
    tol: float = 1e-3,
    iterations: int = 100,
    progress: Progress = lambda done, total: None,
) -> Eigen:
    """Finds the eigenvalues of largest magnitude, with their signs, as PyHessian does.

    It starts from a normal vector, stops at a relative change below `tol`, and returns the value
    before that change. The errors it returns are these changes: eigenvalues of like magnitude and
    opposite sign are not told apart.
    """
    chex.assert_equal(hessian.several, False)
    everywhere = jax.tree.leaves(hessian.weights)[0].sharding
    found = jax.device_put(tree.zeros(hessian.point, count), everywhere)
    values, errors, done = [], [], 0
    for index in range(count):
        vector = _normal(hessian.point, jax.random.fold_in(key, index))
        vector, value, change = jax.device_put(vector, everywhere), None, np.inf
        for _ in range(iterations):
            new, vector = _step(hessian, vector, found)
            new, done = float(new), done + 1
            progress(done, count * iterations)
            change = np.inf if value is None else abs(new - value)
            if value is not None and change < tol * (abs(value) + 1e-6):
                break
            value = new
        values.append(value)
        errors.append(change)
        found = tree.put(found, index, rows=vector)
    progress(count * iterations, count * iterations)
    return Eigen(np.array(values), found, errors=np.array(errors), products=done)


@jax.jit
def _step(hessian: Hessian, vector: PyTree, found: PyTree) -> tuple[Float[Array, ""], PyTree]:
    """Makes one step, orthogonal to the vectors found; returns eigenvalue and next vector."""
    for index in range(len(jax.tree.leaves(found)[0])):  # zero where none is found yet
        other = tree.take(found, index)
        vector = tree.sub(vector, tree.scale(tree.dot(vector, other), other))
    vector = _unit(vector)
    stacked = jax.tree.map(lambda x: x[None], vector)
    product = tree.take(hessian.sums(stacked, lambda _, products: products), 0)
    return tree.dot(product, vector), _unit(product)


def _unit(vector: PyTree) -> PyTree:
    """Scales a vector to unit length."""
    # with PyHessian's 1e-6, which makes eigenvalues too small by 2e-6 of their size
    return tree.scale(1 / (linalg.safe_sqrt(tree.dot(vector, vector)) + 1e-6), vector)


def _normal(point: PyTree, key: Key[Array, ""]) -> PyTree:
    """Draws a normal vector of unit length."""
    flat, unravel = ravel_pytree(point)
    return _unit(unravel(jax.random.normal(key, flat.shape, flat.dtype)))


def matching(
    diagonals: Float[Array, "k d"], *, squared: bool = False, pairs_with_self: bool = True
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Computes H_N and H_D: how clients' Hessians differ in norm and agree in direction.

    Both are means over ordered pairs of clients (FedAlign, section 3.4). Lower H_N and higher H_D
    are better.

    Args:
      diagonals: one row per client; FedAlign's code has one value per tensor, the mean over probes
        of `Samples.tensors`.
      squared: takes squared norms, as FedAlign's equations 3 and 4, instead of norms, as its code.
        H_D is then no cosine.
      pairs_with_self: whether pairs of a client with itself count, as in FedAlign's code.
    """
    count = diagonals.shape[0]
    chex.assert_scalar_positive(count if pairs_with_self else count - 1)
    norms = linalg.safe_norm(diagonals) ** (2 if squared else 1)
    apart = (norms[:, None] - norms[None]) ** 2
    along = diagonals @ diagonals.T / (norms[:, None] * norms[None])
    pairs = jnp.ones((count, count)) - (0 if pairs_with_self else jnp.eye(count))
    return tuple(jnp.sum(pairs * x) / jnp.sum(pairs) for x in (apart, along))  # type: ignore[return-value]
