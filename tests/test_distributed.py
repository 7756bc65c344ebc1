"""Several processes, and any number of devices, compute the same run."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from runs import DATA, FEW, PLAIN, ROOT, rows_of, steps_of

from fedjax_nc.io import checkpoint, lock

METHODS = ("fedavg", "scaffold", "moon", "fedblade", "ditto", "fedbabu | fd(beta=0.9)")
WORDS = {
    "dataset": "digits",
    "model": "mlp",
    "rounds": 2,
    "data": {"limit": 300, "partition": "dirichlet", "alpha": 0.3},
    "federation": {"clients": 8, "participants": 4},
    "local": {"epochs": 1},
    "evaluation": {"last": 1, "finetune": False},
    "execution": {"checkpoint_every": 2},
}
SHARED = WORDS | {"execution": {"checkpoint_every": 2, "shard": True, "pool_mb": 0}}
ALONE = WORDS | {"evaluation": {"last": 1, "finetune": False, "personal": False}}
ON_HOST = WORDS | {"execution": {"checkpoint_every": 2, "client_state_mb": 0}}


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def together(out, runs, *, count=1, devices=1, **more):
    """Lets processes compute runs, each on so many devices; what each of them printed."""
    asked = {"count": count, "port": free_port(), "devices": devices, "out": str(out), "runs": runs}
    started = [
        subprocess.Popen(
            [sys.executable, "tests/together.py", json.dumps(asked | {"me": me} | more)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for me in range(count)
    ]
    said = [process.communicate(timeout=400)[0] for process in started]
    assert [process.returncode for process in started] == [0] * count, said
    return said


def assert_close(left, right):
    """The same participants, and the same numbers but for the order of sums."""
    for a, b in zip(rows_of(left), rows_of(right), strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-9, err_msg=name)
    states = [checkpoint.raw(d / "ckpt", steps_of(d)[-1]) for d in (left, right)]
    a, b = map(jax.tree_util.tree_leaves_with_path, states)
    assert [path for path, _ in a] == [path for path, _ in b]
    for (path, x), (_, y) in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11, err_msg=str(path))
    ends = [json.loads((d / "summary.json").read_text()) for d in (left, right)]
    assert ends[0].keys() == ends[1].keys()
    for name in (n for n in ends[0] if n.endswith(("accuracy", "loss"))):
        if ends[0][name] is None:
            assert ends[1][name] is None
            continue
        np.testing.assert_allclose(*(end[name] for end in ends), rtol=1e-9, err_msg=name)


def directories(out):
    found = sorted(Path(out).glob("*/*/*/seed0"))
    return {directory.parents[1].name: directory for directory in found}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_equal_one(tmp_path):
    runs = [(method, SHARED) for method in METHODS]
    # sums over everybody's data after the last round
    calibrated = "fedavg | ccvr(samples=20)"
    together(tmp_path / "two", [*runs, (calibrated, ALONE)], count=2)
    one = [*((method, WORDS) for method in METHODS), (calibrated, ALONE)]
    together(tmp_path / "one", one, devices=2)
    two, one = (directories(tmp_path / name) for name in ("two", "one"))
    assert two.keys() == one.keys() and len(two) == len(METHODS) + 1
    for name in two:
        assert_close(two[name], one[name])
    arrays = json.loads((two["scaffold"] / "ckpt/2/facts/metadata").read_text())["arrays"]
    divided = {name.partition("[")[2] for name in arrays if name.startswith("clients/")}
    assert divided == {"0:4]", "4:8]"}  # each process has told of its clients


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_number_of_devices_goes_on(tmp_path):
    words = [SHARED | {"rounds": 7}, ON_HOST | {"rounds": 7}]
    runs = list(zip(("scaffold", "ditto"), words, strict=True))
    whole = [(method, WORDS | {"rounds": 7}) for method, _ in runs]
    together(tmp_path / "moved", runs, devices=8, stop=2)
    together(tmp_path / "moved", runs, count=2, stop=4)
    alone = [(m, WORDS | {"rounds": 7} if m != "ditto" else w) for m, w in runs]
    together(tmp_path / "moved", alone, devices=1, stop=6)
    together(tmp_path / "moved", runs, devices=8)  # and back
    together(tmp_path / "stayed", whole, devices=2)
    moved, stayed = (directories(tmp_path / name) for name in ("moved", "stayed"))
    for name, directory in moved.items():
        assert_close(directory, stayed[name])
        history = json.loads((directory / "environment.json").read_text())["history"]
        told = [(start["processes"], start["devices"], start["round"]) for start in history]
        assert [one[:2] for one in told] == [(1, 8), (2, 2), (1, 1), (1, 8)]
        assert [one[2] for one in told] == sorted({one[2] for one in told}), "no start from scratch"


# a process that ends later than it could
LATE = """
import os, sys, time
leave = os._exit
os._exit = lambda code: (time.sleep(3), leave(code))
from fedjax_nc.cli.main import main
sys.exit(main())
"""


def command(out, me, port, *more, late=False):
    return subprocess.Popen(
        [
            *(sys.executable, *(["-c", LATE] if late else ["-m", "fedjax_nc"]), "run"),
            *("--method=scaffold", *DATA, *FEW, *PLAIN),
            *("--rounds=40", "--evaluation.every=40", "--execution.checkpoint_every=2"),
            *(f"--out={out}", "--execution.devices=1", "--execution.shard"),
            *(f"--distributed.coordinator=localhost:{port}", "--distributed.num_processes=2"),
            *(f"--distributed.process_id={me}", *more),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def to_the_end(out):
    """Lets two processes compute a run; what they said."""
    port = free_port()
    pair = [command(out, me, port) for me in range(2)]
    said = [p.communicate(timeout=200) for p in pair]
    assert [p.returncode for p in pair] == [0, 0], said
    return said


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two processes that nobody stopped."""
    out = tmp_path_factory.mktemp("whole")
    to_the_end(out)
    return next(out.glob("*/*/*/seed0"))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_takes_the_other_down(tmp_path, lost, whole):
    port = free_port()
    pair = [command(tmp_path, me, port) for me in range(2)]
    while not list(tmp_path.glob("*/*/*/seed0/ckpt/2")):
        assert all(p.poll() is None for p in pair), [p.communicate() for p in pair]
        time.sleep(0.05)
    pair[lost].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    out, err = pair[1 - lost].communicate(timeout=60)
    assert time.monotonic() - begin < 60
    assert "another process of this run is gone" in err or "another task died" in err, out + err
    assert pair[1 - lost].returncode not in (0, 2)
    pair[lost].communicate()
    [directory] = tmp_path.glob("*/*/*/seed0")
    said = to_the_end(tmp_path)
    assert "resuming after round" in said[0][1]
    assert "resuming" not in said[1][1] + said[1][0]  # the first one tells
    # bit for bit what two processes come to that nobody killed
    assert len(rows_of(directory)) == 40 and rows_of(directory) == rows_of(whole)
    states = [jax.tree.leaves(checkpoint.raw(d / "ckpt", 40)) for d in (directory, whole)]
    assert all(np.array_equal(a, b) for a, b in zip(*states, strict=True))


@pytest.mark.slow
def test_a_signal_to_one_stops_all_and_a_refusal_is_told_once(tmp_path):
    port = free_port()
    # the first one has jax's service, without which jax ends the other with a code of its own
    pair = [command(tmp_path, me, port, late=me == 1) for me in range(2)]
    while not list(tmp_path.glob("*/*/*/seed0/ckpt/2")):
        time.sleep(0.05)
    pair[1].send_signal(signal.SIGTERM)
    said = [p.communicate(timeout=100) for p in pair]
    assert [p.returncode for p in pair] == [75, 75], said
    assert "saved after round" in said[0][1] and "stopped" not in said[1][1]
    [directory] = tmp_path.glob("*/*/*/seed0")
    held = directory.with_name(".seed0.lock")
    held.write_text(json.dumps(lock._holder(os.getpid())))  # of this process, which lives
    broken = 'from fedjax_nc import base\n@base\ndef odd():\n    """Odd."""\n1 / 0\n'
    (tmp_path / "broken.py").write_text(broken)  # which is read before, and runs now
    for more, words in (
        ((), "is being written by another process"),
        ((f"--plugin={tmp_path / 'broken.py'}",), "error: process 1 ("),  # it alone has that flag
    ):
        port = free_port()
        pair = [command(tmp_path, me, port, *more[: len(more) * me]) for me in range(2)]
        said = [p.communicate(timeout=100) for p in pair]
        assert [p.returncode for p in pair] == [2, 2], said
        errors = [line for _, err in said for line in err.splitlines() if line.startswith("error")]
        assert len(errors) == 1 and words in errors[0], said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_that_differ_end_alike(tmp_path):
    last = [{"signal": 2}, {"out": str(tmp_path / "elsewhere")}, {}]
    odd = [{"words": {"local": {"epochs": 1, "lr": 0.5}}}, {"refused": "no data"}, {"labels": 1}]
    out = together(tmp_path / "out", [("fedavg", WORDS, each) for each in odd + last], count=2)
    lines = [[line for line in text.splitlines() if line[0] == "{"] for text in out]
    first, second = ([json.loads(line) for line in each] for each in lines)
    words = [
        ("process 1 differs from the first one in --local.lr (0.5, 0.02): give", 2),
        ("process 1 (", 2),
        ("process 1 differs from the first one in the labels of seed 0 (", 2),
        ("saved after round 2", 75),
        ("process 1 (", 2),
        ("None", 2),
    ]
    for one, other, (text, code) in zip(first, second, words, strict=True):
        assert one["said"].startswith(text), one
        assert one["code"] == other["code"] == code
        assert other["told"] or text == "None", other  # by the first, so not once more
    assert first[1]["said"].endswith("ended: no data") and second[1]["said"] == "no data"
    assert "--out on one file system" in second[4]["said"]
    [directory] = directories(tmp_path / "out").values()
    assert len(rows_of(directory)) == 2 and not list((tmp_path / "elsewhere").rglob("*"))


JOINING = """
import os, signal, sys, threading
from fedjax_nc import processes
from fedjax_nc.errors import Stopped
from fedjax_nc.host import stopping
count = int(sys.argv[1])
me = processes.Distributed(coordinator=sys.argv[2], num_processes=count, process_id=0)
kill = lambda: os.kill(os.getpid(), signal.SIGTERM)
try:
    with stopping.at_once():
        if count > 1:  # the other one never comes
            threading.Timer(1, kill).start()
        processes.join(me)
        kill()
except Stopped:
    print("heard", processes.count(), flush=True)
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_a_signal_is_heard_while_processes_join(count):
    argv = [sys.executable, "-c", JOINING, str(count), f"localhost:{free_port()}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "heard 1\n", done.stderr
