"""What a checkpoint costs: rounds of the fixed workload after a save beside rounds without one.

python benchmarks/saving.py               # 240 rounds, about six minutes on two cores

One run saves every twenty rounds. Of each twenty, the first ten have the save in them, whose end is
in the background, and the last ten have none: their ratio is what saving every ten rounds costs,
which is the default. Both kinds alternate, so that what else the machine does hits both alike.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import workload

from fedjax_nc.cli import main
from fedjax_nc.io import records

BETWEEN = 20  # rounds from one save to the next; the default is half of it


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
    """Prints seconds of a round of both kinds, and the share that saving costs."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=11, help="of twenty rounds, after the first")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = seconds_of(given.blocks, Path(place)).mean(2)
    saved, not_saved = np.median(found, axis=0)
    low, share, high = 100 * (np.quantile(found[:, 0] / found[:, 1], (0.25, 0.5, 0.75)) - 1)
    print(f"{saved:.3f} s a round with a save in ten rounds, {not_saved:.3f} without")
    print(f"{share:+.2f} % (median of {len(found)} ratios; quartiles {low:+.2f} and {high:+.2f})")


if __name__ == "__main__":
    run()
