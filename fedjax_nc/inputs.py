"""Reading what others wrote: what a file is and how large it is are known before it is read.

Whatever is wrong is a ValueError, or an OSError where there is no such file, for the caller to turn
into an error that says which file it is and what to do. Nothing that is read is ever run.
"""

import ast
import errno
import json
import os
import stat
import warnings
from pathlib import Path
from typing import Any

from fedjax_nc.errors import UserError, quoted

KILOBYTE, MEGABYTE = 1 << 10, 1 << 20
DIGITS = 100  # of a number that is typed; Python itself refuses 4,300 of them
_DEPTH = 50  # brackets and signs inside one another; Python's own parsers stop at some hundred
# What the system says when the machine fails and not the file, which may be whole: rights, open
# files, memory, a disk or a file server that does not answer.
_FAULTS = (
    *(errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO),
    *(errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN),
)
_PATH, _PART = 4000, 250  # bytes of a path and of one name in it, just below what Linux takes


def read(path: Path, most: int) -> bytes:
    """Returns the content of a file of at most `most` bytes; FIFOs and devices are refused."""
    with open(path, "rb", opener=_opener) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{_bytes(size)}, more than {_bytes(most)}")
        content = file.read(most + 1)
    if len(content) > most:  # it has grown meanwhile
        raise ValueError(f"more than {_bytes(most)}")
    return content


def check_file(path: Path) -> None:
    """Refuses what is no regular file, before anybody waits for it to be written to."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ValueError("a directory" if stat.S_ISDIR(mode) else "no regular file")


def read_json(path: Path, most: int) -> Any:
    """Returns the content of a JSON file of at most `most` bytes."""
    return parse_json(read(path, most))


def parse_json(content: bytes | str) -> Any:
    """Returns what a JSON text says; whoever goes through it may call itself at every level."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("too deeply nested") from None
    level = [found]
    for _ in range(_DEPTH):
        tables = [value for value in level if isinstance(value, (dict, list))]
        if not tables:
            return found
        level = [x for t in tables for x in (t.values() if isinstance(t, dict) else t)]
    raise ValueError("too deeply nested")


def raise_fault(error: BaseException, path: Path) -> None:
    """Raises an error of reading if the machine failed, so that a good file is not called damaged.

    Args:
      error: what was raised; another language tells what the system said by its words only.
      path: what was read.
    """
    if isinstance(error, OSError) and error.errno in _FAULTS:
        raise error
    cause: BaseException | None = error
    while cause is not None:
        for number in _FAULTS:
            if os.strerror(number) in str(cause):
                raise OSError(number, os.strerror(number), str(path)) from error
        cause = cause.__cause__ or cause.__context__


def parse_python(text: str | bytes, most: int, mode: str = "exec") -> Any:
    """Returns the syntax tree of a Python text of at most `most` characters; nothing is run."""
    if len(text) > most:
        raise ValueError(f"{len(text)} characters, more than {most}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd literals; whoever imports the file sees them
            return ast.parse(text, mode=mode)
    except (RecursionError, MemoryError):
        raise ValueError("too deeply nested") from None


def literal(node: ast.expr) -> Any:
    """Returns the value of a literal; ValueError if it is none, or too deep or too long a one."""
    _check_depth(node, _DEPTH)
    try:
        return ast.literal_eval(node)
    except (TypeError, RecursionError, MemoryError, OverflowError) as error:  # as {[]: 1}
        raise ValueError(str(error)) from None


def check_path(what: str, name: str) -> None:
    """Refuses a name that can be no path: too long, with a zero byte, of an unknown home."""
    try:
        parts = os.fsencode(Path(name).expanduser()).split(b"/")
    except (UnicodeEncodeError, RuntimeError):
        parts = [b"\0"]
    if any(b"\0" in part for part in parts):
        raise UserError(f"{what} {quoted(name)} has characters that no path has: give another")
    if len(name) > _PATH or max(map(len, parts)) > _PART:
        raise UserError(
            f"{what} {quoted(name)} has {len(name)} characters: give a path of at most {_PATH}, "
            f"each name in it of at most {_PART}"
        )


def _opener(path: str, flags: int) -> int:
    """Opens a regular file; opening a FIFO for reading would wait for a writer."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("no regular file")
    return handle


def _check_depth(node: ast.AST, left: int) -> None:
    if not left:
        raise ValueError("too deeply nested")
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 10**DIGITS:
        raise ValueError(f"a number of more than {DIGITS} digits")
    for child in ast.iter_child_nodes(node):
        _check_depth(child, left - 1)


def _bytes(count: int) -> str:
    return f"{count / MEGABYTE:.1f} MB" if count >= MEGABYTE else f"{count} bytes"
