"""The Lanczos iteration: extreme eigenvalues with their eigenvectors, and the spectral density.

The only file that knows matfree. Reorthogonalisation keeps every vector: for a Hessian of p
parameters, starts x products x p numbers are in memory.
"""

import itertools
from functools import partial
from typing import Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree
from matfree import decomp

from fedjax_nc.analysis.curvature import Eigen, rademacher
from fedjax_nc.analysis.hessian import Hessian, Progress


class Density(NamedTuple):
    """A spectral density on a grid: it integrates to 1, and x times it to trace / size."""

    x: np.ndarray
    density: np.ndarray


class Ritz(NamedTuple):
    """What Lanczos finds from each of several start vectors: approximate eigenpairs."""

    values: np.ndarray  # [start, pair]: approximate eigenvalues, ascending
    weights: np.ndarray  # [start, pair]: the share of the start vector along each eigenvector
    coordinates: np.ndarray  # [start, basis vector, pair]: of the eigenvectors in the basis
    errors: np.ndarray  # [start, pair]: an eigenvalue of the matrix is at most so far away
    basis: Any  # [start, basis vector], a tree like the parameters


def lanczos(
    hessian: Hessian,
    key: Key[Array, ""],
    *,
    starts: int,
    products: int,
    progress: Progress | None = None,
) -> Ritz:
    """Runs the Lanczos iteration on one model's Hessian.

    Args:
      hessian: of one model.
      key: of the start vectors, which are the probes of `curvature.probe`.
      starts: how many start vectors; they go in step and share the passes over the data.
      products: Hessian products from each start.
      progress: called from inside the running program, which JAX then does not cache on disk.
    """
    chex.assert_equal(hessian.several, False)
    depth = min(products, hessian.size)
    return read(tridiagonal(hessian, key, starts, depth, progress))


def read(found: Any) -> Ritz:
    """Computes approximate eigenpairs from what `tridiagonal` returns."""
    diagonal, beside = (np.asarray(x, float) for x in found.J_small)
    residual = [
        np.asarray(x, float).reshape(len(diagonal), -1) for x in jax.tree.leaves(found.residual)
    ]
    last = np.sqrt(sum(np.sum(x**2, 1) for x in residual))
    resolution = 10 * float(jnp.finfo(found.J_small[0].dtype).eps)
    ritz = [_ritz(*start, resolution) for start in zip(diagonal, beside, last, strict=True)]
    values, coordinates, errors = (np.stack(x) for x in zip(*ritz, strict=True))
    return Ritz(
        values, coordinates[:, 0] ** 2, coordinates=coordinates, errors=errors, basis=found.Q_tall
    )


@partial(jax.jit, static_argnums=(2, 3, 4))
def tridiagonal(
    hessian: Hessian, key: Key[Array, ""], starts: int, depth: int, progress: Progress | None
) -> Any:
    """Computes matfree's tridiagonal decomposition from every start, as one program."""
    turns = itertools.cycle(range(1, depth + 1))  # the program may run again

    @jax.custom_batching.custom_vmap
    def product(vector, hessian):  # matfree multiplies one vector; vmap turns it into several
        several = jax.tree.map(lambda x: x[None], vector)
        return jax.tree.map(lambda x: x[0], all_starts(several, hessian))

    @product.def_vmap
    def _(size, stacked, vectors, hessian):
        del size
        return all_starts(vectors, hessian), stacked[0]

    def all_starts(vectors, hessian):
        found = hessian.sums(vectors, lambda _, products: products)
        if progress is not None:  # the callback waits for an entry of the product
            tell, entry = progress, jax.tree.leaves(found)[0].ravel()[0]
            jax.debug.callback(lambda _: tell(next(turns), depth), entry)
        return found

    decompose = decomp.tridiag_sym(depth, reortho="full", materialize=False, custom_vjp=False)
    signs = rademacher(hessian.point, key, indices=jnp.arange(starts))
    return jax.vmap(lambda start: decompose(product, start, hessian))(signs)


def _ritz(diagonal, beside, last, resolution):
    """Computes eigenvalues of the tridiagonal matrix, their vectors and their errors.

    On the host, since LAPACK in a sharded program may hang.
    """
    scale = np.nanmax(np.abs(np.concatenate([diagonal, beside])))
    # where the Krylov space ends, what follows is rounding or NaN: it gets no weight
    ends = np.flatnonzero(~(beside > resolution * scale))
    depth, size = len(diagonal), ends[0] + 1 if len(ends) else len(diagonal)
    beside = beside[: size - 1]
    matrix = np.diag(diagonal[:size]) + np.diag(beside, 1) + np.diag(beside, -1)
    found, vectors = np.linalg.eigh(matrix)
    values, errors, coordinates = np.zeros(depth), np.full(depth, np.inf), np.zeros((depth, depth))
    values[:size], coordinates[:size, :size] = found, vectors
    errors[:size] = np.abs(vectors[-1]) * last if size == depth else resolution * scale
    return values, coordinates, errors


def top(
    hessian: Hessian,
    key: Key[Array, ""],
    *,
    count: int = 1,
    products: int = 30,
    by: Literal["magnitude", "value"] = "magnitude",
    progress: Progress | None = None,
) -> Eigen:
    """Finds the eigenvalues of largest magnitude or value, and their unit eigenvectors."""
    ritz = lanczos(hessian, key, starts=1, products=products, progress=progress)
    return extreme(ritz, count=count, by=by)


def extreme(ritz: Ritz, *, count: int, by: Literal["magnitude", "value"] = "magnitude") -> Eigen:
    """Returns the eigenvalues of largest magnitude or value, and their unit eigenvectors.

    They are those that the iteration found from its first start vector. It finds a multiple
    eigenvalue once, so there may be fewer than `count`.
    """
    values, errors = ritz.values[0], ritz.errors[0]
    chex.assert_scalar_positive(len(values) + 1 - count)
    rank = np.abs(values) if by == "magnitude" else values
    first = np.argsort(-np.where(errors < np.inf, rank, -np.inf), kind="stable")[:count]
    first = first[errors[first] < np.inf]
    vectors = _combine(ritz.basis, ritz.coordinates[0][:, first])
    return Eigen(values[first], vectors, errors=errors[first], products=len(values))


@jax.jit
def _combine(basis: PyTree, coordinates) -> PyTree:
    """Combines the first start's basis vectors into eigenvectors."""
    unused = jnp.all(coordinates == 0, axis=1)  # such basis vectors may be NaN

    def combine(x):
        used = jnp.where(unused.reshape(-1, *[1] * (x.ndim - 2)), 0, x[0])
        return jnp.tensordot(coordinates.T.astype(x.dtype), used, 1)

    return jax.tree.map(combine, basis)


def density(
    hessian: Hessian,
    key: Key[Array, ""],
    *,
    probes: int = 8,
    products: int = 60,
    points: int = 1000,
    width: float = 0.01,
    progress: Progress | None = None,
) -> Density:
    """Estimates the spectral density by stochastic Lanczos quadrature.

    Args:
      hessian: of one model.
      key: of the probes.
      probes: start vectors; with more of them the curve varies less from key to key.
      products: from each start; with more, eigenvalues inside the spectrum stand apart.
      points: of the grid.
      width: standard deviation of each eigenvalue's bell curve, as a share of the spectrum's width.
      progress: see `lanczos`.
    """
    ritz = lanczos(hessian, key, starts=probes, products=products, progress=progress)
    return smooth(ritz.values, ritz.weights, points=points, width=width)


def smooth(values: np.ndarray, weights: np.ndarray, points: int, width: float) -> Density:
    """Sums bell curves of these weights around these values, and averages them over starts."""
    chex.assert_equal_shape([values, weights])
    real = values[weights > 0]
    low, high = np.min(real), np.max(real)
    sigma = width * max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-30)
    x = np.linspace(low - 5 * sigma, high + 5 * sigma, points)
    bells = np.exp(-0.5 * ((x - real[:, None]) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
    return Density(x, weights[weights > 0] @ bells / len(values))
