"""Convolution, dense layer and pooling: parameters and numbers as flax's, fast in a CPU's loops."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_nc.models import lowerings, tiles

torch_default = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
he_normal = nn.initializers.he_normal()
he_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def choose(backend: str, side: int, stride: int, channels: int, groups: int, smallest: int) -> str:
    """Chooses the lowering that `auto` stands for.

    Accelerators have good kernels of their own. For a CPU the rules are what benchmarks/conv.py
    measures.

    Args:
      backend: jax's name of it.
      side: of the kernel.
      stride: of the convolution, the same along both axes.
      channels: of the input.
      groups: of the channels.
      smallest: the smaller side of the output.
    """
    if backend != "cpu":
        return "native"
    if groups > 1:
        return "depthwise" if groups == channels else "grouped"
    if side == 1:
        return "pointwise"
    if stride == 1 and 3 <= side <= 5 and channels >= 10 and smallest >= 3:
        return "winograd"
    return "im2col"


def can(name: str, side: int, stride: int, groups: int) -> bool:
    """Returns whether a lowering that is asked for by name computes such a convolution."""
    tiled = stride == 1 and 2 <= side <= 5
    return name == "native" or (groups == 1 and (name != "winograd" or tiled))


def tile(x: Array, name: str = "auto") -> Array:
    """Cuts a map into tiles if 3x3 convolutions are faster that way; else returns it unchanged."""
    sides = tiles.sides(x)
    if tiles.is_tiled(x) or name not in ("auto", "winograd") or any(s % tiles.TILE for s in sides):
        return x
    found = choose(
        jax.default_backend(), 3, stride=1, channels=x.shape[-1], groups=1, smallest=min(sides)
    )
    return tiles.tile(x) if found == "winograd" else x


def convolve(
    x,
    kernel,
    stride: int,
    pads: lowerings.Pads,
    groups: int = 1,
    name: str = "auto",
    pool: bool = False,
):
    """Computes a convolution by the lowering `name`, or by `auto`'s choice where that one cannot.

    With `pool` the outputs are max-pooled 2x2.
    """
    side, channels = kernel.shape[0], x.shape[-1]
    if tiles.is_tiled(x):
        if not pool and (side, stride, groups, pads) == (3, 1, 1, ((1, 1), (1, 1))):
            return tiles.winograd(x, kernel)
        if not pool and (side, stride, groups, pads) == (1, 1, 1, ((0, 0), (0, 0))):
            return lowerings.pointwise(x, kernel)
        x = tiles.untile(x)
    if name == "auto" or not can(name, side, stride=stride, groups=groups):
        size = [(x.shape[1 + d] + sum(pads[d]) - side) // stride + 1 for d in range(2)]
        name = choose(
            jax.default_backend(),
            side,
            stride=stride,
            channels=channels,
            groups=groups,
            smallest=min(size),
        )
    if name == "im2col" and stride == 1 and side >= 5:
        return lowerings.im2col(x, kernel, stride=stride, pads=pads, block=2, pool=pool)
    if name == "winograd":
        return lowerings.winograd(x, kernel, stride=stride, pads=pads, pool=pool)
    if name == "native":
        y = lowerings.native(x, kernel, stride=stride, pads=pads, groups=groups)
    elif name == "grouped":
        y = _grouped(x, kernel, stride=stride, pads=pads, groups=groups)
    else:
        y = getattr(lowerings, name)(x, kernel, stride, pads)
    return max_pool(y) if pool else y


def _grouped(x, kernel, stride, pads, groups):
    """Computes a convolution of groups as one batched product."""
    split = functools.partial(jnp.split, indices_or_sections=groups, axis=-1)
    lowering = lowerings.pointwise if kernel.shape[0] == 1 else lowerings.im2col
    convolve_group = functools.partial(lowering, stride=stride, pads=pads)
    y = jax.vmap(convolve_group, out_axes=-2)(jnp.stack(split(x)), jnp.stack(split(kernel)))
    return y.reshape(*y.shape[:3], -1)


def _pads(padding: str, size: tuple[int, ...], kernel: int, stride: int) -> lowerings.Pads:
    if padding == "VALID":
        return ((0, 0), (0, 0))
    out = [-(-s // stride) for s in size]
    high, wide = (
        max((o - 1) * stride + kernel - s, 0) for o, s in zip(out, size, strict=True)
    )  # zeros to add in all, per axis
    return (high // 2, high - high // 2), (wide // 2, wide - wide // 2)


class Conv(nn.Module):
    """A 2-d convolution with a square kernel.

    Attributes:
      features: number of output channels.
      kernel: side of the kernel.
      stride: the same along both axes.
      padding: VALID, SAME (as flax's), or the number of zeros to add on every side.
      groups: of the channels; as many as channels make it depthwise.
      bias: whether a bias is added.
      lowering: how it is computed, see `lowerings`; the numbers are the same.
      pool: whether the outputs are max-pooled 2x2, before they are written to memory as a map.
      kernel_init: initialiser of the kernel.
    """

    features: int
    kernel: int = 3
    stride: int = 1
    padding: str | int = "SAME"
    groups: int = 1
    bias: bool = False
    lowering: str = "auto"
    pool: bool = False
    kernel_init: nn.initializers.Initializer = torch_default

    @nn.compact
    def __call__(self, x: Float[Array, "... i"]) -> Float[Array, "... o"]:
        """Convolves a map, tiled or not."""
        inputs = x.shape[-1] // self.groups
        shape = (self.kernel, self.kernel, inputs, self.features)
        kernel = self.param("kernel", self.kernel_init, shape, x.dtype)
        if isinstance(self.padding, int):
            pads = (self.padding, self.padding), (self.padding, self.padding)
        else:
            pads = _pads(self.padding, tiles.sides(x), kernel=self.kernel, stride=self.stride)
        y = convolve(
            x,
            kernel,
            stride=self.stride,
            pads=pads,
            groups=self.groups,
            name=self.lowering,
            pool=self.pool,
        )
        if self.bias:
            init = torch_bias(inputs * self.kernel**2)
            y = y + self.param("bias", init, (self.features,), x.dtype)
        return y


def torch_bias(fan_in: int):
    """Returns PyTorch's default initialiser of a bias: uniform within 1/sqrt(fan_in)."""
    bound = fan_in**-0.5
    return lambda key, shape, dtype=float: jax.random.uniform(key, shape, dtype, -bound, bound)


class Dense(nn.Module):
    """A fully connected layer with PyTorch's default initialisation."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "b i"]) -> Float[Array, "b o"]:
        """Computes x W + b."""
        inputs = x.shape[-1]
        kernel = self.param("kernel", torch_default, (inputs, self.features), x.dtype)
        bias = self.param("bias", torch_bias(inputs), (self.features,), x.dtype)
        return lowerings.product(x, kernel) + bias


def max_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Computes 2x2 max-pooling; an odd last row or column is dropped, as PyTorch does."""
    b, h, w, c = x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]
    return lowerings.window_max(x[:, : 2 * h, : 2 * w].reshape(b, h, 2, w, 2, c), 2, 4)


def max_pool3(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Computes 3x3 max-pooling with stride 2 and a border of zeros, of numbers not below zero."""
    for axis in (1, 2):
        size = x.shape[axis]
        around = [(1, 1) if a == axis else (0, 0) for a in range(4)]
        x, end = jnp.pad(x, around), 2 * ((size - 1) // 2) + 1
        first, second, third = (
            lax.slice_in_dim(x, i, i + end, stride=2, axis=axis) for i in range(3)
        )
        x = jnp.maximum(jnp.maximum(first, second), third)
    return x


def avg_pool3(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Computes 3x3 average-pooling with stride 2; zeros of the border count in the mean."""
    return lowerings.depthwise(
        x, jnp.full((3, 3, 1, x.shape[-1]), 1 / 9, x.dtype), stride=2, pads=((1, 1), (1, 1))
    )


def avg_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Computes 2x2 average-pooling; an odd last row or column is dropped, as PyTorch does."""
    b, h, w, c = x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]
    return jnp.mean(x[:, : 2 * h, : 2 * w].reshape(b, h, 2, w, 2, c), (2, 4))
