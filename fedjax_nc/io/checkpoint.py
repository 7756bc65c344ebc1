"""Checkpoints through Orbax: the whole `State`, and facts by which damage is noticed.

A step has two items: `state`, and `facts` with the checksum of each array, the records so far and
what run it is of. Earlier versions wrote one item, `default`, without facts.
"""

import contextlib
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from fedjax_nc import inputs, processes
from fedjax_nc.errors import UserError, reason
from fedjax_nc.io import checksums, facts, files, left, records
from fedjax_nc.io.facts import Damaged, steps
from fedjax_nc.types import State


class Found(NamedTuple):
    """Holds what `restore` finds: a state, its records, and what a person should know."""

    state: State | None = None  # None: the run starts with round 1
    rows: Sequence[dict[str, Any]] = ()  # the records up to the state's round
    begun: dict[str, Any] | None = None  # where the run was started first, if it says so
    warnings: Sequence[str] = ()


class Flushed(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """A folder that Orbax writes, which takes its name when all of it is on the disk.

    Orbax itself waits for arrays only, in each process for its own: a machine that fails would
    leave empty facts in a step for which an older one has been deleted.
    """

    async def finalize(self) -> None:
        """Flushes a step, with the items that are in it by now, and then its name."""
        final = Path(self.get_final())
        if not final.name.isdecimal():  # an item
            return await super().finalize()
        files.flush_folder(Path(self.get()))
        await super().finalize()
        for path in [*final.iterdir(), final, final.parent]:  # Orbax has just marked it as whole
            files.flush(path)


def open_manager(directory: Path) -> ocp.CheckpointManager:
    """Opens the run's checkpoints to write; the last two are kept, so that damage loses little.

    Opened after `restore`, which sets damaged ones aside: they would count as one of the two.
    """
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True, temporary_path_class=Flushed)
    return ocp.CheckpointManager(directory.absolute(), options=options)


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Leaves out the tracebacks of Orbax's threads for an error which saving raises too."""
    logger = logging.getLogger("absl")

    def wanted(record: logging.LogRecord) -> bool:
        return not (record.exc_info and "orbax" in record.pathname)

    logger.addFilter(wanted)
    try:
        with _without_late_threads():
            yield
    finally:
        logger.removeFilter(wanted)


def save(
    managers: list[ocp.CheckpointManager | None],
    state: State,
    about: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes each seed's state in the background under its round's number.

    Args:
      managers: one per seed, all None for a run that is kept in memory.
      state: the state of all seeds.
      about: facts of each seed that are saved with it: `rows`, `run`, `begun`.
    """
    open_ones = [manager for manager in managers if manager is not None]
    if not open_ones:
        return
    # a copy on the host: the round donates its input, and Orbax reads after we have gone on
    content = _to_host(state)
    for i, manager in enumerate(open_ones):
        own = jax.tree.map(lambda x, i=i: x[i] if _is_divided(x) else np.asarray(x[i]), content)
        arrays: dict[str, str] = {}
        for text in processes.texts_of_all(json.dumps(checksums.of(own))):
            arrays |= json.loads(text)
        told = facts.sealed({**(about[i] if about else {}), "arrays": arrays})
        manager.save(
            int(own["round"]),
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(own), facts=ocp.args.JsonSave(told)
            ),
        )


def restore(directory: Path, template: State, *, run: Mapping[str, Any] | None = None) -> Found:
    """Returns the newest state that is what was saved, and a warning for each that is not.

    Damaged checkpoints are renamed, never deleted, so that the run can go on; of several processes
    the first one alone renames. Those of another run are refused.

    Args:
      directory: of the checkpoints, beside whose folder metrics.jsonl lies.
      template: a state of one seed without the axis of seeds, as checkpoints are.
      run: facts of the run that resumes, which those of a checkpoint must not contradict.
    """
    warnings: list[str] = []
    found, good, known = Found(), 0, steps(directory)
    for step in reversed(known):
        folder = directory / str(step)
        try:
            found = _read(folder, template, run=run or {})
        except Damaged as error:
            if not processes.is_first():  # to which it was perhaps whole
                continue
            kept = _set_aside(folder)
            warnings.append(
                f"checkpoint of round {step} is damaged ({error}): kept as "
                f"{directory.name}/{kept.name}"
            )
            continue
        good = step
        break
    if warnings:
        lost = max(known) - good
        again = f"{lost} round{'s are' if lost > 1 else ' is'} computed again"
        start = f"the last good checkpoint is round {good}" if good else "no checkpoint is good"
        warnings.append(f"{start}: {again}")
    return found._replace(warnings=[*warnings, *found.warnings])


def last(directory: Path) -> int:
    """Returns the newest round of which there is a checkpoint."""
    known = steps(directory)
    if not known:
        raise UserError(f"{directory} holds no checkpoint yet: let the run reach one")
    return known[-1]


def load(directory: Path, template: State, step: int) -> State:
    """Returns the state after a round; nothing is written, whatever is wrong."""
    known = steps(directory)
    if step not in known:
        words = ", ".join(map(str, known)) or "none"
        raise UserError(f"{directory} has no checkpoint of round {step}: choose --round of {words}")
    with _refused_if_damaged(directory, step):
        return _from_host(_content(directory / str(step), _to_host(template))[0], template)


def raw(directory: Path, step: int) -> dict[str, Any]:
    """Returns a checkpoint's content as it is stored, without a state to compare it with."""
    with _refused_if_damaged(directory, step):
        return _content(directory / str(step))[0]


@contextlib.contextmanager
def _refused_if_damaged(directory: Path, step: int):
    try:
        yield
    except Damaged as error:
        others = ", ".join(str(s) for s in steps(directory) if s != step) or "none"
        raise UserError(
            f"checkpoint of round {step} in {directory} is damaged ({error}): choose "
            f"another with --round, of {others}"
        ) from error


def _read(folder: Path, template: State, run: Mapping[str, Any]) -> Found:
    content, told = _content(folder, _to_host(template), run=run)
    step = int(content["round"])
    if step != int(folder.name):
        raise Damaged(f"it is of round {step}")
    warnings, log = [], folder.parent.parent / "metrics.jsonl"
    if told is None:
        rows = [row for row in records.read(log) if 0 < row["round"] <= step]
        if len(rows) < step:
            raise Damaged("it has no checksums, and metrics.jsonl has lost rows")
        warnings = [f"checkpoint of round {step} is of an earlier version, without checksums"]
    else:
        rows = left.saved_rows(told.get("rows", ""))
    begun = None if told is None else told.get("begun")
    return Found(_from_host(content, template), rows=rows, begun=begun, warnings=warnings)


def _content(
    folder: Path, like: Any = None, run: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, Any] | None]:
    """Returns the arrays of a step, which are what was saved, and its facts.

    Those of another run, by `run` or by the arrays that `like` has, are refused.
    """
    earlier = (folder / "default").is_dir()
    told = None if earlier else facts.read(folder)
    if told is not None:
        other = facts.other_run(told, run or {})
        other = other or checksums.other_kind(told["arrays"], like)
        if other:
            raise UserError(
                f"{folder.parent.parent} holds a run of {other}: choose another --out, or "
                "--overwrite to replace it"
            )
    where = (folder / ("default" if earlier else "state")).absolute()
    with _without_late_threads():
        content = _restored(where, like)
    if told is not None and (changed := checksums.changed(told["arrays"], content)):
        raise Damaged(f"{changed} is not what was saved")
    return content, told


def _set_aside(folder: Path) -> Path:
    """Renames a damaged checkpoint to what Orbax does not take for one."""
    target, number = folder.with_name(f"{folder.name}.damaged"), 1
    while target.exists():
        number += 1
        target = folder.with_name(f"{folder.name}.damaged{number}")
    return folder.rename(target)


@contextlib.contextmanager
def _without_late_threads():
    """Keeps quiet what finds Orbax's event loop closed after something beside it has failed.

    Arrays are read and written in parallel: the others end soon, and complain then.
    """
    before = sys.unraisablehook

    def hook(seen):
        if "Event loop is closed" not in str(seen.exc_value):
            before(seen)

    def of_others(record):
        return "exception was never retrieved" not in record.getMessage()

    sys.unraisablehook, log = hook, logging.getLogger("asyncio")
    log.addFilter(of_others)
    try:
        yield
    except Exception:
        time.sleep(0.2)
        gc.collect()  # some complain when they are forgotten
        raise
    finally:
        sys.unraisablehook = before
        log.removeFilter(of_others)


def _restored(where: Path, like: Any) -> Any:
    alone = ocp.options.MultiprocessingOptions()
    if processes.count() > 1:  # each reads all of it, when its turn has come
        me = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(me, {me}, f"process{me}")
    # Orbax takes a folder that it may not look into for one in which files are lost
    for _ in os.walk(where, onerror=lambda error: inputs.raise_fault(error, where)):
        pass
    try:
        with ocp.StandardCheckpointer(multiprocessing_options=alone) as reader:
            return reader.restore(where, _stored(reader, where) if like is None else like)
    except MemoryError:
        raise
    except Exception as error:  # Orbax raises many kinds for a damaged file
        inputs.raise_fault(error, where)
        told = reason(error)
        told = told if told == type(error).__name__ else f"{type(error).__name__}: {told}"
    raise Damaged(told)  # out here, so that nothing holds on to the readers


def _stored(reader: ocp.StandardCheckpointer, where: Path) -> Any:
    """Returns arrays as stored ones are, to be read whole whatever devices they were written by."""
    logger = logging.getLogger("absl")

    def wanted(record: logging.LogRecord) -> bool:  # that file is of a step, not of its state
        return "_CHECKPOINT_METADATA" not in record.getMessage()

    logger.addFilter(wanted)
    try:
        found: Any = reader.metadata(where).item_metadata
    finally:
        logger.removeFilter(wanted)
    return jax.tree.map(lambda x: np.empty(x.shape, x.dtype), found.tree)


def _to_host(state: State) -> dict[str, Any]:
    content = {
        "round": state.round,
        "key": jax.random.key_data(state.key),
        "weights": state.weights,
        "shared": state.shared,
        "clients": state.clients,
    }
    return jax.tree.map(
        lambda x: jnp.copy(x) if _is_divided(x) else np.array(x, copy=True), content
    )


def _is_divided(x: Any) -> bool:
    """Returns whether other processes have parts of an array, which each of them saves itself."""
    return isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated)


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
