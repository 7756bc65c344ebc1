"""How a command ends: bad input and Ctrl-C are one line and an exit code, never a traceback."""

import functools
import os
import sys
from collections.abc import Callable

from fedjax_nc.errors import UserError

Main = Callable[..., int]  # a command: its flags, by default the process's, to the exit code
STOPPED = 130  # what a shell expects of a command that Ctrl-C has ended


def answered(command: Callable[[list[str]], int]) -> Main:
    """Makes a command print what stopped it on one line: 2 for bad input, 130 for Ctrl-C.

    A KeyboardInterrupt may carry what the person should know, as its text.
    """

    @functools.wraps(command)
    def main(argv: list[str] | None = None) -> int:
        code = _code(command, sys.argv[1:] if argv is None else argv)
        if argv is None and code == STOPPED:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # XLA crashes in an orderly exit that stops it while it compiles
        return code

    return main


def _code(command: Callable[[list[str]], int], argv: list[str]) -> int:
    try:
        return command(argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stop:
        print(f"stopped: {stop}" if str(stop) else "stopped", file=sys.stderr)
        return STOPPED
