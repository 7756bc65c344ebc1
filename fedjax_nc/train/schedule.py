"""What changes from round to round: the learning rate, who takes part, and who fails in it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_nc import config
from fedjax_nc.train import keys, local
from fedjax_nc.types import Hyper


def learning_rate(settings: config.Local, round_number: int) -> float:
    """Returns the learning rate of a round, counted from 0."""
    if settings.schedule == "exponential":
        return settings.lr * settings.decay**round_number
    if settings.schedule == "step":
        return settings.lr * settings.decay ** sum(round_number >= m for m in settings.milestones)
    return settings.lr


def make_hyper(task: local.Task, round_number: int) -> Hyper:
    """Returns the traced inputs of a round, counted from 0."""
    lr = learning_rate(task.trainer.local, round_number)
    weights = tuple(local.default_weights(phase) for phase in task.method.phases)
    return Hyper(jnp.asarray(lr, jnp.result_type(float)), weights)


def participants(key: jax.Array, round_number: Any, federation: config.Federation) -> jax.Array:
    """Draws who takes part in a round, from the run's key and the round's number alone."""
    key = jax.random.fold_in(key, round_number)
    return sample_clients(key, federation.clients, participants=federation.participants)


def sample_clients(key: jax.Array, clients: int, participants: int) -> jax.Array:
    """Draws participants without replacement; if everybody takes part, all of them in order."""
    if participants == clients:
        return jax.numpy.arange(clients)
    return jax.random.permutation(key, clients)[:participants]


class Odd(NamedTuple):
    """What goes wrong with the participants of a round; None where the configuration has none."""

    dropped: jax.Array | None = None  # whether they never answer
    share: jax.Array | None = None  # of their epochs that they do; 1 is all, of who is no straggler


def odd_clients(
    key: jax.Array, round_number: Any, *, ids: jax.Array, federation: config.Federation
) -> Odd:
    """Draws who fails in a round, from the run's key, the round's number and the client alone."""

    def draws(stream: int) -> jax.Array:
        own = keys.of_clients(keys.of_round(key, round_number, stream=stream), ids)
        # as many bits in any precision, so that the same clients fail
        return jax.vmap(lambda k: jax.random.uniform(k, (2,), jnp.float32))(own).T

    dropped = share = None
    if federation.dropout:
        dropped = draws(keys.DROPOUT)[0] < federation.dropout
    if federation.straggler:
        late, left = draws(keys.STRAGGLERS)
        share = jnp.where(late < federation.straggler, 1 - left, 1.0)  # above 0: so left is below 1
    return Odd(dropped, share)
