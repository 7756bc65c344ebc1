"""A machine that fails: one line, exit code 3, and what was saved stays."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest
from runs import DATA, FEW, PLAIN, ROOT, directory_of, steps_of, train

from fedjax_nc.cli import exits, flags, main
from fedjax_nc.data import federated
from fedjax_nc.errors import Fault, Stopped, UserError
from fedjax_nc.host import loop
from fedjax_nc.host.assemble import assemble
from fedjax_nc.host.states import first_state
from fedjax_nc.io import checkpoint, files, lock

TINY = ["--method=fedavg", *DATA, *FEW, *PLAIN, "--rounds=4", "--execution.checkpoint_every=1"]


class JaxRuntimeError(RuntimeError):
    """By the name of jax's own."""


def caused(error, cause):
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x")


@pytest.mark.parametrize(
    "error, code, said",
    [
        (FULL, 3, "error: No space left on device (runs/x): free some space there, or"),
        (PermissionError(errno.EACCES, "", "x"), 3, "error: Permission denied (x): make it"),
        (OSError(errno.EROFS, ""), 3, "error: Read-only file system: make it writable"),
        (MemoryError(), 3, "error: there is not enough memory: ask for less at once"),
        (ValueError("Failed: No space left on device [28]"), 3, "error: No space left on device: "),
        (caused(ValueError("save"), FULL), 3, "error: No space left on device (runs/x)"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore"), 3, "error: there is not"),
        (JaxRuntimeError("INTERNAL: LLVM"), 3, "error: jax failed (INTERNAL: LLVM): try again"),
        (UserError("no"), 2, "error: no"),
        (caused(UserError("cannot write the cache"), FULL), 3, "error: cannot write the cache"),
        (Fault("taken"), 3, "error: taken"),
        (KeyboardInterrupt(), 130, "stopped"),
        (Stopped("saved", code=75), 75, "stopped: saved"),
    ],
)
def test_what_stops_a_command_is_one_line_and_a_code(error, code, said, capsys):
    @exits.answered
    def command(argv):
        raise error

    assert command([]) == code
    line = capsys.readouterr().err
    assert line.startswith(said) and line.count("\n") == 1


def test_mistake_of_ours_keeps_its_traceback():
    for error in (ValueError("x"), JaxRuntimeError("INVALID_ARGUMENT: x"), OSError("x")):
        assert exits.in_words(error) is None


def test_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    path = tmp_path / "a"
    files.write_atomically(path, "old ±")
    with pytest.raises(OSError), files.replacing(path) as file:
        file.write(b"half")
        raise FULL
    assert path.read_text(encoding="utf-8") == "old ±" and list(tmp_path.iterdir()) == [path]
    (tmp_path / "link").symlink_to(path)
    files.write_atomically(tmp_path / "link", b"new")
    assert path.read_text() == "new" and (tmp_path / "link").is_symlink()
    read, write = os.pipe()
    files.write_atomically(files.Path(f"/dev/fd/{write}"), "through")
    assert os.read(read, 100) == b"through"


def test_leftovers_of_a_killed_start_do_not_block(tmp_path):
    directory = directory_of(tmp_path, TINY)
    (directory / "ckpt" / "9.orbax-checkpoint-tmp").mkdir(parents=True)
    (directory / "ckpt").rename(tmp_path / "ckpt")
    for name in ("config.yaml.tmp", "partition.tmp", "config.yaml.1a2b3c4d.tmp"):
        (directory / name).write_text("half")
    train(tmp_path, TINY)
    assert not list(directory.rglob("*tmp*"))
    (directory / "summary.json").unlink()
    (tmp_path / "ckpt" / "9.orbax-checkpoint-tmp").rename(directory / "ckpt/9.orbax-checkpoint-tmp")
    train(tmp_path, TINY)
    assert not list(directory.rglob("*tmp*"))


def test_full_disk_says_what_is_saved(tmp_path, monkeypatch, capfd):
    save, looked = checkpoint.save, []
    monkeypatch.setattr(lock.Lock, "look", lambda self: looked.append(self))

    def failing(managers, state, about):
        looked.pop()  # whose directory it is
        if int(np.ravel(state.round)[0]) == 3:
            raise FULL
        save(managers, state, about=about)

    monkeypatch.setattr(checkpoint, "save", failing)
    assert main.train([*TINY, f"--out={tmp_path}"]) == 3
    assert capfd.readouterr().err.splitlines()[-1] == (
        "error: No space left on device (runs/x): free some space there, or choose another place; "
        "saved after round 2; the same command goes on"
    )
    monkeypatch.setattr(checkpoint, "save", save)
    train(tmp_path, TINY)
    assert "resuming after round 2" in capfd.readouterr().err


def test_nobody_has_data():
    empty = federated.Split([np.array([], int)] * 2, [np.array([], int)] * 2, pool="train")
    with pytest.raises(UserError) as refusal:
        federated.warnings_of(empty, np.zeros(4, int), classes=2)
    assert str(refusal.value).endswith("choose another partition or seed")
    with pytest.raises(UserError, match="or leave out --strict"):
        some = empty._replace(train=[np.arange(4), *empty.train[1:]])
        federated.warnings_of(some, np.zeros(4, int), classes=2, strict=True)


def test_participants_are_drawn_in_pieces(monkeypatch):
    job = assemble(flags.parse([*TINY, "--rounds=7"]).configs[0])
    state = first_state(job)
    whole = list(loop._participants(job, state, first=1))
    monkeypatch.setattr(loop, "_AHEAD", 4)
    np.testing.assert_array_equal(list(loop._participants(job, state, first=1)), whole)
    endless = assemble(flags.parse([*TINY, "--rounds=1000000000"]).configs[0])
    first = next(loop._participants(endless, state, first=1))
    np.testing.assert_array_equal(first, whole[0])


def test_a_reader_that_leaves_and_a_terminal_without_letters(tmp_path):
    """The table of two seeds has a ±; nothing of it needs jax."""
    argv = [*TINY, "--seeds", "0", "1", f"--out={tmp_path}"]
    assert main.train(argv) == 0
    command = [sys.executable, "-m", "fedjax_nc", "run", *argv]
    env = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True)
    assert b"mean?std" in done.stdout and b"already finished" in done.stderr
    read, write = os.pipe()
    os.close(read)
    for closed in ({"stdout": write}, {"stdout": write, "stderr": write}):
        assert subprocess.run(command, cwd=ROOT, **closed).returncode == 0


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.argv = sys.argv[1:]
runpy.run_module("fedjax_nc", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_no_room_for_a_checkpoint(tmp_path):
    """A limit on the size of files fails where a full disk does, in Orbax's threads."""
    argv, directory = [*TINY, f"--out={tmp_path}"], directory_of(tmp_path, TINY)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "20000", "run", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3 and "Traceback" not in done.stderr and "orbax" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: File too large (")
    assert steps_of(directory) == []
    train(tmp_path, TINY)
    assert steps_of(directory) == [3, 4]
