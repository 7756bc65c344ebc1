"""Learning rate over rounds, and which clients take part in one."""

from typing import Any

import jax

from fedjax_nc import config


def learning_rate(local: config.Local, round_number: int) -> float:
    """The learning rate of a round, counted from 0."""
    if local.schedule == "exponential":
        return local.lr * local.decay**round_number
    if local.schedule == "step":
        return local.lr * local.decay ** sum(round_number >= m for m in local.milestones)
    return local.lr


def participants(key: jax.Array, round_number: Any, federation: config.Federation) -> jax.Array:
    """Who takes part in a round: a function of the run's key and the round alone."""
    key = jax.random.fold_in(key, round_number)
    return sample_clients(key, federation.clients, federation.participants)


def sample_clients(key: jax.Array, clients: int, participants: int) -> jax.Array:
    """Participants drawn without replacement; all of them in order when everybody takes part."""
    if participants == clients:
        return jax.numpy.arange(clients)
    return jax.random.permutation(key, clients)[:participants]
