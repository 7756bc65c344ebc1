"""The project's convolution: flax's parameters and numbers, several lowerings.

XLA:CPU rewrites convolutions into the layout of its fast kernel only outside loops, and every
local epoch is a loop. So on a CPU the gradient convolutions are written in that layout by hand
(`canonical`), or the whole thing becomes a matrix product (`im2col`).
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

LOWERINGS = ("auto", "native", "canonical", "im2col")
_LAYOUT = ("NHWC", "HWIO", "NHWC")
_FEW_CHANNELS = 4  # up to so many inputs, one matrix product beats the convolution kernel

torch_default = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
he_normal = nn.initializers.he_normal()


def native(x: Float[Array, "b h w i"], kernel: Float[Array, "p q i o"], stride: int, pads):
    """XLA's own convolution, for accelerators."""
    return lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=_LAYOUT)


def im2col(x: Float[Array, "b h w i"], kernel: Float[Array, "p q i o"], stride: int, pads):
    """Shifted slices side by side, then one matrix product; under vmap a batched product.

    Rows are gathered first, then columns: p + q slices instead of p * q.
    """
    height, width, channels, out = kernel.shape
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    for axis, size in ((1, height), (2, width)):
        end = (x.shape[axis] - size) // stride * stride + 1
        slices = [lax.slice_in_dim(x, i, i + end, stride, axis) for i in range(size)]
        x = jnp.concatenate(slices, axis=-1)
    return x @ kernel.transpose(1, 0, 2, 3).reshape(width * height * channels, out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def canonical(x: Float[Array, "b h w i"], kernel: Float[Array, "p q i o"], stride: int, pads):
    """The native convolution with both gradients written as NHWC/HWIO convolutions."""
    return native(x, kernel, stride, pads)


def _canonical_fwd(x, kernel, stride, pads):
    return native(x, kernel, stride, pads), (x, kernel)


def _canonical_bwd(stride, pads, residuals, g):
    x, kernel = residuals
    spatial = range(2)
    # input: the dilated cotangent against the flipped kernel, padded back to the input's size
    dilated = [(g.shape[1 + d] - 1) * stride + 1 for d in spatial]
    before = [kernel.shape[d] - 1 - pads[d][0] for d in spatial]
    after = [x.shape[1 + d] + kernel.shape[d] - 1 - dilated[d] - before[d] for d in spatial]
    dx = lax.conv_general_dilated(
        g, jnp.flip(kernel, (0, 1)).swapaxes(2, 3), (1, 1), list(zip(before, after, strict=True)),
        lhs_dilation=(stride, stride), dimension_numbers=_LAYOUT)  # fmt: skip
    # kernel: channels act as the batch, the batch as channels
    end = [(kernel.shape[d] - 1) + dilated[d] - x.shape[1 + d] - pads[d][0] for d in spatial]
    dk = lax.conv_general_dilated(
        x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3), (1, 1),
        [(pads[d][0], end[d]) for d in spatial], rhs_dilation=(stride, stride),
        dimension_numbers=_LAYOUT)  # fmt: skip
    return dx, dk.transpose(1, 2, 0, 3)


canonical.defvjp(_canonical_fwd, _canonical_bwd)


def choose(backend: str, channels: int) -> str:
    """Lowering for `auto`: accelerators have good kernels, a CPU needs help.

    `benchmarks/conv.py` measures what this is based on.
    """
    if backend != "cpu":
        return "native"
    return "im2col" if channels <= _FEW_CHANNELS else "canonical"


def _pads(padding: str, size: tuple[int, ...], kernel: int, stride: int):
    if padding == "VALID":
        return ((0, 0), (0, 0))
    out = [-(-s // stride) for s in size]
    total = [max((o - 1) * stride + kernel - s, 0) for o, s in zip(out, size, strict=True)]
    return tuple((t // 2, t - t // 2) for t in total)


class Conv(nn.Module):
    """2-d convolution. `padding` is VALID, SAME (flax's), or an int: that many zeros all round."""

    features: int
    kernel: int = 3
    stride: int = 1
    padding: str | int = "SAME"
    bias: bool = False
    lowering: str = "auto"
    kernel_init: nn.initializers.Initializer = torch_default  # `init` is flax's own

    @nn.compact
    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h2 w2 o"]:
        """Convolve."""
        shape = (self.kernel, self.kernel, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, x.dtype)
        if isinstance(self.padding, int):
            pads = ((self.padding, self.padding),) * 2
        else:
            pads = _pads(self.padding, x.shape[1:3], self.kernel, self.stride)
        name = self.lowering
        if name == "auto":
            name = choose(jax.default_backend(), x.shape[-1])
        fn = {"native": native, "canonical": canonical, "im2col": im2col}[name]
        y = fn(x, kernel, self.stride, pads)
        if self.bias:
            y = y + self.param(
                "bias", torch_bias(x.shape[-1] * self.kernel**2), (self.features,), x.dtype
            )
        return y


def torch_bias(fan_in: int):
    """PyTorch's default bias initialiser: uniform within 1/sqrt(fan_in)."""
    bound = fan_in**-0.5
    return lambda key, shape, dtype=float: jax.random.uniform(key, shape, dtype, -bound, bound)


def dense(x: Float[Array, "b i"], features: int) -> Float[Array, "b o"]:
    """Fully connected layer with PyTorch's default initialisation; call inside a compact module."""
    layer = nn.Dense(features, kernel_init=torch_default, bias_init=torch_bias(x.shape[-1]),
                     param_dtype=x.dtype)  # fmt: skip
    return layer(x)


def max_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """2x2 max-pooling by reshape; an odd last row or column is dropped, as PyTorch does."""
    b, h, w, c = x.shape
    x = x[:, : h // 2 * 2, : w // 2 * 2]
    return x.reshape(b, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))
