"""The display of a sweep: how many cells are done, run and failed, and the time left."""

import time
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedjax_nc.cli.console import Lasting
from fedjax_nc.metrics import duration
from fedjax_nc.sweep import cells
from fedjax_nc.sweep.cells import FAILED, FINISHED, Result, Task
from fedjax_nc.sweep.loop import Sweep

_SECONDS = 0.5  # between two pictures of the same sweep
_LINE_SECONDS = 60.0  # between plain lines while no cell ends


class Sweeping:
    """Shows a sweep; a context manager because a bar must be closed."""

    def __init__(self, room: int) -> None:
        """Prepares the bar for so many cells at once."""
        self.room = room
        self.console = Lasting(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.lines: dict[int, Any] = {}
        self.all: Any = None
        self.shown = self.printed = 0.0

    def __enter__(self) -> "Sweeping":
        """Starts the bar."""
        self.bar.start()
        self.printed = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the bar."""
        self.bar.stop()

    def note(self, message: str) -> None:
        """Prints a message above the bar."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def show(self, sweep: Sweep) -> None:
        """Shows how far the sweep and every running cell is."""
        now = time.monotonic()
        if now - self.shown < _SECONDS:
            return
        self.shown = now
        if not self.console.is_terminal:
            if now - self.printed > _LINE_SECONDS:
                self.note(self._status(sweep))
                self.printed = now
            return
        if self.all is None:
            self.all = self.bar.add_task("cells", total=len(sweep.tasks), text="")
        self.bar.update(self.all, completed=len(sweep.results), text=self._status(sweep))
        for i in [i for i in self.lines if i not in sweep.running]:
            self.bar.remove_task(self.lines.pop(i))
        for i in sweep.running:
            rounds = sweep.tasks[i].configs[0].rounds
            if i not in self.lines:
                name = f"  {cells.words(sweep.tasks[i].labels, sweep.tasks[i].seeds)}"
                self.lines[i] = self.bar.add_task(_plain(name), total=rounds, text="")
            done = sweep.states[i].round
            text = f"round {done}/{rounds}" if done else "starting"
            self.bar.update(self.lines[i], completed=done, text=text)

    def ended(self, task: Task, result: Result, sweep: Sweep) -> None:
        """Tells what a cell came to."""
        told = f"{result.state}: {result.reason}" if result.reason else _accuracy(result)
        line = f"{cells.words(task.labels, task.seeds)}: {told}"
        if not self.console.is_terminal:
            line = f"{line} ({self._status(sweep)})"
        elif result.state != FAILED:  # the bar counts them
            return
        self.note(line)
        self.printed = time.monotonic()

    def _status(self, sweep: Sweep) -> str:
        """Returns how far a sweep is, in words."""
        parts = [f"{sweep.count(FINISHED)} of {len(sweep.tasks)} done"]
        for count, what in (
            (len(sweep.running), "running"),
            (len(sweep.elsewhere), "in other processes"),
            (sweep.count(FAILED), "failed"),
        ):
            if count:
                parts.append(f"{count} {what}")
        left = sweep.seconds_left(self.room)
        if len(sweep.results) < len(sweep.tasks):
            parts.append("stopping" if sweep.stopped else _left(left))
        return ", ".join(parts)


def _left(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown"
    # a cell whose rounds are all recorded still writes its files
    return "nearly done" if seconds < 1 else f"about {duration(seconds)} left"


def _accuracy(result: Result) -> str:
    values = [summary["global_accuracy"] for summary in result.summaries]
    return f"global {' '.join(f'{100 * value:.2f}' for value in values)}"


def _plain(text: str) -> str:
    """Returns a text in which rich sees no markup."""
    return text.replace("[", r"\[")
