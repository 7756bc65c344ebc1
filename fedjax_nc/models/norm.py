"""Normalisation whose statistics ignore padding rows."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from fedjax_nc.models import tiles

GROUPS = 2  # of channels, in mode `group`


class Norm(nn.Module):
    """BatchNorm as PyTorch computes it (momentum 0.1, unbiased running variance), with a mask.

    Modes: `running` keeps statistics for evaluation; `batch` always uses the batch's own, as the
    MobileNet of FedDr+ and FedBABU does; `none` leaves the input alone. `group` is not BatchNorm
    but PyTorch's GroupNorm with two groups: every sample by itself, so the mask does not matter.
    """

    mode: str = "running"
    momentum: float | jax.Array = 0.1
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self, x: Float[Array, "... c"], *, train: bool, mask: Bool[Array, " b"] | None = None
    ) -> Float[Array, "... c"]:
        """Normalises every channel over the rows that are not padding, or every sample's groups."""
        if self.mode == "none":
            return x
        channels = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, channels, x.dtype)
        bias = self.param("bias", nn.initializers.zeros, channels, x.dtype)
        if self.mode == "group":
            return standardise(x, None, scale, bias, self.epsilon)[0]
        if self.mode == "running":
            mean_var = self.variable("batch_stats", "mean", jnp.zeros, channels, x.dtype)
            var_var = self.variable("batch_stats", "var", jnp.ones, channels, x.dtype)
            if not train:
                return _affine(
                    x, mean_var.value, var=var_var.value + self.epsilon, scale=scale, bias=bias
                )
        samples = x.shape[tiles.batch_axis(x)]
        keep = jnp.ones(samples, x.dtype) if mask is None else mask.astype(x.dtype)
        y, *moments = standardise(x, keep, scale, bias, self.epsilon)
        if self.mode == "running" and not self.is_initializing():
            mean, var = (lax.stop_gradient(m[0]) for m in moments)
            count = jnp.sum(keep) * (x[..., 0].size // samples)
            unbiased = var * count / jnp.maximum(count - 1.0, 1.0)
            mean_var.value += self.momentum * (mean - mean_var.value)
            var_var.value += self.momentum * (unbiased - var_var.value)
        return y


def _affine(x, mean, var, scale, bias):
    # not x * gain + (bias - mean * gain): a one-sample batch must give exactly the bias, since
    # the rounding error would decide on which side of a ReLU's kink it falls
    return (x - mean) * (scale * lax.rsqrt(var)) + bias


def _standardise(
    x: Float[Array, "... c"],
    keep: Float[Array, " b"] | None,
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
    epsilon: float,
) -> tuple[Float[Array, "... c"], Float[Array, "n c"], Float[Array, "n c"]]:
    """Normalises to mean 0 and variance 1, scales and shifts; also returns mean and variance.

    Statistics are over the rows that are kept, as in BatchNorm (n = 1), or without `keep` over each
    sample's groups of channels, as in GroupNorm (n = b). Positions are summed first, for every
    sample and channel, which vectorises; the rest is small. Automatic differentiation would pass
    over the map twice as often as the gradient below, which takes nothing back through the two
    statistics.
    """
    return _standardise_fwd(x, keep, scale=scale, bias=bias, epsilon=epsilon)[0]


def _standardise_fwd(x, keep, scale, bias, epsilon):
    inside = tiles.positions(x)
    mean = _pool(jnp.mean(x, inside), keep)
    centred = x - jnp.expand_dims(mean, inside)
    var = _pool(jnp.mean(centred**2, inside), keep)
    inverse = lax.rsqrt(var + epsilon)
    y = centred * jnp.expand_dims(scale * inverse, inside) + bias
    return (y, mean, var), (x, keep, mean, inverse, scale)


def _standardise_bwd(epsilon, residuals, cotangents):
    x, keep, mean, inverse, scale = residuals
    g, inside = cotangents[0], tiles.positions(x)
    centred = x - jnp.expand_dims(mean, inside)
    by_bias = jnp.sum(g, inside)
    by_scale = jnp.sum(g * centred, inside)
    gain = scale * inverse
    count = math.prod(x.shape[a] for a in inside)
    offset = _unpool(by_bias * gain / count, keep)
    slope = _unpool(by_scale * gain * inverse**2 / count, keep)
    gain, offset, slope = (jnp.expand_dims(t, inside) for t in (gain, offset, slope))
    dx = g * gain - offset - centred * slope
    no_keep = None if keep is None else jnp.zeros_like(keep)
    return dx, no_keep, jnp.sum(by_scale * inverse, 0), jnp.sum(by_bias, 0)


standardise = jax.custom_vjp(_standardise, nondiff_argnums=(4,))
standardise.defvjp(_standardise_fwd, _standardise_bwd)


def _pool(t: Float[Array, "b c"], keep: Float[Array, " b"] | None) -> Float[Array, "n c"]:
    """Computes the mean over rows that are kept, or over each row's groups, for every channel."""
    if keep is not None:
        return (keep @ t / jnp.maximum(jnp.sum(keep), 1.0))[None]
    means = jnp.mean(t.reshape(t.shape[0], GROUPS, -1), -1)
    return jnp.repeat(means, t.shape[1] // GROUPS, axis=1)


def _unpool(t: Float[Array, "b c"], keep: Float[Array, " b"] | None) -> Float[Array, "b c"]:
    """Computes the transpose of `_pool`, which for groups is `_pool` itself."""
    if keep is None:
        return _pool(t, None)
    return keep[:, None] * (jnp.sum(t, 0) / jnp.maximum(jnp.sum(keep), 1.0))
