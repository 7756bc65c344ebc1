"""Feature maps cut into 4x4 tiles, as Winograd's products leave them and take them.

A tiled map has the axes (row in tile, column in tile, b, tile rows, tile columns, c). Between
convolutions there are only element-wise operations and sums over positions, which work on either
form. So a stage of a residual network that stays tiled never rearranges its maps: what a tile needs
of its neighbours is the same array moved by one tile, where cutting patches out of rows of pixels
takes a third of a convolution's time.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_nc.models import lowerings

TILE = lowerings.TILE


def is_tiled(x: Array) -> bool:
    """Returns whether a map is tiled; otherwise it is NHWC."""
    return x.ndim == 6


def sides(x: Array) -> tuple[int, int]:
    """Returns the height and width of a map, tiled or not."""
    return (TILE * x.shape[3], TILE * x.shape[4]) if is_tiled(x) else (x.shape[1], x.shape[2])


def batch_axis(x: Array) -> int:
    """Returns the axis of a map along which its samples lie."""
    return 2 if is_tiled(x) else 0


def positions(x: Array) -> tuple[int, ...]:
    """Returns the axes of a map that are neither batch nor channels."""
    return (0, 1, 3, 4) if is_tiled(x) else tuple(range(1, x.ndim - 1))


def tile(x: Float[Array, "b h w c"]) -> Float[Array, "4 4 b h4 w4 c"]:
    """Cuts a map into tiles; its sides must be multiples of four."""
    b, h, w, c = x.shape
    return x.reshape(b, h // TILE, TILE, w // TILE, TILE, c).transpose(2, 4, 0, 1, 3, 5)


def untile(x: Array) -> Float[Array, "b h w c"]:
    """Puts tiles together to an NHWC map; returns a map that is not tiled unchanged."""
    if not is_tiled(x):
        return x
    _, _, b, h, w, c = x.shape
    return x.transpose(2, 3, 0, 4, 1, 5).reshape(b, TILE * h, TILE * w, c)


@jax.custom_vjp
def winograd(
    x: Float[Array, "4 4 b h w i"], kernel: Float[Array, "3 3 i o"]
) -> Float[Array, "4 4 b h w o"]:
    """Computes a 3x3 convolution of a tiled map, padded with one zero on every side.

    The algorithm is that of `lowerings.winograd`. Its gradient transforms the patches again: to
    keep them would be to write and read more than twice the map.
    """
    return _winograd_fwd(x, kernel)[0]


def _winograd_fwd(x, kernel):
    return lowerings.multiply_tiles(_patches(x), kernel), (x, kernel)


def _winograd_bwd(residuals, g):
    x, kernel = residuals
    evaluate_m, evaluate_k, interpolate = lowerings.transforms(3, x.dtype)
    points, channels, out = len(interpolate), *kernel.shape[2:]
    patches = _patches(x)
    v = (interpolate @ patches.reshape(points, -1)).reshape(points, -1, channels)
    u = (evaluate_k @ kernel.reshape(9, -1)).reshape(points, channels, out)
    g = (evaluate_m @ g.reshape(TILE**2, -1)).reshape(points, -1, out)
    dv = lax.dot_general(g, u, (((2,), (2,)), ((0,), (0,))))
    du = lax.dot_general(v, g, (((1,), (1,)), ((0,), (0,))))
    dx = (interpolate.T @ dv.reshape(points, -1)).reshape(patches.shape)
    dx = _merged(_merged(dx, 1, across=4), 0, across=3)
    return dx, (evaluate_k.T @ du.reshape(points, -1)).reshape(kernel.shape)


winograd.defvjp(_winograd_fwd, _winograd_bwd)


def _patches(x):
    return _beside(_beside(x, 0, across=3), 1, across=4)


def _beside(x, inside: int, across: int):
    """Extends each tile by the last line of the tile before it and the first of the one behind."""
    first, last = _lines(x, inside, start=0, end=1), _lines(x, inside, start=TILE - 1, end=TILE)
    lines = [_moved(last, across, by=1), x, _moved(first, across, by=-1)]
    return jnp.concatenate(lines, inside)


def _merged(x, inside: int, across: int):
    """Computes the transpose of `_beside`: adds the extra lines to the tiles they are from."""
    before, first, middle, last, behind = (
        _lines(x, inside, *ends) for ends in ((0, 1), (1, 2), (2, 4), (4, 5), (5, 6))
    )
    lines = [first + _moved(behind, across, by=1), middle, last + _moved(before, across, by=-1)]
    return jnp.concatenate(lines, inside)


def _lines(x, axis: int, start: int, end: int):
    return lax.slice_in_dim(x, start, end, axis=axis)


def _moved(x, axis: int, by: int):
    """Moves tiles along an axis; zeros come in at the border."""
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (by, -by, 0)
    return lax.pad(x, jnp.zeros((), x.dtype), config)
