"""One process writes a run directory; what a dead one left is taken over by exactly one."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from runs import DATA, FEW, PLAIN, ROOT, directory_of, files_of, train

from fedjax_nc.cli import main
from fedjax_nc.errors import Fault, UserError
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


def test_process_elsewhere_is_known_by_its_signs_of_life(tmp_path):
    directory, path = place(tmp_path)
    leave(path, seconds=100, system="elsewhere", host="far", pid=1)
    with pytest.raises(UserError, match=r"host far, pid 1, since noon.*again in (20|19) s"):
        lock.hold(directory).__enter__()
    leave(path, seconds=130, system="elsewhere")
    with lock.hold(directory):
        pass
    for content in (b"", b"{", b"[1]"):  # of a machine that failed
        path.write_bytes(content)
        with pytest.raises(UserError, match="another process, host unknown"):
            lock.hold(directory).__enter__()
        os.utime(path, (0, 0))
        with lock.hold(directory):
            pass


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
