"""Servers that take the mean update for a gradient: against NumPy, and what they leave alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded import close
from trees import fresh, plain

from fedjax_nc import tree
from fedjax_nc.errors import UserError
from fedjax_nc.methods import registry
from fedjax_nc.methods.base import Arrived, Setup
from fedjax_nc.train.traffic import traffic
from fedjax_nc.types import State, Weights

SQUARES = {
    "fedadagrad": lambda v, d: v + d**2,
    "fedadam": lambda v, d: 0.99 * v + 0.01 * d**2,
    "fedyogi": lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2),
}


def by_hand(name, w, updates, *, tau=0.001):
    """Algorithm 2 of Reddi et al. with the hyperparameters that are ours, each somebody's."""
    lr, beta = (0.1, 0.0) if name == "fedadagrad" else (0.01, 0.9)
    m, v = np.zeros_like(w), np.full_like(w, tau**2)
    for d in updates:
        m, v = beta * m + (1 - beta) * d, SQUARES[name](v, d)
        w = w + lr * m / (np.sqrt(v) + tau)
    return w


def served(spec, w, updates):
    """What the server makes of mean updates, one after another."""
    method = registry.build(spec)
    (part,) = method.parts
    weights = Weights({"head": jnp.asarray(w)}, {"mean": jnp.zeros(2)})
    shared = part.init_shared(Setup(weights, 3))
    one = jnp.ones(())
    for d in updates:
        mean = Weights({"head": jnp.asarray(d)}, {"mean": jnp.ones(2)})
        arrived = Arrived(weights, mean, {}, weight=one, clients=one, num_clients=3)
        shared = part.reduce(shared, None, arrived)
        weights = method.server(arrived, {part.name: shared})
    close(weights.stats["mean"], np.full(2, len(updates)))  # averaged plainly
    return weights.params["head"]


def numbers(scale):
    rng = np.random.RandomState(0)
    return rng.randn(5), [scale * rng.randn(5) for _ in range(3)]


@pytest.mark.parametrize("name", SQUARES)
@pytest.mark.parametrize("scale", [1.0, 1e-3])  # of tau: squares of fedyogi also fall
def test_adaptive_servers_against_numpy(x64, name, scale):
    w, updates = numbers(scale)
    close(served(name, w, updates), by_hand(name, w, updates), 1e-12)


def test_fedavgm_against_numpy(x64):
    w, (a, b, c) = numbers(1.0)
    steps = a, b + 0.5 * a, c + 0.5 * b + 0.25 * a
    found = served("fedavgm(momentum=0.5, server_lr=0.7)", w, (a, b, c))
    close(found, w + 0.7 * sum(steps), 1e-12)


def test_rounds_of_fedadam(x64, tiny):
    """The updates are what FedAvg's clients make of the same models."""
    adam, avg = tiny("fedadam", norm="none"), tiny("fedavg", norm="none")
    state, updates, models = adam.state(), [], [plain(adam.state().weights.params)]
    for number in range(2):
        sent = jax.tree.map(jnp.asarray, models[-1])
        now = State(jnp.asarray(number, jnp.int32), state.key, Weights(sent, {}), {}, {})
        after = avg.run(1, state=fresh(now))[0].weights.params
        updates.append(plain(tree.sub(after, models[-1])))
        state, _ = adam.run(1, state=state)
        models.append(plain(state.weights.params))
    expected = jax.tree.map(lambda w, *d: by_hand("fedadam", w, d), models[0], *updates)
    for found, want in zip(jax.tree.leaves(models[2]), jax.tree.leaves(expected), strict=True):
        close(found, want, 1e-9)


def test_moments_stay_with_the_server(tiny):
    t = tiny("fedyogi")
    size = tree.num_bytes(t.state().weights)
    assert traffic(t.task, t.data.pool) == (size, size)


@pytest.mark.parametrize(
    "spec", ["fedavgm(momentum=1.0)", "fedadam(beta2=1.0)", "fedyogi(tau=0.0)"]
)
def test_refused(spec):
    with pytest.raises(UserError, match="give a number"):
        registry.build(spec)
