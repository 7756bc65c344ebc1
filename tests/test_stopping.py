"""Signals finish the round and save it, time saves too, and the same command goes on."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from runs import DATA, FEW, PLAIN, ROOT, assert_same_run, directory_of, steps_of, train

import fedjax_nc as fnc
from fedjax_nc import processes
from fedjax_nc.cli import console, exits, main
from fedjax_nc.errors import Stopped, UserError
from fedjax_nc.host import stopping
from fedjax_nc.host.reporting import Quiet

TINY = ["--method=scaffold", *DATA, *FEW, *PLAIN, "--rounds=6", "--execution.checkpoint_every=100"]


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("name", [stopping.INTERRUPT, *stopping.OTHERS])
def test_first_waits_second_does_not(name, monkeypatch):
    number, told = getattr(signal, name), []
    before = signal.getsignal(number)
    with stopping.listening(told.append) as asked:
        asked.busy = True
        send(number)
        assert asked.by == name and len(told) == 1 and told[0].startswith(name)
        send(number)  # at once: `timeout` sends it twice
        monkeypatch.setattr(stopping, "_ECHO", 0.0)
        with pytest.raises(Stopped) as stop:
            send(number)
        assert stop.value.code == 128 + number and isinstance(stop.value, KeyboardInterrupt)
    assert signal.getsignal(number) == before


def test_before_the_first_round_a_signal_has_its_usual_effect():
    with stopping.listening(print), pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)
    with stopping.at_once(), stopping.listening(print), pytest.raises(Stopped) as stop:
        send(signal.SIGTERM)
    assert stop.value.code == stopping.SAVED


def test_what_cannot_be_told_is_noted_all_the_same():
    def tell(message):
        raise OSError(5, "Input/output error")

    with stopping.listening(tell) as asked:
        asked.busy = True
        send(signal.SIGHUP)
    assert asked.by == "SIGHUP"


def test_a_second_signal_does_not_wait_for_the_device():
    def late(x):
        time.sleep(2)
        return np.asarray(x)

    mesh = jax.make_mesh((2,), ("a",))  # of one device jax would wait at once

    @partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("a"))
    def slow(x):
        return jax.pure_callback(late, jax.ShapeDtypeStruct((2,), "float32"), x)

    computed = jax.jit(slow)(np.zeros(2, "float32"))
    begin = time.monotonic()
    with stopping.listening(print) as asked, pytest.raises(Stopped) as stop:
        asked.busy, asked.by = True, "SIGTERM"
        threading.Timer(0.2, send, [signal.SIGTERM]).start()
        processes.until_ready(computed)
    assert time.monotonic() - begin < 1.5 and stop.value.code == 128 + signal.SIGTERM
    jax.block_until_ready(computed)


def closed_terminal():
    leader, terminal = pty.openpty()
    os.close(leader)
    return open(terminal, "w")


def refuse(argv):
    raise UserError("no")


def full_disk():
    return open("/dev/full", "w")


@pytest.mark.parametrize("place", [closed_terminal, full_disk])
def test_progress_that_nobody_sees_ends_no_run(monkeypatch, place):
    with place() as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with console.Progressing("fedavg", 2) as progress:
            progress.note("nobody hears this")
    with place() as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert exits.answered(refuse)([]) == 2


def test_results_are_lost_without_a_word_only_where_nobody_reads(monkeypatch):
    with closed_terminal() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        console.show_facts("nobody", {"reads": "this"})
        assert exits.answered(lambda argv: 0)([]) == 0
    stream = full_disk()
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(OSError, match="No space left"):
        console.show_facts("somebody", {"waits for": "this"})
    with pytest.raises(OSError, match="No space left"):
        stream.close()
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        console.show_facts("nobody", {"reads": "this"})


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_second_signal_stops_within_a_long_round(tmp_path, devices):
    argv = [*TINY, "--rounds=9", "--local.epochs=10000", f"--execution.devices={devices}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedjax_nc", "run", *argv, f"--out={tmp_path}"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        next(line for line in process.stderr if ": round 1/9" in line)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        next(line for line in process.stderr if line.startswith("SIGTERM: "))  # heard at once
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        process.wait(timeout=120)
        waited = time.monotonic() - begin
    finally:
        process.kill()
        process.stderr.close()
    [row] = (directory_of(tmp_path, argv) / "metrics.jsonl").read_text().splitlines()
    assert process.returncode == 128 + signal.SIGTERM
    assert waited < json.loads(row)["seconds"] / 4, row


# starts a command on a terminal of its own, and closes that while rounds run
CLOSING = """
import os, pty, sys
pid, terminal = pty.fork()
if not pid:
    os.execv(sys.executable, [sys.executable, "-m", "fedjax_nc", "run", *sys.argv[1:]])
said = b""
while b"clients/s" not in said:
    said += os.read(terminal, 1000)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.slow
def test_a_terminal_closes_while_rounds_run(tmp_path):
    argv = [*TINY, "--rounds=100000", f"--out={tmp_path}"]
    command = [sys.executable, "-c", CLOSING, *argv]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "75\n", done.stderr
    assert steps_of(directory_of(tmp_path, argv))


@pytest.mark.slow
def test_a_reader_leaves_an_ascii_command_while_rounds_run(tmp_path):
    """As `2>&1 | true`; the table of two seeds has a ±."""
    argv = [*TINY, "--rounds=300", "--seeds", "0", "1", f"--out={tmp_path}"]
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedjax_nc", "run", *argv],
        cwd=ROOT,
        env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        stdout=write,
        stderr=write,
    )
    os.close(write)
    with open(read) as printed:
        next(line for line in printed if "compiling" in line)
    assert process.wait(timeout=200) == 0
    for seed in (0, 1):
        summary = directory_of(tmp_path, argv, seed) / "summary.json"
        assert json.loads(summary.read_text())["rounds"] == 300


def test_what_was_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stopping.listening(print) as asked:
            asked.busy = True
            send(signal.SIGHUP)
            assert not asked.by
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_does_not_listen():
    found = []

    def listen():
        with stopping.listening(print):
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [before]


def signalling(monkeypatch, shown, number, after):
    """Have a signal come when a round has been shown."""

    def show(self, rows, rounds):
        shown(self, rows, rounds)
        if rows[0]["round"] == after:
            send(number)

    monkeypatch.setattr(console.Progressing, "round", show)


@pytest.mark.parametrize(
    "seeds",
    [
        [],
        pytest.param(["--seeds", "0", "1", "--seeds_parallel"], marks=pytest.mark.slow),
    ],
)
def test_stopped_run_goes_on_where_it_was(tmp_path, capfd, monkeypatch, seeds):
    argv, shown = [*TINY, *seeds], console.Progressing.round
    whole = train(tmp_path / "whole", argv)
    directory = directory_of(tmp_path / "cut", argv)
    rounds = []
    for number, after in ((signal.SIGTERM, 2), (signal.SIGUSR1, 4)):
        signalling(monkeypatch, shown, number=number, after=after)
        capfd.readouterr()
        assert main.train([*argv, f"--out={tmp_path / 'cut'}"]) == 75
        said = capfd.readouterr().err.splitlines()
        rounds.append(steps_of(directory)[-1])
        assert said[-1] == f"stopped: saved after round {rounds[-1]}; the same command goes on"
        assert [line for line in said if line.startswith(f"{number.name}: the round that runs")]
        assert "Traceback" not in "".join(said)
        lines = (directory / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == list(range(1, rounds[-1] + 1))
        assert sorted(p.name for p in directory.parent.iterdir())[0] == "seed0"  # no lock
    assert 2 <= rounds[0] < 4 <= rounds[1] < 6
    monkeypatch.setattr(console.Progressing, "round", shown)
    train(tmp_path / "cut", argv)
    assert_same_run(directory, whole)


def test_python_raises_keyboard_interrupt_after_saving(tmp_path, monkeypatch):
    words = {"dataset": "digits", "model": "mlp", "data": {"limit": 300}, "rounds": 4}
    words["federation"] = {"clients": 4, "participants": 2}
    words["evaluation"] = {"personal": False, "finetune": False}

    def interrupt(self, rows, rounds):
        if rows[0]["round"] == 2:
            send(signal.SIGINT)

    monkeypatch.setattr(Quiet, "round", interrupt)
    with pytest.raises(KeyboardInterrupt, match="saved after round 3"):
        fnc.run("fedavg", out=tmp_path, progress=False, **words)
    with pytest.raises(KeyboardInterrupt) as stop:  # at once: there is nothing to save
        fnc.run("fedavg", progress=False, **words)
    assert not isinstance(stop.value, Stopped)


def test_checkpoints_by_time(tmp_path):
    assert steps_of(train(tmp_path / "time", [*TINY, "--execution.save_seconds=1e-9"])) == [5, 6]
    assert steps_of(train(tmp_path / "off", [*TINY, "--execution.save_seconds=0"])) == [6]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_real_signal(tmp_path, number):
    argv = [*TINY, "--rounds=100000", f"--out={tmp_path}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedjax_nc", "run", *argv],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        next(line for line in process.stderr if ": round " in line)  # one every five seconds
        time.sleep(1)
        process.send_signal(number)
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert process.returncode == 75 and "Traceback" not in said
    last = steps_of(directory_of(tmp_path, [*TINY, "--rounds=100000"]))[-1]
    assert said.splitlines()[-1] == f"stopped: saved after round {last}; the same command goes on"
