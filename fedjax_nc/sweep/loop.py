"""The loop of a sweep: cells go to processes, longest first, and come back finished or not."""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from fedjax_nc.sweep import cells, work
from fedjax_nc.sweep.cells import (
    BEGUN,
    ELSEWHERE,
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    WAITING,
    Result,
    State,
    Task,
)
from fedjax_nc.sweep.expect import Expected
from fedjax_nc.sweep.launch import LOST, Job, Launcher
from fedjax_nc.sweep.work import Order

_POLL = 0.1  # seconds between two looks at the processes
_LOOK = 1.0  # seconds between two looks at cells that others train
_RETRIES = 3  # times that a cell is begun again after somebody else has stopped its process
_GOES_ON = "the same command goes on with it"
# it has saved, nobody knows, or it was ended while it started
_STOPPED = (work.SAVED, LOST, -signal.SIGTERM)


class Running(NamedTuple):
    """A cell in a process."""

    job: Job
    log: Path
    since: float
    begun: bool  # before: then its time is not that of a whole cell


class Reporter(Protocol):
    """Who shows how far a sweep is."""

    def note(self, message: str) -> None:
        """Says something once."""
        ...

    def show(self, sweep: "Sweep") -> None:
        """Shows how far the sweep is; called often."""
        ...

    def ended(self, task: Task, result: Result, sweep: "Sweep") -> None:
        """Tells what a cell came to."""
        ...


class Sweep:
    """All cells of a sweep: those that wait, run, are trained elsewhere, and are done."""

    def __init__(self, tasks: Sequence[Task], states: Sequence[State], expected: Expected) -> None:
        """Takes finished cells as they are, and orders the others."""
        self.tasks, self.states, self.expected = tuple(tasks), list(states), expected
        self.results: dict[int, Result] = {}
        self.waiting: list[int] = []
        self.running: dict[int, Running] = {}
        self.elsewhere: list[int] = []
        self.stopped = False
        self._again: dict[int, int] = {}
        for i, state in enumerate(states):
            if state.name == FINISHED:
                self.results[i] = cells.result_of(tasks[i], state)
                expected.learn(tasks[i], state.seconds or 0.0)
            else:
                (self.elsewhere if state.name == ELSEWHERE else self.waiting).append(i)

    def count(self, name: str) -> int:
        """Returns how many cells came to this."""
        return sum(result.state == name for result in self.results.values())

    def seconds_left(self, room: int) -> float | None:
        """Returns about how long the sweep takes from now; None as long as nobody can tell."""
        total, longest = 0.0, 0.0
        for i in (*self.waiting, *self.running, *self.elsewhere):
            seconds = self.expected.seconds(self.tasks[i])
            if seconds is None:
                return None
            left = seconds * (1 - self.share(i))
            total, longest = total + left, max(longest, left)
        return max(total / room, longest)

    def share(self, i: int) -> float:
        """Returns which share of a cell's rounds is done."""
        return min(1.0, self.states[i].round / self.tasks[i].configs[0].rounds)

    def begin(self, launcher: Launcher, order: Callable[[int], Order]) -> None:
        """Starts the longest cells that wait, as many as there is room for."""
        if not self.waiting or len(self.running) >= launcher.room:
            return
        self.waiting.sort(key=lambda i: self.expected.order(self.tasks[i]), reverse=True)
        chosen: list[int] = []
        while self.waiting and len(self.running) + len(chosen) < launcher.room:
            i = self.waiting.pop(0)
            self.states[i] = cells.look(self.tasks[i], again=self.tasks[i].overwrite)
            if self.states[i].name == ELSEWHERE:  # since we looked last
                self.elsewhere.append(i)
            elif self.states[i].name == FINISHED:
                self.results[i] = cells.result_of(self.tasks[i], self.states[i])
            else:
                chosen.append(i)
        if not chosen:
            return
        orders = [order(i) for i in chosen]
        for i, job, one in zip(chosen, launcher.start(orders), orders, strict=True):
            begun = self.states[i].name == BEGUN
            self.running[i] = Running(job, one.log, since=time.monotonic(), begun=begun)

    def collect(self, reporter: Reporter) -> None:
        """Takes back the cells whose processes have ended."""
        for i, one in list(self.running.items()):
            code = one.job.poll()
            if code is None:
                continue
            del self.running[i]
            self._settle(i, one, code=code)
            if i in self.results:
                reporter.ended(self.tasks[i], self.results[i], self)

    def look(self, reporter: Reporter) -> None:
        """Sees how far cells are; takes over what others have finished, and what they have left."""
        for i in self.running:
            self.states[i] = self.states[i]._replace(round=cells.recorded(self.tasks[i]))
        for i in list(self.elsewhere):
            self.states[i] = cells.look(self.tasks[i])
            if self.states[i].name == ELSEWHERE:
                continue
            self.elsewhere.remove(i)
            if self.states[i].name == FINISHED:
                self._finished(i, self.states[i])
                reporter.ended(self.tasks[i], self.results[i], self)
            else:
                self.waiting.append(i)

    def stop(self) -> None:
        """Asks all processes to save and end; cells that wait are left."""
        self.stopped = True
        for one in self.running.values():
            one.job.stop()

    def kill(self) -> None:
        """Ends all processes at once."""
        for one in self.running.values():
            one.job.kill()

    def all(self) -> list[Result]:
        """Returns what came of every cell, in order, or what is being done with it."""
        return [self.results.get(i) or self._unfinished(i) for i in range(len(self.tasks))]

    def _unfinished(self, i: int) -> Result:
        if self.stopped:
            return cells.result_of(self.tasks[i], State(STOPPED), reason=_GOES_ON)
        elsewhere = ELSEWHERE if i in self.elsewhere else WAITING
        return cells.result_of(self.tasks[i], State(RUNNING if i in self.running else elsewhere))

    def _settle(self, i: int, one: Running, *, code: int) -> None:
        """Decides what a cell came to whose process has ended."""
        task = self.tasks[i]
        state = self.states[i] = cells.look(task)
        if state.name == FINISHED and (code == 0 or not task.overwrite):
            took = None if one.begun else time.monotonic() - one.since
            self._finished(i, state._replace(seconds=took or state.seconds))
        elif self.stopped and code in _STOPPED:
            return
        elif code == work.HELD or (code == LOST and state.name == ELSEWHERE):
            self.elsewhere.append(i)
        elif code in _STOPPED and self._again.get(i, 0) < _RETRIES:
            self._again[i] = self._again.get(i, 0) + 1
            self.waiting.append(i)
        else:
            why = work.why(code, one.log)
            self.results[i] = cells.result_of(task, State(FAILED), reason=why, code=code)

    def _finished(self, i: int, state: State) -> None:
        self.results[i] = cells.result_of(self.tasks[i], state)
        self.expected.learn(self.tasks[i], state.seconds or 0.0)


def train(
    sweep: Sweep,
    launcher: Launcher,
    *,
    order: Callable[[int], Order],
    asked: Callable[[], str],
    reporter: Reporter,
    changed: Callable[[], object],
) -> list[Result]:
    """Trains every cell that is not finished, or that nobody else trains; returns all results.

    Args:
      sweep: its cells.
      launcher: who starts processes.
      order: what the process of a cell is told.
      asked: which signal asks to end, or nothing.
      reporter: who shows how far it is.
      changed: is called when a cell has come to something.
    """
    looked, done = time.monotonic(), len(sweep.results)
    try:
        while sweep.waiting or sweep.running or sweep.elsewhere:
            if asked() and not sweep.stopped:
                sweep.stop()
            if sweep.stopped and not sweep.running:
                break
            if not sweep.stopped:
                sweep.begin(launcher, order)
            sweep.collect(reporter)
            if time.monotonic() - looked > _LOOK:
                sweep.look(reporter)
                looked = time.monotonic()
            reporter.show(sweep)
            if len(sweep.results) > done:
                changed()
                done = len(sweep.results)
            time.sleep(_POLL)
    except BaseException:
        sweep.kill()
        raise
    return sweep.all()
