"""Interrupts runs at random rounds and compares what they come to with uninterrupted ones.

    python benchmarks/interruptions.py --points 2               # of each kind and method
    python benchmarks/interruptions.py --points 0 --pairs 20    # two commands on one directory

Every run is stopped by kill -9 or SIGTERM again and again, goes on by the same command, and ends;
its records, summary and last checkpoint must equal those of a run that nobody stopped, bit for bit.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_nc.cli import flags
from fedjax_nc.io import checkpoint, rundir

ROOT = Path(__file__).parents[1]
ROUNDS = 60
SETTING = [
    *("--dataset=digits", "--model=mlp", "--data.limit=300", f"--rounds={ROUNDS}"),
    *("--federation.clients=4", "--federation.participants=2", "--local.epochs=1"),
    *("--evaluation.no-personal", "--evaluation.no-finetune", "--execution.checkpoint_every=7"),
]
TWO = "--distributed.num_processes=2"
CASES = {
    "fedavg": ["--method=fedavg"],
    "scaffold": ["--method=scaffold"],
    "moon, state on the host": ["--method=moon", "--execution.client_state_mb=0"],
    "fedblade": ["--method=fedblade"],
    "ditto": ["--method=ditto"],
    "fedetf": ["--method=fedetf"],
    "feddr_plus": ["--method=feddr_plus"],
    "feddw": ["--method=feddw"],
    "fedprox": ["--method=fedprox"],
    "fedadam": ["--method=fedadam"],
    "fedbabu with fd": ["--method=fedbabu | fd"],
    "odd clients": ["--method=scaffold", "--federation.dropout=0.3", "--federation.nan=skip"],
    "two seeds in parallel": ["--method=fedavg", "--seeds", "0", "1", "--seeds_parallel"],
    "streamed examples": ["--method=fedavg", "--execution.pool_mb=0"],
    "two processes": [
        *("--method=scaffold", "--execution.shard", "--execution.devices=1"),
        TWO,
    ],
}
TIMED = ("seconds", "compiled", "seconds_per_round", "compile_seconds", "clients_per_second")
# the checksum is also of the times, and seeds whose last checkpoints are not of the same round go
# on one after another
NOT_OF_A_RUN = (*TIMED, "checksum", "seeds_in_parallel")


def start(argv: list[str], out: Path) -> list[subprocess.Popen]:
    """Starts a run, of one process or two."""
    several = TWO in argv
    with socket.socket() as free:
        free.bind(("localhost", 0))
        where = f"--distributed.coordinator=localhost:{free.getsockname()[1]}"
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "fedjax_nc", "run", *argv, f"--out={out}"),
                *([where, f"--distributed.process_id={me}"] if several else []),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        for me in range(2 if several else 1)
    ]


def ended(processes: list[subprocess.Popen]) -> tuple[list[int], str]:
    """Waits for a run's processes; returns their exit codes and what they said."""
    said = "".join(process.communicate(timeout=600)[1] for process in processes)
    return [process.returncode for process in processes], said


def directories(argv: list[str], out: Path) -> list[Path]:
    """Returns the directory of each seed."""
    return [
        rundir.path_of(str(out), cfg) for cfg in flags.parse([w for w in argv if w != TWO]).configs
    ]


def rounds_of(directory: Path) -> int:
    """Returns how many rounds are recorded."""
    path = directory / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def saved(directory: Path) -> int:
    """Returns the round of the newest checkpoint."""
    return max((int(p.name) for p in (directory / "ckpt").glob("*") if p.name.isdigit()), default=0)


def untimed(content: dict[str, Any]) -> dict[str, Any]:
    """Returns a record without what no two runs have in common."""
    return {name: value for name, value in content.items() if name not in NOT_OF_A_RUN}


def content_of(directory: Path) -> tuple[list[Any], Any]:
    """Returns a finished run's records and summary, and its last checkpoint."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    summary = json.loads((directory / "summary.json").read_text())
    records = [untimed(json.loads(line)) for line in lines]
    return [*records, untimed(summary)], checkpoint.raw(directory / "ckpt", ROUNDS)


def same(left: Path, right: Path) -> bool:
    """Returns whether two runs came to the same, bit for bit."""
    (records, state), (others, other) = content_of(left), content_of(right)
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True)
    return records == others and all(np.array_equal(x, y) for x, y in pairs)


def interrupt(argv: list[str], out: Path, *, kind: signal.Signals, after: int) -> dict[str, Any]:
    """Stops a run once so many rounds are recorded; returns what of them was lost."""
    directory = directories(argv, out)[0]
    after = max(after, rounds_of(directory) + 1)  # rounds run, also those after a late stop before
    processes = start(argv, out)
    hit = random.choice(processes)
    while hit.poll() is None and rounds_of(directory) < after:
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.05))
    hit.send_signal(kind)
    codes, said = ended(processes)
    wanted = {signal.SIGKILL: (-9, 0), signal.SIGTERM: (75, 0)}[kind]  # it may have ended just now
    return {
        "good": hit.returncode in wanted and "Traceback" not in said,
        "code": max(map(abs, codes)),
        "lost": max(0, rounds_of(directory) - saved(directory)),
        "said": said,
    }


def attack(argv: list[str], whole: Path, folder: Path, points: int) -> dict[str, Any]:
    """Stops one run at so many random rounds by each signal, and lets it end."""
    found = []
    for kind in (signal.SIGKILL, signal.SIGTERM):
        out = folder / kind.name
        for after in sorted(random.sample(range(1, ROUNDS - 5), points)):
            found.append((kind, interrupt(argv, out, kind=kind, after=after)))
        codes, said = ended(start(argv, out))
        pairs = zip(directories(argv, out), directories(argv, whole), strict=True)
        equal = not any(codes) and all(same(a, b) for a, b in pairs)
        found.append((kind, {"good": equal, "code": 0, "lost": 0, "said": said}))
    row: dict[str, Any] = {"wrong": sum(not one["good"] for _, one in found)}
    for kind in (signal.SIGKILL, signal.SIGTERM):
        lost = [one["lost"] for k, one in found if k == kind and one["code"]]
        row |= {kind.name: len(lost), f"lost by {kind.name}": max(lost, default=0)}
    for _, one in found:
        if not one["good"]:
            print(one["code"], one["said"], file=sys.stderr)
    return row


def two_at_once(argv: list[str], whole: Path, folder: Path, pairs: int) -> dict[str, int]:
    """Starts the same command twice, so many times, and looks at what is left."""
    count = {"pairs": pairs, "refused": 0, "wrong": 0}
    for number in range(pairs):
        out = folder / str(number)
        first = start(argv, out)
        time.sleep(random.uniform(0, 3))
        both = [ended(processes) for processes in (first, start(argv, out))]
        codes, said = [max(codes) for codes, _ in both], [text for _, text in both]
        told = ["is being written by another process" in text for text in said]
        good = all(c == 0 or (c == 2 and t) for c, t in zip(codes, told, strict=True))
        good &= 0 in codes and same(directories(argv, out)[0], directories(argv, whole)[0])
        count["refused"] += codes.count(2)
        count["wrong"] += not good
    return count


def main() -> None:
    """Prints a table of what was tried, what was lost and what was wrong."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--points", type=int, default=1, help="of each signal and case")
    parser.add_argument("--pairs", type=int, default=0, help="two commands on one directory")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random.seed(given.seed)
    head = ("SIGKILL", "lost by SIGKILL", "SIGTERM", "lost by SIGTERM", "wrong")
    with tempfile.TemporaryDirectory() as place:
        for i, name in enumerate(given.cases):
            argv, folder = [*CASES[name], *SETTING], Path(place) / str(i)
            codes, said = ended(start(argv, folder / "whole"))
            assert not any(codes), said
            if given.points:
                row = attack(argv, folder / "whole", folder=folder, points=given.points)
                if not i:
                    print(f"| case | {' | '.join(head)} |\n|---{'|---' * len(head)}|")
                print(f"| {name} | {' | '.join(str(row[h]) for h in head)} |", flush=True)
            if given.pairs:
                print(name, two_at_once(argv, folder / "whole", folder / "two", given.pairs))


if __name__ == "__main__":
    main()
