"""Decoded datasets, kept on disk so that a dataset is decoded once."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedjax_nc.data.arrays import Arrays
from fedjax_nc.errors import UserError


def cached(key: str, root: Path, write: Callable[[Path], None], broken: str) -> Arrays:
    """Opens the decoded arrays of a dataset, which are written the first time.

    Args:
      key: a name that changes when the arrays would.
      root: the data directory, beside whose datasets the arrays are kept if it may be written.
      write: writes the arrays into a folder.
      broken: the error for a dataset that cannot be decoded, with {} for the reason.
    """
    folders = [place / key for place in _places(root)]
    found = next((folder for folder in folders if folder.is_dir()), None)
    return open_folder(found or _write(folders[0], write, broken=broken))


def open_folder(folder: Path) -> Arrays:
    """Opens decoded arrays, mapped and not read."""
    try:
        return Arrays(*(np.load(folder / f"{part}.npy", mmap_mode="r") for part in Arrays._fields))
    except (OSError, ValueError) as error:
        raise UserError(
            f"cache {folder} is damaged ({error}): delete it and start again"
        ) from error


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
        folder.chmod(0o755)  # mkdtemp makes it private, but the data may be shared
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # where it is one, another process was quicker
                raise
    except (ValueError, KeyError, IndexError, RuntimeError) as error:
        raise UserError(broken.format(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target
