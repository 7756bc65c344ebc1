"""kill -9 and the same command again; real CIFAR-10 in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from runs import (
    DATA,
    FEW,
    PLAIN,
    ROOT,
    SAVING,
    assert_same_run,
    directory_of,
    rows_of,
    state_of,
    steps_of,
    train,
)

from fedjax_nc.data import prepared
from fedjax_nc.errors import UserError

sys.path.insert(0, str(ROOT / "benchmarks"))

import interruptions


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Start run.py in a process of its own; `quick` compiles fast to slower code."""
    cache = tmp_path_factory.mktemp("cache")
    env = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}

    def start(out, argv, quick=True):
        env["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quick))
        return subprocess.Popen(
            [sys.executable, str(ROOT / "experiments" / "run.py"), *argv, f"--out={out}"],
            cwd=cache,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def finish(process):
    """The stderr of a process that must succeed."""
    _, printed = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return printed


def kill_during_rounds(process, directory, rows):
    """SIGKILL once so many rounds are recorded and a checkpoint is complete."""
    log, deadline = directory / "metrics.jsonl", time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and log.read_bytes().count(b"\n") >= rows and steps_of(directory):
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    printed = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, printed
    assert steps_of(directory) and not (directory / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ["--method=fedetf"],
        ["--method=scaffold"],
        ["--method=moon", "--execution.client_state_mb=0"],
    ],
    ids=["fedetf", "scaffold", "moon-host"],
)
def test_kill_and_resume_is_bit_identical(command, tmp_path, argv):
    argv = [*argv, *DATA, *FEW, *SAVING, *PLAIN, "--rounds=40"]
    whole, stopped = (directory_of(tmp_path / name, argv) for name in ("whole", "stopped"))
    finish(command(tmp_path / "whole", argv))
    kill_during_rounds(command(tmp_path / "stopped", argv), stopped, rows=5)
    done = len(rows_of(stopped))
    assert 5 <= done < 40
    printed = finish(command(tmp_path / "stopped", argv))
    assert "resuming after round" in printed
    assert_same_run(stopped, whole)
    has_clients = jax.tree.leaves(state_of(whole)["clients"])
    assert bool(has_clients) == ("--method=fedetf" not in argv)


@pytest.mark.slow
def test_a_kill_of_seeds_in_parallel_is_bit_identical(tmp_path):
    """With those above, and two of two processes in test_distributed.py, six kills are compared."""
    argv = [*interruptions.CASES["two seeds in parallel"], *interruptions.SETTING]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    codes, said = interruptions.ended(interruptions.start(argv, whole))
    assert not any(codes), said
    found = interruptions.interrupt(argv, stopped, kind=signal.SIGKILL, after=25)
    assert found["good"] and found["code"] == signal.SIGKILL, found["said"]
    codes, said = interruptions.ended(interruptions.start(argv, stopped))
    assert not any(codes), said
    assert "resuming after round" in said
    places = [interruptions.directories(argv, out) for out in (stopped, whole)]
    assert all(interruptions.same(a, b) for a, b in zip(*places, strict=True))


def test_client_state_on_the_host_changes_nothing(tmp_path):
    argv = ["--method=moon", *DATA, *FEW, *SAVING, *PLAIN, "--rounds=3"]
    device = train(tmp_path, argv)
    host = train(tmp_path, [*argv, "--execution.client_state_mb=0"])
    left, right = state_of(device), state_of(host)
    assert jax.tree.leaves(left["clients"])
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_fedetf_trains_on_real_cifar10(command, tmp_path):
    try:
        prepared.inspect("cifar10", prepared.data_dir(None))
    except UserError as error:
        pytest.skip(f"CIFAR-10 is not prepared: {error}")
    argv = [
        "--method=fedetf",
        "--dataset=cifar10",
        "--data.limit=500",
        "--data.partition=iid",
        "--federation.clients=2",
        "--federation.participants=2",
        "--local.epochs=5",
        "--rounds=2",
        "--data.client_test=split",
        *PLAIN,
    ]
    directory = directory_of(tmp_path, argv)
    finish(command(tmp_path, argv, quick=False))
    rows = rows_of(directory)
    assert [row["round"] for row in rows] == [1, 2]
    assert rows[1]["loss"] < rows[0]["loss"]
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["dataset"], summary["model"]) == ("cifar10", "cnn")
    assert 0.15 < summary["global_accuracy"] < 1  # chance is 0.1
