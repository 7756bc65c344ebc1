"""A child's side of the benchmark: it runs a round when told to, and answers what it took.

Everyone in a comparison lives in its own process and they take turns, one round each, so that
whatever else the machine does hits all alike. Standard library only: the peers import it.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import workload


class Turns:
    """Commands come on standard input, answers go to the original standard output."""

    def __init__(self) -> None:
        """Read the workload and the options from the command line."""
        self.workload = workload.decode(sys.argv[1])
        self.options: dict[str, Any] = json.loads(sys.argv[2])
        self.rounds: int = self.options["rounds"]  # how many there will be at most
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a framework prints is not an answer
        self._start = 0.0

    def ready(self, **facts: Any) -> None:
        """Everything but the first round is done; facts go into the results."""
        self._say(facts)

    def wait(self) -> None:
        """Until the next turn; the end of the input ends the process."""
        if not sys.stdin.readline():
            os._exit(0)  # frameworks that are not done would argue
        self._start = time.perf_counter()

    def done(self) -> None:
        """The round has finished."""
        self._say({"seconds": time.perf_counter() - self._start, **memory()})

    def __iter__(self) -> Iterator[int]:
        """Round numbers, each given out when it is this process's turn."""
        for number in range(self.rounds):
            self.wait()
            yield number
            self.done()

    def _say(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)


def memory() -> dict[str, float]:
    """Megabytes this process holds now and held at most; with children, all of theirs now."""
    if others := _descendants():
        total = _field("smaps_rollup", "Pss", pid=os.getpid())
        total += sum(_field("smaps_rollup", "Pss", pid=pid) for pid in others)
        return {"memory_mb": total, "peak_memory_mb": total}
    return {
        "memory_mb": _field("status", "VmRSS", pid=os.getpid()),
        "peak_memory_mb": _field("status", "VmHWM", pid=os.getpid()),
    }


def _field(file: str, name: str, pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:  # ended meanwhile
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), 0.0)


def _descendants() -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found, new = [], [os.getpid()]
    while new:
        new = [pid for pid, parent in parents.items() if parent in new]
        found += new
    return found
