"""The state of a run: how it begins, and where it is."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import processes, tree
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import Job
from fedjax_nc.train.round import init_state
from fedjax_nc.types import State


def first_state(job: Job) -> State:
    """Returns the state of all seeds before round one, where rounds expect it."""
    return place(job, stack_states([state_of_seed(job, i) for i in range(len(job.configs))]))


def state_of_seed(job: Job, number: int = 0) -> State:
    """Returns one seed's state before round one, without the axis of seeds.

    Client state above `--execution.client_state_mb` stays in host memory, as numpy arrays.
    """
    count, megabytes = len(job.configs), job.config.execution.client_state_mb
    limit = megabytes * 1e6 / count if job.executor.jit else float("inf")
    # what is divided over devices is made on the host: one device might have no room for it
    above = -1.0 if job.executor.spread else limit
    state = init_state(job.task, jax.random.key(job.configs[number].seed), host_above=above)
    if count > 1 and tree.num_bytes(state.clients) > limit * _sharing(job):
        raise UserError(
            f"--seeds_parallel: the client state of {count} seeds, "
            f"{count * tree.num_bytes(state.clients) / 1e6:.0f} MB, is above "
            f"--execution.client_state_mb={megabytes}: raise it, or leave out --seeds_parallel"
        )
    return state


def stack_states(states: Sequence[State]) -> State:
    """Puts the states of several seeds, or of one, along the axis of seeds."""

    def stacked(*leaves: Any) -> Any:
        on_host = isinstance(leaves[0], np.ndarray)
        if len(leaves) == 1:
            return leaves[0][None]
        return (np if on_host else jnp).stack(leaves)

    return jax.tree.map(stacked, *states)


def _sharing(job: Job) -> int:
    """Returns how many devices share the client state out."""
    return job.executor.devices if job.executor.spread else 1


def clients_on_host(state: State) -> bool:
    """Returns whether the client state is in host memory."""
    return any(isinstance(x, np.ndarray) for x in jax.tree.leaves(state.clients))


def place(job: Job, state: State) -> State:
    """Puts a state where rounds expect it; client state too large for devices stays on the host."""
    limit = job.config.execution.client_state_mb * 1e6 * _sharing(job)
    light, clients = dataclasses.replace(state, clients={}), state.clients
    if job.executor.spread and tree.num_bytes(clients) <= limit:
        clients = processes.put(clients, job.executor.shares(axes=np.ndim(state.round)))
    elif not clients_on_host(state):
        return job.executor.place(state)
    else:  # rounds write to it
        clients = jax.tree.map(lambda x: x if x.flags.writeable else x.copy(), clients)
    return dataclasses.replace(job.executor.place(light), clients=clients)
