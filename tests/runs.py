"""Running commands and reading what they leave: what several tests share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from fedjax_nc import config
from fedjax_nc.cli import flags, main
from fedjax_nc.io import rundir

ROOT = Path(__file__).parents[1]
DATA = ["--dataset=digits", "--model=mlp", "--data.limit=300"]
FEW = ["--federation.clients=4", "--federation.participants=2", "--local.epochs=1"]
SAVING = ["--execution.checkpoint_every=2"]
PLAIN = ["--evaluation.no-personal", "--evaluation.no-finetune"]
SHARE = ["--method=scaffold", *DATA, *FEW, "--evaluation.no-finetune", "--rounds=3"]
FEDETF = "--method=fedetf(cycles=1, finetune_epochs=1)"
# five rounds, of which only the last two are tested
COMMAND = [
    FEDETF,
    *DATA,
    *FEW,
    *SAVING,
    "--rounds=5",
    "--evaluation.every=4",
    "--evaluation.last=2",
    "--evaluation.finetune",
    "--seeds",
    "0",
    "1",
]

SMALL = ["--dataset=digits", "--model=mlp", "--federation.clients=3", "--federation.participants=3"]
GROUPS = {
    "data": config.Data,
    "local": config.Local,
    "federation": config.Federation,
    "evaluation": config.Evaluation,
    "execution": config.Execution,
}


def deal(tmp_path, change):
    """A partition of `digits` over three clients, changed by the test."""
    parts = {str(k): list(range(k, 1437, 3)) for k in range(3)}
    change(parts)
    path = tmp_path / "parts.json"
    path.write_text(json.dumps(parts))
    return f"--data.partition_file={path}"


def directory_of(out, argv, seed=0):
    cfg = next(c for c in flags.parse(list(argv)).configs if c.seed == seed)
    return rundir.path_of(str(out), cfg)


def train(out, argv):
    """Run in this process, successfully; the first seed's directory."""
    assert main.train([*argv, f"--out={out}"]) == 0
    return directory_of(out, argv, flags.parse(list(argv)).configs[0].seed)


PEAK = """
import atexit, runpy, sys
status = lambda: dict(line.split(":") for line in open("/proc/self/status"))
atexit.register(lambda: print("peak", status()["VmHWM"].split()[0]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")


def peak_of(script, *argv):
    """The most megabytes that a command had in memory."""
    command = [sys.executable, "-c", PEAK, f"experiments/{script}", *argv]
    # what is freed goes back at once: else glibc keeps some of it, more or less by chance
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=env)
    return int(done.stdout.split("peak")[-1]) / 1e3


def rows_of(directory):
    """Every recorded round, without the time it took."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "compiled")} for row in rows]


def steps_of(directory):
    return sorted(int(p.name) for p in (directory / "ckpt").iterdir() if p.name.isdigit())


def state_of(directory, step=None):
    """A checkpoint as Orbax reads it, without any of the project's code."""
    step = steps_of(directory)[-1] if step is None else step
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(directory.absolute() / "ckpt" / str(step) / "state")


def files_of(directory):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in directory.rglob("*") if p.is_file()}


def assert_same_run(left, right):
    """The same record of every round and bit-identical final state."""
    assert rows_of(left) == rows_of(right)
    a, b = (jax.tree_util.tree_leaves_with_path(state_of(d)) for d in (left, right))
    assert [path for path, _ in a] == [path for path, _ in b]
    for (path, x), (_, y) in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y, str(path))
    timed = ("seconds_per_round", "compile_seconds", "clients_per_second")
    ends = [json.loads((d / "summary.json").read_text()) for d in (left, right)]
    for end in ends:
        assert all(end.pop(name) >= 0 for name in timed)
        assert end.pop("checksum")  # also of the times
    assert ends[0] == ends[1]
