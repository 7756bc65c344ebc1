"""How a command ends: what stops it is one line and an exit code, never a traceback.

0 done, 2 what was asked for cannot be, 3 the machine fails, 75 stopped by a signal and saved, 130
stopped at once by Ctrl-C, 128 + n by signal n.
"""

import errno
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator

from fedjax_nc import processes
from fedjax_nc.cli import streams
from fedjax_nc.errors import Fault, UserError

Main = Callable[..., int]  # a command: its flags, by default the process's, to the exit code
REFUSED, FAILED = 2, 3
INTERRUPTED = 130  # what a shell expects of a command that Ctrl-C has ended

_SPACE = "free some space there, or choose another place"
_RIGHTS = "make it writable, or choose another place"
_HINTS = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "allow larger files (ulimit -f), or choose another place",
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EIO: "check the disk",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENOMEM: "ask for less at once, or end other programs",
}
_LOST = ("Gloo", "onnection", "NCCL", "oordination")  # what collectives and the service say
_LATER = 1.0  # seconds that the process with jax's service leaves to others that end as well
_TOGETHER = "see its last lines, then start all of them again, which goes on"
_LESS = (
    "ask for less at once: a smaller --local.batch_size or --evaluation.batch_size, "
    "--execution.executor=scan, or lower --execution.client_state_mb and --execution.pool_mb"
)


def answered(command: Callable[[list[str]], int]) -> Main:
    """Makes a command print what stopped it on one line, and return its exit code.

    A KeyboardInterrupt may carry what the person should know, as its text.
    """

    @functools.wraps(command)
    def main(argv: list[str] | None = None) -> int:
        if argv is not None:
            return _code(command, argv)
        if sys.stdout is not None and sys.stdout.errors == "strict":
            # a terminal that has no such letter shows another one
            sys.stdout.reconfigure(errors="replace")  # pyright: ignore
        code = _code(command, sys.argv[1:])
        if code and "jax" in sys.modules:
            _flush()
            # XLA crashes in an orderly exit that stops it while it compiles, and waits for others
            os._exit(code)
        return code

    return main


def in_words(error: BaseException, place: str = "") -> str | None:
    """Returns how the machine failed and what to do; None if it did not.

    Args:
      error: what was raised.
      place: where it may have happened, if the error does not tell.
    """
    for one in _chain(error):
        if isinstance(one, OSError) and one.errno is not None:
            hint = _HINTS.get(one.errno, "check the disk and the path")
            return f"{os.strerror(one.errno)}{_in(one.filename or place)}: {hint}"
        if isinstance(one, MemoryError):
            return f"there is not enough memory: {_LESS}"
        text = str(one)
        for number, hint in _HINTS.items():  # told by other languages
            if os.strerror(number) in text:
                return f"{os.strerror(number)}{_in(place)}: {hint}"
        if type(one).__name__ == "JaxRuntimeError":
            if processes.count() > 1 and any(word in text for word in _LOST):
                return f"another process of this run is gone ({_first_line(one)}): {_TOGETHER}"
            if "RESOURCE_EXHAUSTED" in text:
                return f"there is not enough memory ({_first_line(one)}): {_LESS}"
            if "INTERNAL" in text:
                return f"jax failed ({_first_line(one)}): try again, or another version of jax"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, and what it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _in(place: object) -> str:
    return f" ({place})" if place else ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:160]


def _code(command: Callable[[list[str]], int], argv: list[str]) -> int:
    try:
        code = command(argv)
        if sys.stdout is not None:
            streams.Lenient(sys.stdout).flush()
        return code
    except BrokenPipeError:  # `--help | head`
        streams.to_nobody(sys.stdout)
        return 0
    except KeyboardInterrupt as stop:
        told = f"stopped: {stop}" if str(stop) else "stopped"
        return _ended(stop, told, code=getattr(stop, "code", INTERRUPTED))
    except UserError as error:
        cause = error.__cause__
        failed = isinstance(cause, OSError) and cause.errno in _HINTS
        return _ended(error, f"error: {error}", code=FAILED if failed else REFUSED)
    except Exception as error:
        words = str(error) if isinstance(error, Fault) else in_words(error)
        if words is None:
            raise
        return _ended(error, f"error: {words}", code=FAILED)


def _ended(error: BaseException, told: str, *, code: int) -> int:
    """Tells what has stopped a command, once if it has stopped all processes; returns the code."""
    notes = {note for one in _chain(error) for note in getattr(one, "__notes__", ())}
    if processes.is_first() or processes.TOLD not in notes:
        streams.say(told)
    if processes.AGREED in notes:
        processes.leave()
    elif processes.count() > 1 and processes.is_first():
        time.sleep(_LATER)  # jax ends those that lose its service with a code of its own
    return code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads, or there is no room for it
            continue
