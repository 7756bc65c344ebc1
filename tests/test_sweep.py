"""Sweeps of real processes: finished, failing, stopped, killed, two at once, on Ray, as jobs."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import DATA, FEW, PLAIN, ROOT, assert_same_run, files_of, rows_of

from fedjax_nc.cli import sweep, sweeping
from fedjax_nc.errors import UserError
from fedjax_nc.io import lock
from fedjax_nc.sweep import cells, expect, launch, loop, work
from fedjax_nc.sweep.cells import Cell
from fedjax_nc.sweep.launch import Job, Launcher
from fedjax_nc.sweep.work import Order

TINY = [*DATA, *FEW, *PLAIN]
# of a process each; what a grid means, and the mean over seeds, is in test_grid.py
GRID = [*TINY, "--method", "fedavg", "fedprox", "--hp.mu=0.5", "--rounds=3"]


def start(out, *argv):
    """A sweep in a process of its own, which compiles fast to slower code."""
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "fedjax_nc", "sweep", *argv, f"--out={out}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": places, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )


def end(process, code=0):
    out, said = process.communicate(timeout=500)
    assert process.returncode == code, said
    return out, said


def listed(out):
    path = next(
        path for path in Path(out).glob("sweeps/*/sweep.json") if len(path.parent.name) == 8
    )
    return json.loads(path.read_text())


def untimed(table):
    """A table without its column of times."""
    lines = [line.split("|") for line in table.splitlines()]
    at = [i for i, name in enumerate(lines[0]) if name.strip() == "s/round"]
    return [[cell for i, cell in enumerate(line) if i not in at] for line in lines]


def table_of(out):
    path = next(path for path in Path(out).glob("sweeps/*/table.md") if len(path.parent.name) == 8)
    return untimed(path.read_text())


def starts_of(out):
    """How often each run directory was begun."""
    paths = sorted(Path(out).glob("*/*/*/seed*/environment.json"))
    return [len(json.loads(path.read_text())["history"]) for path in paths]


# --- the loop, with processes that are none


class Played:
    """A launcher of jobs that end as the test says."""

    def __init__(self, codes, room=1):
        self.codes, self.started, self.stopped, self.killed = codes, [], [], []
        self.launcher = Launcher(self.start, room)

    def start(self, orders):
        jobs = []
        for order in orders:
            name = order.argv[0]
            self.started.append(name)
            left = self.codes[name]
            jobs.append(
                Job(
                    lambda left=left: left.pop(0) if left else None,
                    lambda name=name: self.stopped.append(name),
                    lambda name=name: self.killed.append(name),
                )
            )
        return jobs


class Silent:
    def note(self, message):
        pass

    def show(self, sweep):
        pass

    def ended(self, task, result, sweep):
        pass


@pytest.fixture
def three(tmp_path):
    """Three cells, of which the first has the fewest rounds."""
    found = [
        Cell({"rounds": n}, (f"--rounds={n}", *TINY, f"--out={tmp_path}")) for n in ("2", "4", "8")
    ]
    return sweep.tasks_of(found)


def played(tasks, codes, monkeypatch, room=1, asked=lambda: ""):
    """What a sweep comes to, and its launcher; cells are finished by exit code 0."""
    done = set()
    codes = dict(zip([task.argv[0] for task in tasks], codes, strict=True))
    players = Played(codes, room)

    def look(task, *, again=False):
        finished = task.argv[0] in players.started and codes[task.argv[0]] == []
        finished = finished and task.argv[0] not in failing
        if finished:
            done.add(task.argv[0])
            return cells.State(cells.FINISHED, seconds=1.0)
        return cells.State(cells.NEW)

    failing = {name for name, left in codes.items() if left and left[-1]}
    monkeypatch.setattr(cells, "look", look)
    monkeypatch.setattr(loop, "_POLL", 0.0)
    monkeypatch.setattr(loop, "_LOOK", 0.0)
    states = [look(task) for task in tasks]
    made = loop.Sweep(tasks, states, expected=expect.Expected({}))
    order = lambda i: Order(tasks[i].argv, Path("/nowhere"), Path("/"))  # noqa: E731
    found = loop.train(
        made,
        players.launcher,
        order=order,
        asked=asked,
        reporter=Silent(),
        changed=lambda: None,
    )
    return found, players


def test_the_longest_cell_is_first(three, monkeypatch):
    found, players = played(three, [[0], [0], [0]], monkeypatch)
    assert players.started == ["--rounds=8", "--rounds=4", "--rounds=2"]
    assert [result.state for result in found] == ["finished"] * 3
    assert [result.labels["rounds"] for result in found] == ["2", "4", "8"]


def test_a_failing_cell_is_told_and_the_others_go_on(three, monkeypatch):
    found, players = played(three, [[0], [2], [-9]], monkeypatch, room=2)
    assert [result.state for result in found] == ["finished", "failed", "failed"]
    assert found[1].reason == "ended with exit code 2"
    assert found[2].reason.startswith("killed by signal 9")
    assert sorted(players.started) == ["--rounds=2", "--rounds=4", "--rounds=8"]


def test_a_cell_whose_process_somebody_stops_is_begun_again(three, monkeypatch):
    codes = [[work.SAVED, 0], [work.SAVED] * 9 + [2], [launch.LOST, 0]]
    found, players = played(three, codes, monkeypatch)
    assert [result.state for result in found] == ["finished", "failed", "finished"]
    assert [players.started.count(f"--rounds={n}") for n in (2, 4, 8)] == [2, 4, 2]


def test_a_cell_that_others_hold_is_waited_for(three, monkeypatch):
    found, players = played(three, [[work.HELD, work.HELD, 0], [0], [0]], monkeypatch)
    assert [result.state for result in found] == ["finished"] * 3
    assert players.started.count("--rounds=2") == 3


def test_a_signal_stops_all_and_leaves_what_waits(three, monkeypatch):
    said = iter(["", ""])
    codes = [[0], [0], [None, None, None, None, work.SAVED]]
    found, players = played(three, codes, monkeypatch, asked=lambda: next(said, "SIGTERM"))
    assert players.started == players.stopped == ["--rounds=8"] and not players.killed
    assert [result.state for result in found] == ["stopped"] * 3


def test_a_second_signal_ends_all_at_once(three, monkeypatch):
    def asked():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        played(three, [[0], [0], [0]], monkeypatch, asked=asked)


def test_what_is_shown_while_it_runs(three, capsys):
    known = expect.Expected({})
    states = [cells.State(cells.FINISHED, 2, seconds=50.0, summaries=({"global_accuracy": 0.5},))]
    states += [cells.State(cells.NEW), cells.State(cells.ELSEWHERE)]
    made = loop.Sweep(three, states, expected=known)
    with sweeping.Sweeping(1) as shown:
        shown.ended(three[0], made.results[0], made)
        made.results[1] = cells.result_of(three[1], cells.State(cells.FAILED), reason="it [burns]")
        made.waiting.clear()
        shown.ended(three[1], made.results[1], made)
    first, second = capsys.readouterr().err.splitlines()
    status = "1 of 3 done, 1 in other processes"
    assert first == f"rounds 2, seed 0: global 50.00 ({status}, about 5.0 min left)"
    assert (
        second == f"rounds 4, seed 0: failed: it [burns] ({status}, 1 failed, about 3.3 min left)"
    )


def test_who_holds_a_directory_is_seen_without_taking_it(tmp_path):
    directory = tmp_path / "a" / "seed0"
    assert not lock.holder(directory) and not any(tmp_path.iterdir())
    with lock.hold(directory):
        assert f"pid {os.getpid()}" in lock.holder(directory)
    assert not lock.holder(directory)
    path = tmp_path / "a" / ".seed0.lock"
    path.parent.mkdir()
    path.write_text(json.dumps(lock._holder(os.getpid()) | {"started": "1"}))
    assert not lock.holder(directory)  # of a process that is gone
    path.write_text(json.dumps(lock._holder(1) | {"system": "elsewhere", "host": "far"}))
    assert "host far" in lock.holder(directory)
    os.utime(path, (0, 0))
    assert not lock.holder(directory)


def test_a_cell_asks_for_what_a_process_can_do(tmp_path):
    for flag in ("--dry-run", "--list"):
        with pytest.raises(UserError, match="are no flags of a cell"):
            sweep.run_cells([Cell({}, ("--method=fedavg", flag))], out=str(tmp_path))


# --- real processes


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished sweep of two methods, and what it printed."""
    out = tmp_path_factory.mktemp("whole")
    printed, said = end(start(out, *GRID, "--workers=2"))
    return out, printed, said


@pytest.mark.slow
def test_a_sweep_and_the_same_again(whole):
    out, printed, said = whole
    assert said.count("global ") == 2 and "2 of 2 done" in said
    content = listed(out)
    assert [cell["state"] for cell in content["cells"]] == ["finished"] * 2
    assert content["cells"][1]["labels"] == {"method": "fedprox"}
    assert content["cells"][1]["seeds"] == [0]
    for cell in content["cells"]:
        (directory,) = map(Path, cell["directories"])
        assert (directory / "summary.json").is_file() and len(rows_of(directory)) == 3
        typed = (directory / "command.txt").read_text()
        assert " -m fedjax_nc run --dataset=digits " in typed
    rows = re.findall(r"^\| `(.*?)` \| \d+\.\d ", printed, re.MULTILINE)
    assert rows == ["fedavg", "fedprox(mu=0.5)"]
    before = {path: what for path, what in files_of(out).items() if "seed" in path.parent.name}
    again, _ = end(start(out, *GRID, "--dry-run"))
    assert "2 cells, 2 finished" in again
    again, _ = end(start(out, *GRID))
    assert again == printed
    assert before == {p: what for p, what in files_of(out).items() if "seed" in p.parent.name}


@pytest.mark.slow
def test_a_kill_at_a_random_point_leaves_the_same_table(whole, tmp_path):
    """kill -9 of the sweep; its processes end, and the same command goes on."""
    argv = [*GRID, "--workers=2"]
    process = start(tmp_path, *argv)
    time.sleep(random.uniform(1, 10))
    process.kill()
    process.communicate()
    wait_until(lambda: not holders(tmp_path), seconds=120)
    end(start(tmp_path, *argv))
    assert table_of(tmp_path) == table_of(whole[0])
    same_runs(tmp_path, whole[0])


def same_runs(out, other):
    for left, right in zip(listed(out)["cells"], listed(other)["cells"], strict=True):
        assert_same_run(Path(left["directories"][0]), Path(right["directories"][0]))


def begun(out):
    """Run directories with records."""
    return [path.parent for path in Path(out).glob("*/*/*/seed*/metrics.jsonl")]


def holders(out):
    """Run directories that a living process holds."""
    paths = [path.parent / path.name[1:-5] for path in Path(out).glob("*/*/*/.seed*.lock")]
    return [path for path in paths if lock.holder(path)]


def wait_until(true, seconds):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_two_sweeps_at_once_train_every_cell_once(whole, tmp_path):
    both = [start(tmp_path, *GRID, "--workers=2") for _ in range(2)]
    tables = [untimed(end(process)[0]) for process in both]
    assert tables[0] == tables[1] == untimed(whole[1])
    assert starts_of(tmp_path) == [1] * 2


@pytest.mark.slow
def test_a_signal_saves_and_the_same_command_goes_on(tmp_path):
    argv = [*TINY, "--method=fedavg", "--rounds=2000", "--seeds", "0", "1"]
    process = start(tmp_path, *argv)
    wait_until(lambda: any(map(rows_of, begun(tmp_path))), seconds=200)
    process.send_signal(signal.SIGTERM)
    out, said = end(process, code=75)
    assert out == "" and "Traceback" not in said
    assert said.splitlines()[-1] == "stopped: 0 of 2 cells are finished; the same command goes on"
    assert not holders(tmp_path)
    assert [cell["state"] for cell in listed(tmp_path)["cells"]] == ["stopped"] * 2
    (directory,) = begun(tmp_path)
    saved = max(int(p.name) for p in (directory / "ckpt").iterdir() if p.name.isdigit())
    assert saved == len(rows_of(directory))


@pytest.mark.slow
def test_a_cell_that_fails_is_told_at_the_end(whole):
    """It diverges; the other cell was finished before."""
    argv = [*TINY, "--method=fedavg", "--rounds=3", "--local.lr", "0.02", "1e30", "--name=odd"]
    out, said = end(start(whole[0], *argv), code=2)
    assert "error: 1 of 2 cells failed" in said
    assert re.search(r"^- local.lr 1e30, seed 0: failed: .*NaN or infinite", out, re.MULTILINE)
    assert out.count("| `fedavg` | 0.02 |") == 1
    content = json.loads((whole[0] / "sweeps" / "odd" / "sweep.json").read_text())
    assert [cell["state"] for cell in content["cells"]] == ["finished", "failed"]
    assert content["cells"][1]["reason"] in out


@pytest.mark.slow
def test_sweeps_on_ray(whole, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'fedjax_nc[ray]'")
    printed, _ = end(start(tmp_path, *GRID, "--workers=2", "--launcher=ray"))
    assert untimed(printed) == untimed(whole[1])
    same_runs(tmp_path, whole[0])


@pytest.mark.slow
def test_sweeps_as_jobs(whole, tmp_path):
    pytest.importorskip("submitit", reason="submitit is not installed")
    jobs = ["--launcher=slurm", "--slurm.cluster=local", "--workers=2"]
    one = ["--without", "method=fedprox"]
    end(start(tmp_path, *GRID, *one, *jobs))
    (cell,) = listed(tmp_path)["cells"]
    assert_same_run(*(Path(c["directories"][0]) for c in (cell, listed(whole[0])["cells"][0])))


@pytest.mark.slow
def test_the_python_door(whole):
    import fedjax_nc as fnc

    methods = ("fedavg", "fedprox(mu=0.5)")
    asked = [fnc.Cell({"name": m}, (f"--method={m}", *TINY, "--rounds=3")) for m in methods]
    found = fnc.run_cells(asked, out=str(whole[0]), name="door")
    assert [result.state for result in found] == ["finished"] * 2
    assert [result.labels["name"] for result in found] == list(methods)
    assert all(result.summary["global_accuracy"] > 0 for result in found)
    assert all((result.directories[0] / "summary.json").is_file() for result in found)
