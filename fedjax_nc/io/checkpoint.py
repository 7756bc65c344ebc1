"""Checkpoints through Orbax: the whole `State`, and what to do when one cannot be read."""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from fedjax_nc.errors import UserError
from fedjax_nc.types import State


def open_manager(directory: Path) -> ocp.CheckpointManager:
    """The run's checkpoints; the last two are kept, so that one bad file loses little."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    return ocp.CheckpointManager(directory.absolute(), options=options)


def save(managers: list[ocp.CheckpointManager | None], state: State) -> None:
    """Writes each seed's state in the background under its round's number.

    Args:
      managers: one per seed, all None for a run that is kept in memory.
      state: the state of all seeds.
    """
    open_ones = [manager for manager in managers if manager is not None]
    if not open_ones:
        return
    # a copy on the host: the round donates its input, and Orbax reads after we have gone on
    content = _to_host(state)
    for i, manager in enumerate(open_ones):
        own = jax.tree.map(lambda x, i=i: np.asarray(x[i]), content)
        manager.save(int(own["round"]), args=ocp.args.StandardSave(own))


def restore(manager: ocp.CheckpointManager, template: State) -> tuple[State | None, list[str]]:
    """Returns the newest state that can be read, and a warning for each that cannot.

    The state is None when there is no checkpoint yet. Unreadable ones are removed, so that the run
    can go on. The template is a state of one seed without the axis of seeds, as checkpoints are.
    """
    warnings = []
    bad = []
    found = None
    for step in sorted(manager.all_steps(), reverse=True):
        try:
            found = _read(manager, step, template=template)
        except Exception as error:  # Orbax raises many kinds for a damaged file
            bad.append(step)
            reason = str(error).strip().splitlines()
            warnings.append(
                f"checkpoint of round {step} cannot be read "
                f"({type(error).__name__}: {reason[0][:120] if reason else ''})"
            )
            continue
        if bad:
            warnings.append(f"the last good checkpoint is round {step}: resuming from it")
        break
    if bad and found is None:
        raise UserError(
            f"no checkpoint in {manager.directory} can be read: start again with --overwrite"
        )
    for step in bad:
        manager.delete(step)
    return found, warnings


def last(directory: Path) -> int:
    """The newest round of which there is a checkpoint."""
    steps = _steps(directory)
    if not steps:
        raise UserError(f"{directory} holds no checkpoint yet: let the run reach one")
    return steps[-1]


def load(directory: Path, template: State, step: int) -> State:
    """The state after a round; nothing is written, whatever is wrong."""
    steps = _steps(directory)
    if step not in steps:
        known = ", ".join(map(str, steps)) or "none"
        raise UserError(f"{directory} has no checkpoint of round {step}: choose --round of {known}")
    with ocp.CheckpointManager(directory.absolute()) as manager:
        try:
            return _read(manager, step, template=template)
        except Exception as error:  # Orbax raises many kinds for a damaged file
            others = ", ".join(str(s) for s in steps if s != step) or "none"
            raise UserError(
                f"checkpoint of round {step} in {directory} cannot be read "
                f"({type(error).__name__}): choose another with --round, of {others}"
            ) from error


def raw(directory: Path, step: int) -> dict[str, Any]:
    """Returns a checkpoint's content as it is stored, without a state to compare it with."""
    with ocp.CheckpointManager(directory.absolute()) as manager:
        return manager.restore(step, args=ocp.args.StandardRestore())


def _steps(directory: Path) -> list[int]:
    """Rounds of which there is a finished checkpoint."""
    return sorted(int(p.name) for p in directory.glob("*") if p.name.isdigit())


def _read(manager: ocp.CheckpointManager, step: int, template: State) -> State:
    with _without_late_readers():
        args = ocp.args.StandardRestore(_to_host(template))
        return _from_host(manager.restore(step, args=args), template)


@contextlib.contextmanager
def _without_late_readers():
    """Keep quiet what finds Orbax's event loop closed after a read beside it failed."""
    before = sys.unraisablehook

    def hook(seen):
        if "Event loop is closed" not in str(seen.exc_value):
            before(seen)

    sys.unraisablehook = hook
    try:
        yield
    except Exception:
        time.sleep(0.2)  # they are read in parallel, so the others end soon
        raise
    finally:
        sys.unraisablehook = before


def _to_host(state: State) -> dict[str, Any]:
    content = {
        "round": state.round,
        "key": jax.random.key_data(state.key),
        "weights": state.weights,
        "shared": state.shared,
        "clients": state.clients,
    }
    return jax.tree.map(lambda x: np.array(x, copy=True), content)


def _from_host(content: Any, template: State) -> State:
    def like(x, t):
        value = np.asarray(x, t.dtype)  # not compiled, as a cast on the device is
        return np.array(value) if isinstance(t, np.ndarray) else jnp.asarray(value)

    return State(
        jnp.array(content["round"], jnp.int32),
        jax.random.wrap_key_data(jnp.array(content["key"])),
        weights=jax.tree.map(like, content["weights"], template.weights),
        shared=jax.tree.map(like, content["shared"], dict(template.shared)),
        clients=jax.tree.map(like, content["clients"], dict(template.clients)),
    )
