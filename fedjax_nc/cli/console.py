"""What a person sees of a command: progress and tables. Plain lines when not on a terminal."""

import contextlib
import html
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedjax_nc.cli.streams import Lenient, say
from fedjax_nc.metrics import columns
from fedjax_nc.tables import SPREAD, mean_and_spread

_LINE_SECONDS = 5.0  # between plain progress lines
PATIENCE = 0.5  # seconds after which a plain line says what is waited for


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on stderr what is being waited for.

    A terminal shows it at once and forgets it afterwards; elsewhere it is a line, of what takes
    long only.
    """
    if sys.stderr.isatty():
        say(f"{what} ...", end="")
        try:
            yield
        finally:
            say("\r\x1b[2K", end="")
        return
    line = threading.Timer(PATIENCE, say, (f"{what} ...",))
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()


class Lasting(Console):
    """A console whose reader may leave, as `head` does: the command goes on without it."""

    def __init__(self, *, stderr: bool = False, **how: Any) -> None:
        """Writes to stdout, or stderr, which only shows progress: nothing there ends a command."""
        stream: Any = sys.stderr if stderr else sys.stdout
        file: Any = stream and Lenient(stream, whatever=stderr)
        super().__init__(file=file, stderr=stderr, **how)


class Progressing:
    """Shows rounds as they finish; a context manager because a bar must be closed."""

    def __init__(self, method: str, participants: int) -> None:
        """Prepares the bar; nothing is shown before the first seed starts."""
        self.console = Lasting(stderr=True)
        self.method, self.participants = method, participants
        self.description, self.seeds = method, 1
        self.first: int | None = None
        self.start_time = self.printed = time.monotonic()
        self.accuracy = ""
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.job: Any = None
        self.cell: Any = None  # a notebook's line of progress, which is rewritten

    def __enter__(self) -> "Progressing":
        """Starts the bar."""
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the bar."""
        self.bar.stop()

    def note(self, message: str) -> None:
        """Prints a message above the bar."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Says what is being waited for, in a line of the bar where there is one."""
        if not self.console.is_terminal:
            with waiting(what):
                yield
            return
        line = self.bar.add_task(what, total=None, text="")
        try:
            yield
        finally:
            self.bar.remove_task(line)

    def start(self, seeds: tuple[int, ...]) -> None:
        """Begins a line for seeds that are trained together."""
        self.first, self.accuracy, self.seeds = None, "", len(seeds)
        numbers = " ".join(map(str, seeds))
        self.description = f"{self.method} seed{'s' if len(seeds) > 1 else ''} {numbers}"
        self.job = self.bar.add_task(self.description, total=None, text="compiling")
        if self.console.is_jupyter:
            self._rewrite(f"{self.description}: compiling")
        elif not self.console.is_terminal:
            self.note(f"{self.description}: compiling")

    def round(self, rows: list[dict[str, Any]], rounds: int) -> None:
        """Shows a finished round, given a record per seed."""
        number, now = rows[0]["round"], time.monotonic()
        if self.first is None:
            self.first, self.start_time = number, now  # compile time is not in the estimate
        done, last = number - self.first, number == rounds
        if "global_accuracy" in rows[0]:
            values = " ".join(f"{row['global_accuracy']:.3f}" for row in rows)
            self.accuracy = f"accuracy {values}"
        text = f"round {number}/{rounds}  {self.accuracy}"
        if done:
            each = (now - self.start_time) / done
            text += f"  {self.seeds * self.participants / max(each, 1e-9):.1f} clients/s"
            if not last and not self.console.is_terminal:
                text += f"  eta {each * (rounds - number):.0f} s"
        self._show(self.job, self.description, text, number, rounds)

    def stage(self, name: str, done: int, total: int) -> None:
        """Shows how far the work after the rounds is."""
        self._stage(name, f"client {done}/{total}", done, total)

    def step(self, run: str, name: str, done: int, total: int) -> None:
        """Shows how far the analysis of a run is."""
        self._stage(f"{run}: {name}", f"{done}/{total}", done, total)

    def _stage(self, name: str, text: str, done: int, total: int) -> None:
        if not self.bar.tasks or self.bar.tasks[-1].description != name:
            self.bar.add_task(name, total=total, text="")
        self._show(self.bar.tasks[-1].id, name, text, done, total)

    def _rewrite(self, text: str) -> None:
        """Shows a line in a notebook in place of the one before; needs no widgets."""
        from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

        line = HTML(f"<pre>{html.escape(text)}</pre>")
        if self.cell is None:
            self.cell = display(line, display_id=True)
        else:
            self.cell.update(line)

    def _show(self, job: Any, name: str, text: str, done: int, total: int) -> None:
        self.bar.update(job, total=total, completed=done, text=text)
        now = time.monotonic()
        if self.console.is_jupyter:
            self._rewrite(f"{name}: {text}")
            return
        due = done == total or now - self.printed >= _LINE_SECONDS
        if due and not self.console.is_terminal:
            self.note(f"{name}: {text}")
            self.printed = now


def show_results(summaries: list[dict[str, Any]]) -> None:
    """Prints the final table: a row per seed, and mean ± spread below several."""
    head, several = summaries[0], len(summaries) > 1
    table = Table(
        title=f"{head['method']} on {head['dataset']}, {head['model']}, "
        f"{max(s['rounds'] for s in summaries)} rounds ({head['protocol']})",
        caption=f"±: {SPREAD}" if several else None,
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    table.add_column("seed")
    shown = columns(summaries)
    for metric in shown:
        table.add_column(metric.label, justify="right")
    for summary in summaries:
        table.add_row(str(summary["seed"]), *(m.show(summary.get(m.name)) for m in shown))
    if several:
        cells = []
        for metric in shown:
            values = [s[metric.name] for s in summaries if s.get(metric.name) is not None]
            scale, digits = (100, 1) if metric.percent else (1, metric.digits)
            cells.append(mean_and_spread([scale * v for v in values], digits=digits, sign="±"))
        table.add_row("mean±std", *cells)
    Lasting().print(table)


def show_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Prints text in columns, the first on the left."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    Lasting(highlight=False).print(table, markup=False)


def show_facts(title: str, facts: dict[str, str]) -> None:
    """Prints two columns: what, and how much."""
    table = Table(title=title, show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    Lasting().print(table)
