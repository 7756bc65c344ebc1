"""Where randomness comes from: every stream of keys has its name here.

A run has one key that never changes. Keys are derived from it with `fold_in` by round, stream,
client, phase, epoch and step, so a round is a function of the run's seed and its number alone.
"""

from typing import Any

import jax

# Streams of a run. Rounds are folded into the same key, so these are numbers that no round has.
INITIAL_WEIGHTS = 2**32 - 1
CALIBRATION = 2**32 - 2

# Streams of a round.
LOCAL_TRAINING = 1
PERSONAL_TRAINING = 2
DROPOUT = 3
STRAGGLERS = 4

# Stream of a client beside its phases, which are counted from 0.
OVER_DATA = 2**31

# Stream of a step beside the two that `split` gives.
AUGMENTED_BATCH = 2


def of_run(key: jax.Array, stream: int) -> jax.Array:
    """Returns the key of one of the run's streams."""
    return jax.random.fold_in(key, stream)


def of_round(key: jax.Array, round_number: Any, stream: int) -> jax.Array:
    """Returns the key of one of a round's streams."""
    return jax.random.fold_in(jax.random.fold_in(key, round_number), stream)


def of_clients(key: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns one key for each client, whoever else takes part."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, ids)
