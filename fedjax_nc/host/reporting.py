"""Who is told of a run's progress."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Reporter(Protocol):
    """Who shows progress."""

    def note(self, message: str) -> None:
        """Says something once."""
        ...

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Says what is being waited for."""
        ...

    def start(self, seeds: tuple[int, ...]) -> None:
        """Announces that these seeds are trained now."""
        ...

    def round(self, rows: list[dict[str, Any]], rounds: int) -> None:
        """Shows a finished round; there is a row per seed."""
        ...

    def stage(self, name: str, done: int, total: int) -> None:
        """Shows how far the work after the rounds is."""
        ...


class Quiet:
    """Tells nothing."""

    def note(self, message: str) -> None:
        """Ignores the message."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Waits without a word."""
        del what
        return nullcontext()

    def start(self, seeds: tuple[int, ...]) -> None:
        """Ignores which seeds are trained."""

    def round(self, rows: list[dict[str, Any]], rounds: int) -> None:
        """Ignores a finished round."""

    def stage(self, name: str, done: int, total: int) -> None:
        """Ignores how far the work after the rounds is."""
