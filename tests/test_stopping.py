"""Signals finish the round and save it, time saves too, and the same command goes on."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from runs import DATA, FEW, PLAIN, ROOT, assert_same_run, directory_of, steps_of, train

import fedjax_nc as fnc
from fedjax_nc.cli import console, main
from fedjax_nc.errors import Stopped
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
