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
    """What random probes v say about a Hessian; of several models with an axis of models first."""

    tensors: np.ndarray  # probe, tensor: sum of v * Hv in each parameter tensor
    diagonal: PyTree  # mean over probes of v * Hv, an estimate of every parameter's own entry


class Trace(NamedTuple):
    """Hutchinson's estimate of a trace."""

    mean: float
    error: float  # standard error of the mean
    probes: int


class Eigen(NamedTuple):
    """Eigenvalues and, stacked, their eigenvectors."""

    values: np.ndarray
    vectors: PyTree
    errors: np.ndarray  # how far an eigenvalue is from one of the matrix at most, or likely
    products: int  # it took


def rademacher(point: PyTree, key: Key[Array, ""], numbers: Int[Array, " m"]) -> PyTree:
    """Vectors of random signs; each number has its own, whichever others are drawn with it."""
    flat, unravel = ravel_pytree(point)  # one draw: a draw for every tensor takes long to compile

    def one(number):
        return unravel(
            jax.random.rademacher(jax.random.fold_in(key, number), flat.shape, flat.dtype)
        )

    return jax.vmap(one)(numbers)


def probe(
    hessian: Hessian,
    key: Key[Array, ""],
    *,
    probes: int = 100,
    chunk: int = 10,
    progress: Progress = lambda done, total: None,
) -> Samples:
    """Hutchinson's probes: all of a trace's and a diagonal's estimate. Models share the probes.

    A `chunk` at once shares passes over the data; the samples are the same for any.
    """
    tensors, diagonal = [], None
    for first in range(0, probes, chunk):
        last = min(first + chunk, probes)
        found, part = probe_chunk(hessian, key, jnp.asarray([first, last]), min(chunk, probes))
        tensors.append(np.asarray(found)[..., : last - first, :])
        diagonal = part if diagonal is None else tree.add(diagonal, part)
        progress(last, probes)
    return Samples(np.concatenate(tensors, -2), tree.scale(1 / probes, diagonal))


@partial(jax.jit, static_argnames="chunk")
def probe_chunk(
    hessian: Hessian, key: Key[Array, ""], ends: Int[Array, "2"], chunk: int
) -> tuple[Float[Array, "*models chunk t"], PyTree]:
    """The sums in tensors of the probes from the first end to before the second, and over them."""
    numbers = ends[0] + jnp.arange(chunk)
    signs = rademacher(hessian.point, key, numbers=numbers)
    kept = numbers < ends[1]  # the last chunk is filled up with zeros, which add nothing
    signs = jax.tree.map(lambda x: jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, 0), signs)

    def reduce(signs, products):
        both = jax.tree.map(jnp.multiply, signs, products)
        sums = [jnp.sum(x.reshape(chunk, -1), 1) for x in jax.tree.leaves(both)]
        return jnp.stack(sums, 1), tree.sum_leading(both)

    return hessian.sums(signs, reduce)


def trace(samples: Samples, tol: float | None = None) -> Trace:
    """The trace of one model's Hessian, of all probes or of as many as PyHessian would take.

    With `tol`, PyHessian stops when a probe changes the mean by less than that share of it.
    """
    chex.assert_rank(samples.tensors, 2)
    values = np.sum(np.asarray(samples.tensors, float), -1)
    if tol is not None:
        means = np.cumsum(values) / np.arange(1, len(values) + 1)
        before = np.concatenate([[0.0], means[:-1]])
        still = np.abs(means - before) / (np.abs(before) + 1e-6) < tol
        values = values[: np.argmax(still) + 1] if np.any(still) else values
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
    """Eigenvalues of largest magnitude, with their signs, as PyHessian finds them.

    From a normal vector; stops at a relative change below `tol`, with the value before it. An error
    here is that change: eigenvalues of like magnitude and other sign are not told apart.
    """
    chex.assert_equal(hessian.several, False)
    everywhere = jax.tree.leaves(hessian.weights)[0].sharding
    found = jax.device_put(tree.zeros(hessian.point, count), everywhere)
    values, errors, done = [], [], 0
    for number in range(count):
        vector = _normal(hessian.point, jax.random.fold_in(key, number))
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
        found = tree.put(found, number, rows=vector)
    progress(count * iterations, count * iterations)
    return Eigen(np.array(values), found, errors=np.array(errors), products=done)


@jax.jit
def _step(hessian: Hessian, vector: PyTree, found: PyTree) -> tuple[Float[Array, ""], PyTree]:
    for number in range(len(jax.tree.leaves(found)[0])):  # zero where none is found yet
        other = tree.take(found, number)
        vector = tree.sub(vector, tree.scale(tree.dot(vector, other), other))
    vector = _unit(vector)
    stacked = jax.tree.map(lambda x: x[None], vector)
    product = tree.take(hessian.sums(stacked, lambda _, products: products), 0)
    return tree.dot(product, vector), _unit(product)


def _unit(vector: PyTree) -> PyTree:
    # PyHessian's: eigenvalues come out 2e-6 of their size too small
    return tree.scale(1 / (linalg.safe_sqrt(tree.dot(vector, vector)) + 1e-6), vector)


def _normal(point: PyTree, key: Key[Array, ""]) -> PyTree:
    flat, unravel = ravel_pytree(point)
    return _unit(unravel(jax.random.normal(key, flat.shape, flat.dtype)))


def matching(
    diagonals: Float[Array, "k d"], *, squared: bool = False, pairs_with_self: bool = True
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """H_N and H_D: how clients' Hessians differ in norm and agree in direction (FedAlign, 3.4).

    Means over ordered pairs of clients. Lower H_N and higher H_D are better.

    Args:
      diagonals: one row per client; FedAlign's code has a number per tensor, the mean over probes
        of `Samples.tensors`.
      squared: squared norms as eqs. 3 and 4 have them, instead of norms as the code; then H_D is
        no cosine.
      pairs_with_self: whether a client is paired with itself too, as in the code.
    """
    count = diagonals.shape[0]
    chex.assert_scalar_positive(count if pairs_with_self else count - 1)
    norms = linalg.safe_norm(diagonals) ** (2 if squared else 1)
    apart = (norms[:, None] - norms[None]) ** 2
    along = diagonals @ diagonals.T / (norms[:, None] * norms[None])
    pairs = jnp.ones((count, count)) - (0 if pairs_with_self else jnp.eye(count))
    return tuple(jnp.sum(pairs * x) / jnp.sum(pairs) for x in (apart, along))  # type: ignore[return-value]
