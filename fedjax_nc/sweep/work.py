"""A cell's process: started with what it says going to a file, and ending when its starter does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HELD = 79  # its exit code if another process holds the run directory; sysexits.h ends at 78
SAVED = 75  # stopped by a signal, and the round that ran is saved
STOP = "FEDJAX_NC_STOP"  # names a file whose appearance asks a process to save and end


class Order(NamedTuple):
    """What a process is to train, and where it writes what it says."""

    argv: tuple[str, ...]
    log: Path
    folder: Path  # in which it is started
    stop: Path | None = None  # a file whose appearance ends it, where signals do not reach it


def start(order: Order) -> subprocess.Popen[bytes]:
    """Starts the process of a cell; it ends when this one lets go of its standard input.

    It has a session of its own: Ctrl-C in a terminal is for who started it, who passes it on once.
    """
    order.log.parent.mkdir(parents=True, exist_ok=True)
    stop = {} if order.stop is None else {STOP: str(order.stop)}
    with order.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fedjax_nc.cli.work", *order.argv],
            cwd=order.folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | stop,
        )


def finish(order: Order) -> int:
    """Starts the process of a cell and waits for it; returns its exit code."""
    process = start(order)
    try:
        process.wait()
        return ended(process) or 0
    except BaseException:  # who waits is asked to end
        process.terminate()
        raise


def ended(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code of a process that has ended, and lets go of its standard input."""
    code = process.poll()
    if code is not None and process.stdin is not None:
        process.stdin.close()
    return code


def why(code: int, log: Path) -> str:
    """Returns on one line why a process has ended without a result."""
    try:
        lines = log.read_bytes()[-5000:].decode(errors="replace").splitlines()
    except OSError:
        lines = []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if code < 0:
        return f"killed by signal {-code}, as by a lack of memory if it is 9"
    return last.removeprefix("error: ") or f"ended with exit code {code}"
