"""Decoded datasets, kept on disk so that a dataset is decoded once.

Beside the arrays lie their checksums. A file is read through when it is new, when its size or time
has changed, and when the last time was long ago: most starts read none.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedjax_nc import inputs
from fedjax_nc.data.arrays import Arrays
from fedjax_nc.errors import UserError
from fedjax_nc.io import files

CHECKSUMS = "checksums.json"  # {file: [bytes, time of the last change, sha256]}
_WEEK = 7 * 24 * 3600  # seconds after which a file that seems untouched is looked at again


def cached(key: str, root: Path, write: Callable[[Path], None], broken: str) -> Arrays:
    """Opens the decoded arrays of a dataset, which are written the first time and if damaged.

    Args:
      key: a name that changes when the arrays would.
      root: the data directory, beside whose datasets the arrays are kept if it may be written.
      write: writes the arrays into a folder.
      broken: the error for a dataset that cannot be decoded, with {} for the reason.
    """
    folders = [place / key for place in _places(root)]
    found = next((folder for folder in folders if folder.is_dir()), folders[0])
    with contextlib.suppress(ValueError):
        return _open(found)
    with _in_turn(found):
        if found.is_dir():  # another process may have decoded it meanwhile
            try:
                return _open(found)
            except ValueError as error:
                print(f"cache {found} is damaged ({error}): decoding again", file=sys.stderr)
                _remove(found)
        return open_folder(_write(folders[0], write, broken=broken))


def open_folder(folder: Path) -> Arrays:
    """Opens decoded arrays that are what was written, mapped and not read."""
    try:
        return _open(folder)
    except ValueError as error:
        raise UserError(
            f"cache {folder} is damaged ({error}): delete it and start again"
        ) from error


def _open(folder: Path) -> Arrays:
    """Opens arrays; whatever says that they are not what was written is a ValueError."""
    try:
        _verify(folder)
        return Arrays(*(np.load(folder / f"{part}.npy", mmap_mode="r") for part in Arrays._fields))
    except (OSError, EOFError) as error:
        inputs.raise_fault(error, folder)
        raise ValueError(str(error)) from error


@contextlib.contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    """Lets processes of one host write a folder one after another, where the system can."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError):  # Windows; nobody may write there
            import fcntl

            folder.parent.mkdir(parents=True, exist_ok=True)
            turn = folder.with_name(f".{folder.name}.turn")
            file = held.enter_context(turn.open("w"))
            # whoever waits for it gets it when it has no name any more, and finds arrays there
            held.callback(turn.unlink, missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove(folder: Path) -> None:
    """Removes a folder at once for everybody, as another process may be about to write it."""
    with contextlib.suppress(OSError):
        aside = tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent)
        try:
            folder.rename(aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _verify(folder: Path) -> None:
    """Compares arrays with their checksums, and writes those that are not known yet."""
    sums, known, due = folder / CHECKSUMS, {}, False
    try:
        content = inputs.read_json(sums, inputs.MEGABYTE)
        known = content if isinstance(content, dict) else {}
        due = time.time() - sums.stat().st_mtime > _WEEK and os.access(folder, os.W_OK)
    except (OSError, ValueError) as error:  # lost or damaged ones are made again
        inputs.raise_fault(error, sums)
    found = {}
    for file in (folder / f"{part}.npy" for part in Arrays._fields):
        before = known.get(file.name)
        before = before if isinstance(before, list) and len(before) == 3 else [None] * 3
        stamp = [file.stat().st_size, file.stat().st_mtime_ns]
        if before[:2] == stamp and not due:
            found[file.name] = before
            continue
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if before[2] not in (None, digest):
            raise ValueError(f"{file.name} is not what was written")
        found[file.name] = [*stamp, digest]
    if found != known or due:
        with contextlib.suppress(OSError):  # others' folders are only read
            temporary = folder / f"{CHECKSUMS}.{os.getpid()}"
            temporary.write_text(json.dumps(found, indent=2) + "\n")
            os.replace(temporary, sums)


def _places(root: Path) -> list[Path]:
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    places = [home / "fedjax_nc" / "data"]
    # The mode is asked as well as the system: root may write anywhere, and should not.
    if os.access(root, os.W_OK) and root.stat().st_mode & 0o222:
        places.insert(0, root / ".fedjax_nc_cache")
    return places


def _write(target: Path, write: Callable[[Path], None], broken: str) -> Path:
    try:
        return _fill(target, write, broken=broken)
    except OSError as error:
        hint = "free some space there, or set XDG_CACHE_HOME and make the data directory read-only"
        raise UserError(f"cannot write the cache {target.parent} ({error}): {hint}") from error


def _fill(target: Path, write: Callable[[Path], None], broken: str) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    for old in target.parent.glob("*.tmp-*"):  # left by a killed run; a live one is younger
        if time.time() - old.stat().st_mtime > 3600:
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
    try:
        write(folder)
        _verify(folder)
        folder.chmod(0o755)  # mkdtemp makes it private, but the data may be shared
        try:
            files.move_folder(folder, target)
        except OSError:
            if not target.is_dir():  # where it is one, another process was quicker
                raise
    except (ValueError, KeyError, IndexError, RuntimeError) as error:
        raise UserError(broken.format(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target
