"""FedDW's network for reviews: words, one LSTM in each direction, the mean over time."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from fedjax_nc.models.conv import Dense, torch_bias
from fedjax_nc.models.lowerings import product
from fedjax_nc.models.norm import Norm

Pair = tuple[Array, Array]  # one array of the forward direction and one of the backward


class BiLSTM(nn.Module):
    """embedding - LSTM both ways - dense128 - ReLU - mean over time - dense128 (linear).

    As in the released code, dropout 0.2 is on either side of the LSTM, and padding words (id 0) are
    treated as other words, in the LSTM as in the mean.
    """

    norm: str = "none"
    conv: str = "auto"  # has no effect: there is no convolution
    units: int = 128
    words: int = 10_000  # with an id of their own; two more ids are padding and the unknown word

    @nn.compact
    def __call__(self, x: Int[Array, "b t"], *, train, mask):
        """Returns the words' vectors after LSTM and dense layer, their means, and the features."""
        shape = (self.words + 2, self.units)
        table = self.param("embedding", nn.initializers.normal(1.0), shape)
        # time first: a step of the loop then reads one block of memory
        words = nn.Dropout(0.2)(table[x.T], deterministic=not train)
        hidden = nn.Dropout(0.2)(BothWays(self.units)(words), deterministic=not train)
        flat = Dense(self.units)(hidden.reshape(-1, 2 * self.units))
        dense = flat.reshape(*hidden.shape[:2], self.units).swapaxes(0, 1)
        dense = Norm(self.norm)(dense, train=train, mask=mask)
        levels = jnp.mean(hidden, 0), jnp.mean(dense, 1)
        blocks = hidden.swapaxes(0, 1), nn.relu(dense)
        return blocks, levels, Dense(self.units)(jnp.mean(blocks[-1], 1))


class BothWays(nn.Module):
    """An LSTM from the first word to the last and one back, with PyTorch's initialisation.

    PyTorch's two biases per gate are one here, drawn as their sum.
    """

    units: int

    @nn.compact
    def __call__(self, x: Float[Array, "t b i"]) -> Float[Array, "t b h"]:
        """Returns both LSTMs' hidden vectors at each word, side by side."""
        init, gates, recurrent = torch_bias(self.units), [], []
        for name, inputs in (("forward", x), ("backward", x[::-1])):
            kernel = self.param(f"{name}_kernel", init, (x.shape[-1], 4 * self.units), x.dtype)
            own = self.param(f"{name}_recurrent", init, (self.units, 4 * self.units), x.dtype)
            bias = self.param(f"{name}_bias", _two(init), (4 * self.units,), x.dtype)
            flat = product(inputs.reshape(-1, x.shape[-1]), kernel) + bias
            gates.append(flat.reshape(*x.shape[:2], -1))
            recurrent.append(own)
        forward, backward = recur(tuple(gates), tuple(recurrent))
        return jnp.concatenate([forward, backward[::-1]], -1)


def _two(init):
    """Returns the initialiser that draws twice and adds."""

    def both(key, shape, dtype=float):
        return sum(init(k, shape, dtype) for k in jax.random.split(key))

    return both


@jax.custom_vjp
def recur(gates: Pair, kernels: Pair) -> Pair:
    """Computes the hidden vectors [t, b, h] of two LSTMs from the inputs' share of their gates.

    One loop runs both, and its steps hold nothing but what needs the step before. Automatic
    differentiation would add up the kernels' gradients step by step.
    """
    return _recur_fwd(gates, kernels)[0]


def _recur_fwd(gates, kernels):
    def advance(gates, kernel, hidden, cell):
        i, f, g, o = jnp.split(gates + hidden @ kernel, 4, -1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), jnp.tanh(g), _sigmoid(o)
        cell = f * cell + i * g
        return o * jnp.tanh(cell), cell, jnp.concatenate([i, f, g, o], -1)

    def step(carry, gates):
        new = [
            advance(z, k, hidden=h, cell=c)
            for z, k, (h, c) in zip(gates, kernels, carry, strict=True)
        ]
        return [n[:2] for n in new], new

    _, seen = lax.scan(step, [(_zeros(z), _zeros(z)) for z in gates], gates)
    return (seen[0][0], seen[1][0]), (seen, kernels)


def _recur_bwd(residuals, cotangents):
    seen, kernels = residuals

    def retreat(g_hidden, now, kernel, later):
        (cell, before, gates), (back, g_cell) = now, later
        i, f, g, o = jnp.split(gates, 4, -1)
        g_hidden, out = g_hidden + back, jnp.tanh(cell)
        g_cell = g_cell + g_hidden * o * (1 - out**2)
        by_gate = [
            g_cell * g * i * (1 - i),
            g_cell * before * f * (1 - f),
            g_cell * i * (1 - g**2),
            g_hidden * out * o * (1 - o),
        ]
        by_gates = jnp.concatenate(by_gate, -1)
        return (by_gates @ kernel.T, g_cell * f), by_gates

    def step(carry, now):
        new = [
            retreat(g, n, kernel=k, later=c)
            for (g, n), k, c in zip(now, kernels, carry, strict=True)
        ]
        return [n[0] for n in new], [n[1] for n in new]

    steps = [
        (g, (cell, _before(cell), gates))
        for g, (_, cell, gates) in zip(cotangents, seen, strict=True)
    ]
    zeros = [(jnp.zeros_like(g[0]), jnp.zeros_like(g[0])) for g in cotangents]
    _, by_gates = lax.scan(step, zeros, steps, reverse=True)
    by_kernel = [
        lax.dot_general(_rows(_before(hidden)), _rows(g), (((0,), (0,)), ((), ())))
        for (hidden, *_), g in zip(seen, by_gates, strict=True)
    ]
    return tuple(by_gates), tuple(by_kernel)


recur.defvjp(_recur_fwd, _recur_bwd)


def _sigmoid(x):
    return 0.5 * jnp.tanh(0.5 * x) + 0.5  # one fast function where XLA's own takes two slow ones


def _zeros(gates: Float[Array, "t b g"]) -> Float[Array, "b h"]:
    return jnp.zeros((gates.shape[1], gates.shape[2] // 4), gates.dtype)


def _before(x: Float[Array, "t ..."]) -> Float[Array, "t ..."]:
    """Returns what the step before has, for every step; zeros for the first."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])


def _rows(x: Float[Array, "t b k"]) -> Float[Array, "tb k"]:
    return x.reshape(-1, x.shape[-1])
