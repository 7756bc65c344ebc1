"""One process writes a run directory; what a dead one left is taken over by exactly one."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from runs import DATA, FEW, PLAIN, ROOT, directory_of, files_of, train

from fedjax_nc.cli import main
from fedjax_nc.config import RunConfig
from fedjax_nc.errors import Fault, UserError
from fedjax_nc.host import finish
from fedjax_nc.host.loop import Seed
from fedjax_nc.io import lock

TINY = ["--method=fedavg", *DATA, *FEW, *PLAIN, "--rounds=2"]


def place(tmp_path):
    """A run directory that does not exist yet, and its lock."""
    return tmp_path / "a" / "seed0", tmp_path / "a" / ".seed0.lock"


def leave(path, seconds=0, **changes):
    """A lock of this process but for the changes, last touched so many seconds ago."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(lock._holder(os.getpid()) | {"since": "noon"} | changes))
    os.utime(path, (time.time() - seconds,) * 2)


def test_held_once_and_let_go(tmp_path):
    directory, path = place(tmp_path)
    with lock.hold(directory) as mine:
        mine.check()
        assert json.loads(path.read_text())["pid"] == os.getpid()
        with pytest.raises(UserError, match=rf"another process, host .*, pid {os.getpid()}, since"):
            lock.hold(directory).__enter__()
        assert path.exists()
    assert not any(tmp_path.iterdir())  # the folder was made for the lock only
    with pytest.raises(ValueError), lock.hold(directory):
        directory.mkdir()
        raise ValueError
    assert [p.name for p in directory.parent.iterdir()] == ["seed0"]


def test_dead_process_holds_nothing(tmp_path):
    directory, path = place(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    leave(path, pid=dead.pid, started=lock._started(dead.pid))
    while lock._started(dead.pid):  # ended, though nobody has waited for it
        time.sleep(0.01)
    with lock.hold(directory):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    dead.wait()
    leave(path, started="1")  # another process has had this number before
    with lock.hold(directory):
        pass
    assert not path.exists()


def test_process_elsewhere_is_waited_for_until_it_counts_as_gone(tmp_path, monkeypatch, capfd):
    """A run that was moved to another host must not be refused because of itself."""
    monkeypatch.setattr(lock, "LOOK", 0.01)
    monkeypatch.setattr(lock, "SILENCE", 100.2)
    directory, path = place(tmp_path)
    leave(path, seconds=100, system="elsewhere", host="far\x1b", pid=1)
    with lock.hold(directory):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    [line] = capfd.readouterr().err.splitlines()
    held = rf"{directory} is held by another process, host far\x1b, pid 1"
    assert line == f"{held}: waiting up to 0 s for a sign that it lives"
    leave(path, seconds=130, system="elsewhere")
    with lock.hold(directory):
        pass
    assert capfd.readouterr().err == ""


def test_process_elsewhere_that_lives_is_not_disturbed(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "LOOK", 0.01)
    directory, path = place(tmp_path)
    leave(path, seconds=100, system="elsewhere", host="far", pid=1)
    beat = threading.Timer(0.1, os.utime, [path])
    beat.start()
    with pytest.raises(UserError, match=r"host far, pid 1, since noon: wait until it ends, or"):
        lock.hold(directory).__enter__()
    beat.join()


ODD = (b"", b"{", b"[1]", b"[" * 5000, b'{"pid": "\\u0000"}', b'{"host": [[]], "pid": 1e999}')


@pytest.mark.parametrize("content", ODD, ids=range(len(ODD)))
def test_a_lock_that_says_nothing_is_gone_in_the_end(tmp_path, content):
    directory, path = place(tmp_path)
    path.parent.mkdir()
    path.write_bytes(content)
    os.utime(path, (0, 0))
    with lock.hold(directory):
        pass
    os.mkfifo(path)  # nobody waits for its writer
    os.utime(path, (0, 0))
    with lock.hold(directory):
        pass


def test_a_lock_is_never_empty(tmp_path, monkeypatch):
    """A process that is killed before it has written its name leaves no lock."""
    directory, path = place(tmp_path)
    link, seen = os.link, []

    def noted(source, target):
        seen.append((json.loads(source.read_text())["pid"], path.exists()))
        raise KeyboardInterrupt if len(seen) == 1 else OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", noted)
    with pytest.raises(KeyboardInterrupt), lock.hold(directory):
        pass
    with lock.hold(directory):  # of a file system without links
        assert json.loads(path.read_text())["pid"] == os.getpid()
    monkeypatch.setattr(os, "link", link)
    with lock.hold(directory):
        assert [p.name for p in path.parent.iterdir()] == [".seed0.lock"]
    assert seen == [(os.getpid(), False)] * 2


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    directory, path = place(tmp_path)
    path.parent.mkdir()
    for name, seconds in (("1a2b3c4d", 500), ("clearing", 500), ("young", 0)):
        left = path.with_name(f"{path.name}.{name}")
        left.touch()
        os.utime(left, (time.time() - seconds,) * 2)
    with lock.hold(directory):
        assert {p.name for p in path.parent.iterdir()} == {path.name, f"{path.name}.young"}


def test_of_many_takers_one_takes(tmp_path):
    directory, path = place(tmp_path)
    for _ in range(20):
        leave(path, started="1")
        start, end, took = threading.Barrier(6), threading.Barrier(6), []

        def taker(start=start, end=end, took=took):
            with contextlib.ExitStack() as held:
                start.wait()
                with contextlib.suppress(UserError):
                    took.append(held.enter_context(lock.hold(directory)))
                end.wait()

        threads = [threading.Thread(target=taker) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(took) == 1
        assert [p.name for p in path.parent.iterdir()] == []


def test_signs_of_life_and_a_lost_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    directory, path = place(tmp_path)
    with lock.hold(directory) as mine:
        os.utime(path, (0, 0))
        wait_for(lambda: path.stat().st_mtime > 0)
        mine.check()
        leave(path, pid=1)  # it had been silent for too long
        wait_for(lambda: mine._lost)
        with pytest.raises(Fault, match="taken or removed by another process"):
            mine.check()
    assert path.exists()  # it is the other's


def test_no_summary_where_the_lock_was_lost(tmp_path):
    directory, path = place(tmp_path)
    with lock.hold(directory) as mine:
        leave(path, pid=1)
        mine.check()  # the next sign of life will notice
        seed = Seed(RunConfig(), [], directory=directory, lock=mine)
        with pytest.raises(Fault, match="taken or removed by another process"):
            finish._leave_files(None, seed, number=0, summary={})
    assert not directory.exists()


def wait_for(happens):
    deadline = time.monotonic() + 20
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert happens()


def test_held_directory_is_neither_trained_nor_overwritten(tmp_path, capfd, monkeypatch):
    directory = train(tmp_path, TINY)
    with monkeypatch.context() as patch:  # what is finished may be where nobody can write
        patch.setattr(lock, "_take", lambda *args, **kwargs: 1 / 0)
        train(tmp_path, TINY)
    (directory / "summary.json").unlink()
    before = files_of(directory)
    with lock.hold(directory):
        for argv in (TINY, [*TINY, "--overwrite"], [*TINY, "--seeds", "1", "0"]):
            capfd.readouterr()
            assert main.train([*argv, f"--out={tmp_path}"]) == 2
            lines = capfd.readouterr().err.splitlines()
            assert len(lines) == 1 and "is being written by another process" in lines[0]
    assert files_of(directory) == before
    assert [p.name for p in directory.parent.iterdir()] == ["seed0"]  # of seed 1 nothing is left


@pytest.mark.slow
def test_two_commands_on_one_directory(tmp_path):
    argv = [*TINY, "--rounds=30", "--execution.checkpoint_every=3"]
    commands = [
        subprocess.Popen(
            [sys.executable, "-m", "fedjax_nc", "run", *argv, f"--out={tmp_path / 'both'}"],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in commands]
    codes = [process.returncode for process in commands]
    assert sorted(codes) in ([0, 2], [0, 0]), said  # the second may come when the first is done
    for code, text in zip(codes, said, strict=True):
        assert "Traceback" not in text
        assert code == 0 or "is being written by another process" in text
    directory = directory_of(tmp_path / "both", argv)
    rounds = [
        json.loads(x)["round"] for x in (directory / "metrics.jsonl").read_text().split("\n")[:-1]
    ]
    assert rounds == list(range(1, 31))
