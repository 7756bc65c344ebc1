"""A progress bar on a terminal, a few plain lines anywhere else."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any


def track(items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
    """Yields the items and shows on stderr how many of `total` have passed."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, description=label, total=total, console=Console(stderr=True))
        return
    step = -(-total // 4) or 64  # a log file wants quarters, not a line per example
    for count, item in enumerate(items, 1):
        yield item
        if count % step == 0 or count == total:
            print(f"{label}: {count}/{total}", file=sys.stderr, flush=True)
