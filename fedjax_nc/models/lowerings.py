"""Ways to compute one 2-d convolution: the same numbers, very different speeds.

XLA:CPU rewrites convolutions into the layout of its fast kernel only outside loops, and every
local epoch is a loop. Its matrix products are fast everywhere. So on a CPU the gradients are
written in that layout by hand (`canonical`), or the convolution becomes products (`im2col`,
`winograd`, `pointwise`) or multiply-adds (`depthwise`). All take inputs NHWC, kernels HWIO, one
stride for both axes and the zeros to add on each side. Rules are written in ordinary operations,
so that forward mode passes through their gradients (Hessian-vector products).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

Pads = tuple[tuple[int, int], tuple[int, int]]
_LAYOUT = ("NHWC", "HWIO", "NHWC")
_POINTS = (0.0, 1.0, -1.0, 0.5, -2.0, -0.5, 2.0)  # as many as needed, and infinity
TILE = 4  # side of the output tile of `winograd`


def native(x, kernel, stride: int, pads: Pads, groups: int = 1):
    """Computes a convolution by XLA's own operation, which is fast on accelerators."""
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), pads, dimension_numbers=_LAYOUT, feature_group_count=groups
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def canonical(x: Float[Array, "b h w i"], kernel: Float[Array, "p q i o"], stride: int, pads: Pads):
    """Computes XLA's convolution; both gradients are written as NHWC/HWIO convolutions."""
    return native(x, kernel, stride=stride, pads=pads)


def _canonical_fwd(x, kernel, stride, pads):
    return native(x, kernel, stride=stride, pads=pads), (x, kernel)


def _canonical_bwd(stride, pads, residuals, g):
    x, kernel = residuals
    spatial = range(2)
    # input: the dilated cotangent against the flipped kernel, padded back to the input's size
    dilated = [(g.shape[1 + d] - 1) * stride + 1 for d in spatial]
    before = [kernel.shape[d] - 1 - pads[d][0] for d in spatial]
    after = [x.shape[1 + d] + kernel.shape[d] - 1 - dilated[d] - before[d] for d in spatial]
    dx = lax.conv_general_dilated(
        g,
        jnp.flip(kernel, (0, 1)).swapaxes(2, 3),
        (1, 1),
        list(zip(before, after, strict=True)),
        lhs_dilation=(stride, stride),
        dimension_numbers=_LAYOUT,
    )
    # kernel: channels act as the batch, the batch as channels
    end = [(kernel.shape[d] - 1) + dilated[d] - x.shape[1 + d] - pads[d][0] for d in spatial]
    dk = lax.conv_general_dilated(
        x.transpose(3, 1, 2, 0),
        g.transpose(1, 2, 0, 3),
        (1, 1),
        [(pads[d][0], end[d]) for d in spatial],
        rhs_dilation=(stride, stride),
        dimension_numbers=_LAYOUT,
    )
    return dx, dk.transpose(1, 2, 0, 3)


canonical.defvjp(_canonical_fwd, _canonical_bwd)


@jax.custom_vjp
def product(x: Float[Array, "n i"], kernel: Float[Array, "i o"]) -> Float[Array, "n o"]:
    """Computes x @ kernel, with a gradient by the kernel in the kernel's own layout.

    Automatic differentiation asks for its transpose, and XLA:CPU then transposes the cotangent,
    which for a convolution is the largest array of the layer.
    """
    return x @ kernel


def _product_bwd(residuals, g):
    x, kernel = residuals
    return g @ kernel.T, lax.dot_general(x, g, (((0,), (0,)), ((), ())))


product.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _product_bwd)


def pointwise(x, kernel, stride: int = 1, pads: Pads = ((0, 0), (0, 0))):
    """Computes a 1x1 convolution as a matrix product over channels."""
    if (stride, pads) != (1, ((0, 0), (0, 0))):
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)))[:, ::stride, ::stride]
    return product(x.reshape(-1, x.shape[-1]), kernel[0, 0]).reshape(*x.shape[:-1], -1)


def im2col(x, kernel, stride: int, pads: Pads, block: int = 1, pool: bool = False):
    """Computes a convolution as one matrix product of patches; under vmap a batched product.

    With a block side above 1 (stride 1 only) each row of the product computes block x block
    outputs from the patch they share: somewhat more arithmetic, but fewer numbers to gather and a
    product with more columns. With a block side of 2, `pool` max-pools the outputs before they are
    put side by side.
    """
    side, _, channels, out = kernel.shape
    size, tiles = _sizes(x.shape, kernel.shape, stride=stride, pads=pads, block=block)
    patch = side + block - 1
    x = _patches(x, pads, tiles=tiles, step=stride * block, patch=patch)
    # (q, p, i, o) -> (patch q, patch p, i, block p, block q, o): a copy per output of the block
    kernel = kernel.transpose(1, 0, 2, 3)
    for axis in (0, 1):
        shifted = [_shift(kernel, axis, by=i, block=block) for i in range(block)]
        kernel = jnp.stack(shifted, axis=3)
    y = product(x.reshape(-1, patch * patch * channels), kernel.reshape(-1, block * block * out))
    y = y.reshape(x.shape[0], *tiles, block, block, out)
    if pool:
        return window_max(y, 3, 4)[:, : size[0] // 2, : size[1] // 2]
    return _join(y, size)


def winograd(x, kernel, stride: int, pads: Pads, pool: bool = False):
    """Computes a convolution by Winograd's (Toom-Cook's) products of transformed tiles.

    A tile gives 4x4 outputs with (side + 3)^2 multiplications per channel pair, one per point, not
    (4 * side)^2: four times fewer for 3x3, six times fewer for 5x5. Stride 1, sides 2 to 5. In
    float32 the rounding error is a few times that of a direct convolution.
    """
    assert stride == 1
    size, tiles = _sizes(x.shape, kernel.shape, stride=1, pads=pads, block=TILE)
    x = _patches(x, pads, tiles=tiles, step=TILE, patch=TILE + kernel.shape[0] - 1)
    y = multiply_tiles(settle(x.transpose(4, 3, 0, 1, 2, 5)), kernel)
    if pool:
        y = window_max(y.reshape(2, 2, 2, 2, *y.shape[2:]), 1, 3)
        size = [n // 2 for n in size]
    return _join(settle(y).transpose(2, 3, 4, 0, 1, 5), size)


def multiply_tiles(
    x: Float[Array, "n n b h w i"], kernel: Float[Array, "k k i o"]
) -> Float[Array, "m m b h w o"]:
    """Computes the outputs of all tiles from their patches and the kernel."""
    side, _, channels, out = kernel.shape
    points = x.shape[0] ** 2
    evaluate_m, evaluate_k, interpolate = transforms(side, x.dtype)
    shape = (TILE, TILE, *x.shape[2:5], out)
    x = interpolate @ x.reshape(points, -1)
    kernel = evaluate_k @ kernel.reshape(side**2, -1)
    y = lax.dot_general(
        x.reshape(points, -1, channels),
        kernel.reshape(points, channels, out),
        (((2,), (1,)), ((0,), (0,))),
    )
    return (evaluate_m.T @ y.reshape(points, -1)).reshape(shape)


def _window_max(x: Array, rows: int, columns: int) -> Array:
    """Returns the largest of 2x2 numbers, which lie along two axes of length two.

    Of equal numbers the first takes the gradient, row by row, as in PyTorch.
    """
    return _window_fwd(x, rows, columns=columns)[0]


def _window_fwd(x, rows, columns):
    lines = [lax.index_in_dim(x, i, rows, keepdims=False) for i in range(2)]
    corners = [
        lax.index_in_dim(line, j, columns - 1, keepdims=False) for line in lines for j in range(2)
    ]
    best, which = corners[0], jnp.zeros(corners[0].shape, jnp.int32)
    for number, corner in enumerate(corners[1:], 1):
        larger = corner > best
        best, which = jnp.where(larger, corner, best), jnp.where(larger, number, which)
    return best, which


def _window_bwd(rows, columns, which, g):
    corners = [jnp.where(which == number, g, 0) for number in range(4)]
    lines = [jnp.stack(corners[i : i + 2], columns - 1) for i in (0, 2)]
    return (jnp.stack(lines, rows),)


window_max = jax.custom_vjp(_window_max, nondiff_argnums=(1, 2))
window_max.defvjp(_window_fwd, _window_bwd)


def transforms(side: int, dtype) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the matrices of `_toom_cook` for both directions at once, on flattened tiles."""
    m, k, d = (jnp.asarray(np.kron(a, a), dtype) for a in _toom_cook(side))
    return m, k, d


def settle(x: Array) -> Array:
    """Returns the same numbers; on a CPU they are computed here once and kept in memory.

    XLA:CPU computes element-wise chains and rearrangements again in each place that reads them,
    which along a residual network are all blocks before. It does not look into a branch.
    """
    if jax.default_backend() != "cpu":
        return x
    never = x[(0,) * x.ndim] * 0 > 1  # which XLA cannot know: the product may be NaN
    return lax.cond(never, jnp.zeros_like, lambda x: x, x)


def _patches(x, pads: Pads, tiles: list[int], step: int, patch: int):
    """Cuts patches `step` apart: (b, rows, columns, patch columns, patch rows, channels).

    The map is cut into blocks of `step` first: then overlaps are plain slices, and their gradients
    plain additions, where strided slices would have the gradient interleave zeros.
    """
    spans = -(-patch // step)  # blocks a patch reaches over
    x = _pad_to(x, pads, lengths=[(t + spans - 1) * step for t in tiles])
    b, height, width, channels = x.shape
    x = x.reshape(b, height // step, step, width, channels).swapaxes(2, 3)
    x = jnp.concatenate([x[:, i : i + tiles[0]] for i in range(spans)], 3)[:, :, :, :patch]
    x = x.reshape(b, tiles[0], width // step, step, patch, channels)
    return jnp.concatenate([x[:, :, i : i + tiles[1]] for i in range(spans)], 3)[:, :, :, :patch]


def _toom_cook(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns E_m, E_k, V^-T of conv(d, k) = E_m^T ((E_k k) * (V^-T d)), a transposed product."""
    n = TILE + side - 1

    def evaluate(degree: int) -> np.ndarray:  # at the points, and at infinity
        powers = np.vander(_POINTS[: n - 1], degree, increasing=True)
        return np.concatenate([powers, np.eye(degree)[-1:]])

    return evaluate(TILE), evaluate(side), np.linalg.inv(evaluate(n)).T


def depthwise(x, kernel: Float[Array, "p q 1 o"], stride: int, pads: Pads):
    """Convolves every channel with its own kernels, as a sum of shifted and scaled inputs."""
    return _shifted(
        jnp.repeat(x, kernel.shape[-1] // x.shape[-1], -1), kernel[:, :, 0], stride, pads
    )


def _shifted_sum(x, kernel: Float[Array, "p q c"], stride: int, pads: Pads):
    windows = _windows(x, kernel.shape, stride=stride, pads=pads)
    return sum(kernel[i, j] * window for (i, j), window in windows.items())


_shifted = jax.custom_vjp(_shifted_sum, nondiff_argnums=(2, 3))


def _shifted_bwd(stride, pads, residuals, g):
    x, kernel = residuals
    side = kernel.shape[0]
    # input: the cotangent spread by the stride, then again a sum of shifted, scaled copies
    spread = [(n - 1) * stride + 1 for n in g.shape[1:3]]
    before = [side - 1 - pads[d][0] for d in range(2)]
    after = [x.shape[1 + d] + side - 1 - spread[d] - before[d] for d in range(2)]
    widths = ((0, 0, 0), *((before[d], after[d], stride - 1) for d in range(2)), (0, 0, 0))
    wide = lax.pad(g, jnp.zeros((), g.dtype), widths)
    dx = _shifted_sum(wide, jnp.flip(kernel, (0, 1)), stride=1, pads=((0, 0), (0, 0)))

    def add(dk, sample):  # one by one: it is read side * side times, and so from the cache
        x, g = sample
        windows = _windows(x[None], kernel.shape, stride=stride, pads=pads).values()
        sums = [jnp.sum(window[0] * g, (0, 1)) for window in windows]
        return dk + jnp.stack(sums).reshape(kernel.shape), None

    return dx, lax.scan(add, jnp.zeros_like(kernel), (x, g))[0]


_shifted.defvjp(
    lambda x, kernel, stride, pads: (
        _shifted_sum(x, kernel, stride=stride, pads=pads),
        (x, kernel),
    ),
    _shifted_bwd,
)


def _windows(x, shape, stride: int, pads: Pads) -> dict[tuple[int, int], jax.Array]:
    """Returns what each position of the kernel is multiplied with, by its row and column."""
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    ends = [(x.shape[1 + d] - shape[d]) // stride * stride + 1 for d in range(2)]
    return {
        (i, j): x[:, i : i + ends[0] : stride, j : j + ends[1] : stride]
        for i in range(shape[0])
        for j in range(shape[1])
    }


def _sizes(shape, kernel, stride, pads, block) -> tuple[list[int], list[int]]:
    """Returns height and width of the output, in numbers and in blocks."""
    size = [(shape[1 + d] + sum(pads[d]) - kernel[d]) // stride + 1 for d in range(2)]
    return size, [-(-n // block) for n in size]


def _pad_to(x, pads, lengths):
    """Pads a map in front by `pads`, and behind to these lengths, or cuts it there."""
    after = [n - x.shape[1 + d] - pads[d][0] for d, n in enumerate(lengths)]
    config = ((0, 0, 0), *((pads[d][0], after[d], 0) for d in range(2)), (0, 0, 0))
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _shift(kernel, axis: int, by: int, block: int):
    widths = [(0, 0)] * kernel.ndim
    widths[axis] = (by, block - 1 - by)
    return jnp.pad(kernel, widths)


def _join(y: Float[Array, "b th tw m n o"], size: list[int]):
    """Puts blocks of outputs together to a map of this size."""
    b, th, tw, m, n, out = y.shape
    y = y.transpose(0, 1, 3, 2, 4, 5).reshape(b, th * m, tw * n, out)
    return y[:, : size[0], : size[1]]
