"""How a signal ends a run: after the round that runs, which is saved; a second one at once."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fedjax_nc.errors import Stopped

SAVED = 75  # EX_TEMPFAIL of sysexits.h: nothing is lost, try again
# Ctrl-C, and how systems say that a process must go: SIGUSR1 is Slurm's warning, if so asked for
INTERRUPT, OTHERS = "SIGINT", ("SIGTERM", "SIGHUP", "SIGUSR1")
_ECHO = 0.5  # seconds in which a second signal is the first one again, as `timeout` sends it

Handler = Callable[[int, Any], None]


class Asked:
    """Keeps which signal has asked rounds to end, if one has."""

    def __init__(self) -> None:
        """Begins with nobody asking, and nothing to lose."""
        self.by = ""  # the signal's name
        self.busy = False  # rounds run, whose end is worth waiting for


@contextlib.contextmanager
def listening(tell: Callable[[str], None]) -> Iterator[Asked]:
    """Notes the first signal that asks to end; a second one ends the run at once.

    A signal that comes before any round runs has its usual effect.
    """
    asked, first = Asked(), 0.0
    before: dict[int, Any] = {}

    def hear(number: int, frame: Any) -> None:
        nonlocal first
        if not asked.busy:
            _pass_on(number, before[number], frame=frame)
        elif not asked.by:
            asked.by, first = signal.Signals(number).name, time.monotonic()
            # it came while something else was printed, or because nobody sees that any more
            with contextlib.suppress(Exception):
                tell(f"{asked.by}: the round that runs is finished and saved; again stops at once")
        elif time.monotonic() - first > _ECHO:
            raise Stopped("", code=128 + number)

    with _handled((INTERRUPT, *OTHERS), hear, before=before):
        yield asked


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Lets the signals that are not Ctrl-C end a command in the same way, with their own code.

    It is for what comes before and after the rounds, where nothing is lost.
    """

    def hear(number: int, frame: Any) -> None:
        raise Stopped("", code=SAVED)

    with _handled(OTHERS, hear, before={}):
        yield


@contextlib.contextmanager
def _handled(names: tuple[str, ...], handler: Handler, before: dict[int, Any]) -> Iterator[None]:
    """Has signals handled, and keeps in `before` by whom they were; only the main thread can."""
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    for number in numbers:
        known = signal.getsignal(number)
        if known not in (signal.SIG_IGN, None):  # nohup, and a shell's background, ignore some
            before[number] = known
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def _pass_on(number: int, known: Any, frame: Any) -> None:
    """Does what a signal did before we listened."""
    if callable(known):
        known(number, frame)
    else:
        signal.signal(number, known)
        os.kill(os.getpid(), number)
