"""What changes from round to round: the learning rate, and which clients take part."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_nc import config
from fedjax_nc.train import local
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
