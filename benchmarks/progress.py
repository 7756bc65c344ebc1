"""A progress bar for minutes of timing; plain lines when not on a terminal."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_SECONDS = 5.0  # between plain lines


class Progressing:
    """A context manager, because a bar must be closed."""

    def __init__(self, description: str, total: int) -> None:
        """Prepare; nothing is shown before it is entered."""
        self.console = Console(stderr=True)
        self.total, self.done, self.printed = total, 0, time.monotonic()
        self.bar = Progress(
            TextColumn(description),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=total, text="")

    def __enter__(self) -> "Progressing":
        """Start the bar."""
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.bar.stop()

    def step(self, text: str, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        self.bar.update(self.task, advance=count, text=text)
        now = time.monotonic()
        if text and not self.console.is_terminal and now - self.printed >= LINE_SECONDS:
            self.console.print(f"{self.done}/{self.total} {text}", highlight=False, markup=False)
            self.printed = now
