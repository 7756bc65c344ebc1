"""Lanczos' tridiagonal matrices: extreme eigenvalues with eigenvectors, and the spectral density.

The only file that knows matfree. Reorthogonalisation keeps every vector: a Hessian of p parameters
takes starts x products x p numbers.
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
    """A spectral density on a grid; it integrates to 1, and x times it to trace / size."""

    x: np.ndarray
    density: np.ndarray


class Ritz(NamedTuple):
    """What Lanczos found from each of several starts."""

    values: np.ndarray  # start, number: approximate eigenvalues, rising
    weights: np.ndarray  # start, number: the share of the start vector along each
    coordinates: np.ndarray  # start, basis vector, number: of the eigenvectors
    errors: np.ndarray  # start, number: an eigenvalue of the matrix is at most so far away
    basis: Any  # start, basis vector: a tree like the parameters


def lanczos(
    hessian: Hessian,
    key: Key[Array, ""],
    *,
    starts: int,
    products: int,
    progress: Progress | None = None,
) -> Ritz:
    """So many products from each start, a vector of random signs: the probes of `curvature.probe`.

    All starts go in step and share the passes over the data. `progress` is called out of the
    running program, which JAX then does not keep on disk.
    """
    chex.assert_equal(hessian.several, False)
    depth = min(products, hessian.size)
    return read(tridiagonal(hessian, key, starts, depth, progress))


def read(found: Any) -> Ritz:
    """What `tridiagonal` says about eigenvalues."""
    diagonal, beside = (np.asarray(x, float) for x in found.J_small)
    rest = [
        np.asarray(x, float).reshape(len(diagonal), -1) for x in jax.tree.leaves(found.residual)
    ]
    last = np.sqrt(sum(np.sum(x**2, 1) for x in rest))
    resolution = 10 * float(jnp.finfo(found.J_small[0].dtype).eps)
    ritz = [_ritz(*one, resolution) for one in zip(diagonal, beside, last, strict=True)]
    values, coordinates, errors = (np.stack(x) for x in zip(*ritz, strict=True))
    return Ritz(
        values, coordinates[:, 0] ** 2, coordinates=coordinates, errors=errors, basis=found.Q_tall
    )


@partial(jax.jit, static_argnums=(2, 3, 4))
def tridiagonal(
    hessian: Hessian, key: Key[Array, ""], starts: int, depth: int, progress: Progress | None
) -> Any:
    """matfree's decomposition from every start, as one program."""
    turns = itertools.cycle(range(1, depth + 1))  # the program may run again

    @jax.custom_batching.custom_vmap
    def product(vector, hessian):  # matfree has one vector, and its vmap becomes several at once
        several = jax.tree.map(lambda x: x[None], vector)
        return jax.tree.map(lambda x: x[0], all_starts(several, hessian))

    @product.def_vmap
    def _(size, stacked, vectors, hessian):
        del size
        return all_starts(vectors, hessian), stacked[0]

    def all_starts(vectors, hessian):
        found = hessian.sums(vectors, lambda _, products: products)
        if progress is not None:  # told of a number that is there when the product is
            tell, number = progress, jax.tree.leaves(found)[0].ravel()[0]
            jax.debug.callback(lambda _: tell(next(turns), depth), number)
        return found

    decompose = decomp.tridiag_sym(depth, reortho="full", materialize=False, custom_vjp=False)
    signs = rademacher(hessian.point, key, numbers=jnp.arange(starts))
    return jax.vmap(lambda start: decompose(product, start, hessian))(signs)


def _ritz(diagonal, beside, last, resolution):
    """Eigenvalues of the tridiagonal matrix, on the host: LAPACK in a sharded program may hang."""
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
    """The eigenvalues of largest magnitude, or of largest value, and their unit eigenvectors."""
    ritz = lanczos(hessian, key, starts=1, products=products, progress=progress)
    return extreme(ritz, count=count, by=by)


def extreme(ritz: Ritz, *, count: int, by: Literal["magnitude", "value"] = "magnitude") -> Eigen:
    """Those that were found from the first start.

    A multiple eigenvalue is found once; there are fewer than `count` if there are no others.
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
    unused = jnp.all(coordinates == 0, axis=1)  # may be NaN

    def one(x):
        used = jnp.where(unused.reshape(-1, *[1] * (x.ndim - 2)), 0, x[0])
        return jnp.tensordot(coordinates.T.astype(x.dtype), used, 1)

    return jax.tree.map(one, basis)


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
    """Stochastic Lanczos quadrature: every Ritz value a bell curve of its weight.

    Args:
      hessian: of one model.
      key: of the probes.
      probes: start vectors; with more the curve varies less from key to key.
      products: from each start; with more, eigenvalues inside the spectrum stand apart.
      points: of the grid.
      width: standard deviation of a bell, as a share of the spectrum's width.
      progress: see `lanczos`.
    """
    ritz = lanczos(hessian, key, starts=probes, products=products, progress=progress)
    return smooth(ritz.values, ritz.weights, points=points, width=width)


def smooth(values: np.ndarray, weights: np.ndarray, points: int, width: float) -> Density:
    """The mean over starts of bell curves around these values."""
    chex.assert_equal_shape([values, weights])
    real = values[weights > 0]
    low, high = np.min(real), np.max(real)
    sigma = width * max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-30)
    x = np.linspace(low - 5 * sigma, high + 5 * sigma, points)
    bells = np.exp(-0.5 * ((x - real[:, None]) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
    return Density(x, weights[weights > 0] @ bells / len(values))
