"""Where a command's words go: streams whose reader may leave without stopping the command."""

import errno
import os
import stat
import sys
from typing import Any


class Lenient:
    """A stream that writes to nobody once its reader is gone, as `head` or a closed terminal is."""

    def __init__(self, stream: Any, *, whatever: bool = False) -> None:
        """Wraps a stream; `whatever` fails, as a full disk, counts as a reader that is gone."""
        self._stream, self._whatever = stream, whatever

    def write(self, text: str) -> int:
        """Writes a text."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._let_go(error)
            return len(text)

    def flush(self) -> None:
        """Lets the text be seen."""
        try:
            self._stream.flush()
        except OSError as error:
            self._let_go(error)

    def __getattr__(self, name: str) -> Any:
        """Returns everything else as the stream itself has it."""
        return getattr(self._stream, name)

    def _let_go(self, error: OSError) -> None:
        if not self._whatever and not gone(self._stream, error):
            raise error
        to_nobody(self._stream)


def say(line: str, *, end: str = "\n") -> None:
    """Prints on stderr; what nobody can be told stops nothing."""
    if sys.stderr is not None:
        print(line, end=end, file=Lenient(sys.stderr, whatever=True), flush=True)


def gone(stream: Any, error: OSError) -> bool:
    """Returns whether an error means that a pipe's reader or a terminal is gone."""
    if error.errno != errno.EIO:  # which is also a failing disk's
        return error.errno == errno.EPIPE
    try:
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def to_nobody(stream: Any) -> None:
    """Lets a stream, with what it still holds, end in nothing."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
    except (OSError, ValueError):  # too many open files, or no file at all
        return
