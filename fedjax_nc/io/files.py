"""How files are written, so that a killed process or a full disk never leaves half of one."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_UNFINISHED = ".tmp"  # how the name of a file ends that is still being written
_UNSAVED = "*.orbax-checkpoint-tmp*"  # how Orbax names a checkpoint that is still being written


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file so that a killed run leaves the old one or the new one."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that takes the place of an old one when all of it is on the disk.

    If writing fails, the old one stays.
    """
    if path.exists() and not path.is_file():  # a pipe or a terminal has nothing to replace
        with path.open("wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))  # a link stays one
    # of its own name: another process may write the same file
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def move_folder(source: Path, target: Path) -> None:
    """Renames a folder when all that is in it is on the disk."""
    flush_folder(source)
    source.rename(target)
    flush(target.parent)


def flush_folder(folder: Path) -> None:
    """Waits until all that is in a folder is on the disk."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)


def flush(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # of folders not every file system can
            raise
    finally:
        os.close(handle)


def kept(directory: Path) -> list[Path]:
    """Returns what is in a directory, without what a killed process had begun to write."""
    return [path for path in directory.iterdir() if not path.name.endswith(_UNFINISHED)]


def remove_leftovers(directory: Path) -> None:
    """Removes what a killed process had begun to write in a run directory."""
    for path in directory.glob(f"*{_UNFINISHED}"):
        path.unlink(missing_ok=True)
    for path in (directory / "ckpt").glob(_UNSAVED):
        shutil.rmtree(path, ignore_errors=True)
