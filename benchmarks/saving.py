"""Measures what a checkpoint costs: rounds of the fixed workload with a save and without one.

python benchmarks/saving.py               # 240 rounds, about six minutes on two cores

One run saves every fourth round. The two rounds after a save, whose end is in the background, stand
beside the next two, which have none: what they take longer is one save's cost, and a tenth of it
falls on each round at the default interval. Both kinds alternate, so that what else the machine
does hits both alike.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import workload

from fedjax_nc.cli import main
from fedjax_nc.config import RunConfig
from fedjax_nc.io import records

BETWEEN = 4  # rounds from one save to the next


def seconds_of(blocks: int, place: Path) -> np.ndarray:
    """Returns the seconds of rounds [blocks, with a save or without one, rounds]."""
    w = workload.Workload()
    x, y = workload.arrays(w)
    np.savez(place / "random.npz", train_x=x, train_y=y, test_x=x[:1000], test_y=y[:1000])
    rounds = (blocks + 1) * BETWEEN  # the first ones compile
    argv = [
        *("--method=fedavg", f"--dataset={place / 'random.npz'}", f"--model={w.model}"),
        *("--data.partition=iid", "--data.client_test=dealt", f"--rounds={rounds}"),
        *(f"--federation.clients={w.clients}", f"--federation.participants={w.participants}"),
        *(f"--local.batch_size={w.batch_size}", f"--local.epochs={w.epochs}", f"--local.lr={w.lr}"),
        *(f"--evaluation.every={rounds}", "--evaluation.no-personal", "--evaluation.no-finetune"),
        *(f"--execution.checkpoint_every={BETWEEN}", "--execution.save_seconds=0"),
        f"--out={place / 'runs'}",
    ]
    if main.train(argv) != 0:
        raise SystemExit("the run did not end")
    log = next((place / "runs").rglob("metrics.jsonl"))
    seconds = [row["seconds"] for row in records.read(log)][BETWEEN:]
    return np.reshape(seconds, (blocks, 2, BETWEEN // 2))


def run() -> None:
    """Prints the seconds of a round and of a save, and the share of saves every ten rounds."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=60, help="of four rounds, after the first")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = seconds_of(given.blocks, Path(place)).sum(2)
    cost = found[:, 0] - found[:, 1]
    of_a_round = np.median(found[:, 1]) / (BETWEEN // 2)
    every = RunConfig().execution.checkpoint_every
    low, save, high = np.quantile(cost, (0.25, 0.5, 0.75))
    error = 1.25 * np.std(cost, ddof=1) / len(cost) ** 0.5  # of a median, were they normal
    print(f"a round: {of_a_round:.3f} s (median of {len(found)} pairs of rounds without a save)")
    print(f"a save: {1e3 * save:+.0f} ms +- {1e3 * error:.0f} (median of as many differences;")
    print(f"  quartiles {1e3 * low:+.0f} and {1e3 * high:+.0f})")
    share = 100 / every / of_a_round
    print(f"every {every} rounds: {share * save:+.2f} % +- {share * error:.2f}")


if __name__ == "__main__":
    run()
