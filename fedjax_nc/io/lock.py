"""Locks of run directories: one process holds a directory, and every other one is refused."""

import contextlib
import errno
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedjax_nc import inputs
from fedjax_nc.errors import Fault, UserError, short

BEAT = 10.0  # seconds after which the holder of a directory shows again that it lives
SILENCE = 120.0  # seconds without such a sign after which a holder elsewhere counts as gone
LOOK = 1.0  # seconds after which somebody who waits for such a sign looks again
_MOST = 64 * inputs.KILOBYTE  # bytes of a lock, of which one has 300
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of some file systems


class Held(UserError):
    """Another process holds the directory."""


class Lock:
    """A held directory."""

    def __init__(self, path: Path, content: bytes) -> None:
        """Begins to show that the holder lives."""
        self.path, self._content = path, content
        self._lost, self._over = False, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="lock")
        self._thread.start()

    def look(self) -> None:
        """Looks at the lock, and refuses to go on if it is another process's; for rare writes."""
        with contextlib.suppress(OSError):
            self._lost = self._lost or _read(self.path) != self._content
        self.check()

    def check(self) -> None:
        """Refuses to go on if the last look, with a sign of life, found another process's lock."""
        if self._lost:
            raise Fault(
                f"{self.path} was taken or removed by another process, as after a pause of more "
                f"than {SILENCE:.0f} s: nothing more is written here"
            )

    def release(self) -> None:
        """Lets others have the directory."""
        self._over.set()
        self._thread.join(timeout=1)  # it may wait for a file server
        with contextlib.suppress(OSError):
            if _read(self.path) == self._content:
                self.path.unlink()

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with contextlib.suppress(OSError):  # a file server may be away for a moment
                self._lost = _read(self.path) != self._content
                if self._lost:
                    return
                os.utime(self.path)


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[Lock]:
    """Holds a run directory, which need not exist yet; refuses if another process does.

    The lock is a hidden file beside the directory, so that emptying the directory leaves it.
    Folders that are made for it and stay empty are removed.
    """
    path = _path_of(directory)
    made = [folder for folder in path.parents if not folder.exists()]  # the innermost is first
    try:
        lock = Lock(path, _take(path, directory=directory))
        try:
            _remove_leftovers(path)
            yield lock
        finally:
            lock.release()
    finally:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()


def holder(directory: Path) -> str:
    """Returns who holds a run directory, or nothing if nobody does who lives; takes nothing."""
    path = _path_of(directory)
    found = _read(path)
    if found is None:
        return ""
    about = _parsed(found)
    lives = _lives_here(about)
    if lives is None:
        try:
            lives = _seconds_silent(path) <= SILENCE
        except OSError:  # nothing can be written there
            lives = True
    return _words(about) if lives else ""


def _lives_here(about: dict[str, Any]) -> bool | None:
    """Returns whether a lock's process runs on this machine; None of one on another."""
    pid = about.get("pid")
    here = _holder(pid if type(pid) is int else 0)
    if about.get("system") != here["system"]:
        return None
    return about.get("started") == here["started"]


def _path_of(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.lock")


def _take(path: Path, directory: Path) -> bytes:
    """Makes the lock and returns its content."""
    # the token tells this lock from any other one of the same process
    about = {"since": time.strftime("%Y-%m-%d %H:%M:%S"), "token": secrets.token_hex(8)}
    content = json.dumps(_holder(os.getpid()) | about).encode()
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UserError(f"cannot make {directory} ({error}): choose another --out") from error
        try:
            _make(path, content)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # the folder goes with a lock's holder
                _clear(path, directory=directory)
            continue
        except FileNotFoundError:  # who held it has just removed the folder
            continue
        return content


def _make(path: Path, content: bytes) -> None:
    """Makes a lock with all of its content at once; one that is there is an error.

    An empty one, of a process that was killed before it wrote, would tell nobody that it is gone.
    """
    written = _beside(path)
    try:
        written.write_bytes(content)
        try:
            os.link(written, path)
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        with path.open("xb", buffering=0) as file:
            try:
                file.write(content)
            except OSError:  # the disk is full
                path.unlink()
                raise
    finally:
        written.unlink(missing_ok=True)


def _clear(path: Path, directory: Path) -> None:
    """Removes the lock of a process that is gone; refuses if it lives."""
    found = _read(path)
    if found is None:  # just let go
        return
    about = _parsed(found)
    lives = _lives_here(about)
    if lives is None:
        held = f"{directory} is held by another process, {_words(about)}"
        lives = not _stays_silent(path, held)
    if lives:
        about = _parsed(_read(path) or found)  # another one may have been quicker
        raise Held(
            f"{directory} is being written by another process, {_words(about)}, since "
            f"{about.get('since', 'a moment ago')}: wait until it ends, or end it"
        )
    _remove(path, found)


def _words(about: dict[str, Any]) -> str:
    return short(f"host {about.get('host', 'unknown')}, pid {about.get('pid', 'unknown')}")


def _stays_silent(path: Path, held: str) -> bool:
    """Waits for the next sign of life of a holder elsewhere; returns whether none comes.

    Its last one may be of a run that was moved here, which must not be refused because of itself.

    Args:
      path: of the lock.
      held: by whom, which is told before it takes long.
    """
    last, told = path.stat().st_mtime_ns, False
    while (silent := _seconds_silent(path)) <= SILENCE:
        if path.stat().st_mtime_ns != last:
            return False
        if not told:
            with contextlib.suppress(OSError):  # nobody reads
                wait = f"waiting up to {SILENCE - silent:.0f} s for a sign that it lives"
                print(f"{held}: {wait}", file=sys.stderr, flush=True)
        told = True
        time.sleep(LOOK)
    return True


def _remove(path: Path, found: bytes) -> None:
    """Removes a lock that still has this content; of several that want to, one at a time may look.

    Without that, one that is slow would remove the lock of another that was quicker.
    """
    guard = path.with_name(f"{path.name}.clearing")
    try:
        guard.open("xb").close()
    except FileNotFoundError:  # who held it has just removed the folder
        return
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            if _seconds_silent(guard) > SILENCE:  # its process was killed in between
                guard.unlink()
        time.sleep(0.01)
        return
    try:
        if _read(path) == found:
            path.unlink()
    finally:
        guard.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Removes what killed processes have left beside a lock that is held."""
    with contextlib.suppress(OSError):
        now = path.stat().st_mtime
        for left in path.parent.iterdir():
            if left.name.startswith(f"{path.name}.") and now - left.stat().st_mtime > SILENCE:
                left.unlink()


def _beside(path: Path) -> Path:
    """Returns a name that nobody else has, beside a lock."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}")


def _read(path: Path) -> bytes | None:
    try:
        return inputs.read(path, _MOST)
    except FileNotFoundError:
        return None
    except ValueError:  # nothing that we have written
        return b""


def _parsed(content: bytes) -> dict[str, Any]:
    """Returns what a lock says; nothing if it is being written, or was by a machine that failed."""
    try:
        found = inputs.parse_json(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _seconds_silent(path: Path) -> float:
    """Returns how old the last sign of life is, by the clock that stamps files there."""
    probe = _beside(path)
    probe.touch()
    try:
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def _holder(pid: int) -> dict[str, Any]:
    """Returns where and when a process of this system was started; when is None if it is gone."""
    return {
        "host": socket.gethostname(),
        "system": _system(),
        "pid": pid,
        "started": _started(pid),
    }


def _system() -> str:
    """Returns what processes that see one another have in common: a boot, and a container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()


def _started(pid: int) -> str | None:
    """Returns when a process was started, in whatever unit the system has; None if it is gone."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]  # one that nobody has waited for is gone too
    except FileNotFoundError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # somebody else's
    return "running"
