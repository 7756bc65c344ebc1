"""Normalisation whose statistics ignore padding rows."""

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

MODES = ("running", "batch", "none")


class Norm(nn.Module):
    """BatchNorm as PyTorch computes it (momentum 0.1, unbiased running variance), with a mask.

    Modes: `running` keeps statistics for evaluation; `batch` always uses the batch's own, as the
    MobileNet of FedDr+ and FedBABU does; `none` leaves the input alone.
    """

    mode: str = "running"
    momentum: float = 0.1
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self, x: Float[Array, "b ... c"], *, train: bool, mask: Bool[Array, " b"] | None = None
    ) -> Float[Array, "b ... c"]:
        """Normalise every channel over the batch's unmasked rows and all positions."""
        if self.mode == "none":
            return x
        channels = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, channels, x.dtype)
        bias = self.param("bias", nn.initializers.zeros, channels, x.dtype)
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
