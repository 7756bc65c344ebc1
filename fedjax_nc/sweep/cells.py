"""Cells of a sweep: what each trains, where that lies, and how far it is; jax is not needed."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_nc.config import RunConfig
from fedjax_nc.io import facts, lock, rundir

FINISHED, BEGUN, NEW = "finished", "begun", "new"
ELSEWHERE = "elsewhere"  # another process, perhaps of another sweep, trains it
FAILED, STOPPED = "failed", "stopped"  # what a sweep may come to with a cell
WAITING, RUNNING = "waiting", "running"


class Cell(NamedTuple):
    """One run of a sweep: what it is called in tables, and the flags of `run`."""

    labels: Mapping[str, str]
    argv: Sequence[str]


class Task(NamedTuple):
    """What one process trains: a cell with one seed, or with all of them at once."""

    labels: Mapping[str, str]
    argv: tuple[str, ...]
    configs: tuple[RunConfig, ...]
    directories: tuple[Path, ...]  # one per seed
    track: tuple[tuple[str, ...], int] = ((), 1)  # records that must be there, and how often
    overwrite: bool = False
    out: str = "runs"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are trained."""
        return tuple(cfg.seed for cfg in self.configs)


class State(NamedTuple):
    """How far a cell is."""

    name: str
    round: int = 0  # the last one that is saved, or recorded by whom trains it
    seconds: float | None = None  # of all rounds of a finished one
    summaries: tuple[Mapping[str, Any], ...] = ()


class Result(NamedTuple):
    """What a sweep comes to with one cell."""

    labels: Mapping[str, str]
    argv: tuple[str, ...]
    seeds: tuple[int, ...]
    directories: tuple[Path, ...]
    state: str  # FINISHED, FAILED or STOPPED; what it is doing while the sweep goes on
    reason: str = ""  # why, if it is not finished
    code: int = 0  # of a process that failed
    configs: tuple[RunConfig, ...] = ()
    summaries: tuple[Mapping[str, Any], ...] = ()  # one per seed

    @property
    def summary(self) -> Mapping[str, Any]:
        """The summary of a finished cell of one seed; of several, the first's."""
        return self.summaries[0] if self.summaries else {}


def result_of(task: Task, state: State, *, reason: str = "", code: int = 0) -> Result:
    """Returns what a sweep comes to with a cell in this state."""
    return Result(
        task.labels,
        task.argv,
        seeds=task.seeds,
        directories=task.directories,
        state=state.name,
        reason=reason,
        code=code,
        configs=task.configs,
        summaries=state.summaries,
    )


def once(tasks: Iterable[Task]) -> list[Task]:
    """Returns the tasks without those that are the same run as one before."""
    found: dict[tuple[Path, ...], Task] = {}
    for task in tasks:
        found.setdefault(task.directories, task)
    return list(found.values())


def look(task: Task, *, again: bool = False) -> State:
    """Returns how far a cell is, as it lies on disk.

    Args:
      task: the cell.
      again: whether it is to be trained again though it is finished.
    """
    names, every = task.track
    found = [
        None if again else rundir.finished(d, track=names, track_every=every)
        for d in task.directories
    ]
    done = [one for one in found if one]
    if len(done) == len(found):
        seconds = sum(row.get("seconds", 0.0) for rows, _ in done for row in rows)
        summaries = tuple(summary for _, summary in done)
        return State(FINISHED, len(done[0][0]), seconds=seconds, summaries=summaries)
    if any(lock.holder(directory) for directory in task.directories):
        return State(ELSEWHERE, recorded(task))
    saved = [max(facts.steps(d / "ckpt"), default=0) for d in task.directories]
    return State(BEGUN if any(saved) or done else NEW, min(saved))


def recorded(task: Task) -> int:
    """Returns how many rounds a cell that is being trained has recorded."""
    counts = []
    for directory in task.directories:
        try:
            counts.append((directory / "metrics.jsonl").read_bytes().count(b"\n"))
        except OSError:
            counts.append(0)
    return min(counts)


def words(labels: Mapping[str, str], seeds: Sequence[int]) -> str:
    """Returns how a cell is called: `fedavg, data.alpha 0.1, seed 0`."""
    told = [text if name == "method" else f"{name} {text}" for name, text in labels.items()]
    if seeds:
        told.append(f"seed{'s' if len(seeds) > 1 else ''} {' '.join(map(str, seeds))}")
    return ", ".join(told)
