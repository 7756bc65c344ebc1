"""The process of one cell of a sweep: `run`, which ends when whoever started it is gone."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from fedjax_nc.cli import flags, run
from fedjax_nc.cli.exits import answered
from fedjax_nc.cli.streams import say
from fedjax_nc.errors import command
from fedjax_nc.io.lock import Held
from fedjax_nc.sweep.work import HELD, STOP

_LOOK = 0.5  # seconds between two looks for the file that asks to stop
_GRACE = 20.0  # seconds that a process has to save when its starter is gone


@answered
def work(argv: list[str]) -> int:
    """Trains a cell as `run` does; another process's run directory is an exit code of its own."""
    if hasattr(signal, "SIGUSR2"):  # Slurm sends it to all processes of a job, for submitit
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    if stop := os.environ.get(STOP):
        threading.Thread(target=_end_by_a_file, args=(Path(stop),), daemon=True).start()
    # what is written into the run directory is how it is trained by hand
    sys.orig_argv[:] = [sys.executable, "-m", "fedjax_nc", "run", *argv]
    try:
        run.execute(flags.parse(argv, prog=command("run")))
    except Held as held:
        say(str(held))
        return HELD
    return 0


def _end_with_the_starter() -> None:
    """Waits for the end of standard input, which a starter holds open as long as it lives."""
    try:
        while os.read(0, 1024):
            pass
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(1)


def _end_by_a_file(path: Path) -> None:
    """Ends as a signal does once a file is there."""
    while not path.exists():
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(work())
