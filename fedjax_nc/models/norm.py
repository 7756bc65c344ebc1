"""Normalisation whose statistics ignore padding rows."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

GROUPS = 2  # of `group`


class Norm(nn.Module):
    """BatchNorm as PyTorch computes it (momentum 0.1, unbiased running variance), with a mask.

    Modes: `running` keeps statistics for evaluation; `batch` always uses the batch's own, as the
    MobileNet of FedDr+ and FedBABU does; `none` leaves the input alone. `group` is not BatchNorm
    but PyTorch's GroupNorm with two groups: every sample by itself, so the mask does not matter.
    """

    mode: str = "running"
    momentum: float = 0.1
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self, x: Float[Array, "b ... c"], *, train: bool, mask: Bool[Array, " b"] | None = None
    ) -> Float[Array, "b ... c"]:
        """Normalise every channel over the batch's unmasked rows, or every sample's groups."""
        if self.mode == "none":
            return x
        channels = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, channels, x.dtype)
        bias = self.param("bias", nn.initializers.zeros, channels, x.dtype)
        if self.mode == "group":
            return group_norm(x, scale, bias, self.epsilon)
        if self.mode == "running":
            mean_var = self.variable("batch_stats", "mean", jnp.zeros, channels, x.dtype)
            var_var = self.variable("batch_stats", "var", jnp.ones, channels, x.dtype)
            if not train:
                return _affine(x, mean_var.value, var_var.value + self.epsilon, scale, bias)
        mean, var, count = _moments(x, mask)
        if self.mode == "running" and not self.is_initializing():
            unbiased = var * count / jnp.maximum(count - 1.0, 1.0)
            mean_var.value += self.momentum * (mean - mean_var.value)
            var_var.value += self.momentum * (unbiased - var_var.value)
        return _affine(x, mean, var + self.epsilon, scale, bias)


def _affine(x, mean, var, scale, bias):
    # not x * gain + (bias - mean * gain): a one-sample batch must give exactly the bias, since
    # the rounding error would decide on which side of a ReLU's kink it falls
    return (x - mean) * (scale * lax.rsqrt(var)) + bias


def _moments(x, mask):
    axes = tuple(range(x.ndim - 1))
    positions = x[0, ..., 0].size
    if mask is None:
        count = jnp.asarray(x.shape[0] * positions, x.dtype)
        mean = jnp.mean(x, axes)
        return mean, jnp.mean((x - mean) ** 2, axes), count
    keep = mask.reshape((-1,) + (1,) * (x.ndim - 1)).astype(x.dtype)
    count = jnp.maximum(jnp.sum(keep) * positions, 1.0)
    mean = jnp.sum(x * keep, axes) / count
    return mean, jnp.sum((x - mean) ** 2 * keep, axes) / count, count


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def group_norm(
    x: Float[Array, "b *s c"], scale: Float[Array, " c"], bias: Float[Array, " c"], epsilon: float
) -> Float[Array, "b *s c"]:
    """GroupNorm with an even split of the channels.

    Positions are summed per channel, which vectorises, and channels combined on what little is
    left. Automatic differentiation would pass over the map twice as often as the gradient below.
    """
    return _group_fwd(x, scale, bias, epsilon)[0]


def _group_fwd(x, scale, bias, epsilon):
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    mean = _over_groups(jnp.mean(flat, 1))
    var = _over_groups(jnp.mean((flat - mean) ** 2, 1))
    inverse = lax.rsqrt(var + epsilon)
    y = (flat - mean) * (scale * inverse) + bias
    return y.reshape(x.shape), (x, mean, inverse, scale)


def _group_bwd(epsilon, residuals, g):
    x, mean, inverse, scale = residuals
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    g = g.reshape(flat.shape)
    by_bias = jnp.sum(g, 1)
    by_scale = jnp.sum(g * (flat - mean), 1)
    count = flat.shape[1]
    offset = _over_groups(by_bias * scale / count)
    slope = _over_groups(by_scale * scale / count) * inverse**2
    dx = (g * scale - offset - (flat - mean) * slope) * inverse
    return dx.reshape(x.shape), jnp.sum(by_scale * inverse[:, 0], 0), jnp.sum(by_bias, 0)


group_norm.defvjp(_group_fwd, _group_bwd)


def _over_groups(t: Float[Array, "b c"]) -> Float[Array, "b 1 c"]:
    """Mean over each group, repeated for its channels."""
    means = jnp.mean(t.reshape(t.shape[0], GROUPS, -1), -1)
    return jnp.repeat(means, t.shape[1] // GROUPS, axis=1)[:, None]
