"""Runs on a disk that is too small, of so many sizes, and with more room to the end.

    python benchmarks/full_disk.py --sizes 10    # as root, who may mount a tmpfs

Every run must end with exit code 3 and one line, leave each checkpoint that was good as it was, and
go on by the same command once there is room, to what a run comes to whose disk was never full, bit
for bit. Sizes are from 4 kB, where no file fits, to just below what a whole run takes at its end.
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from interruptions import directories, ended, same, start

from fedjax_nc.errors import UserError
from fedjax_nc.io import checkpoint, facts

ROOM = 64 << 10  # kB that are enough for everything
ARGV = [
    *("--method=fedavg", "--dataset=digits", "--model=mlp", "--data.limit=300", "--rounds=60"),
    *("--federation.clients=4", "--federation.participants=2", "--local.epochs=1"),
    *("--evaluation.no-personal", "--evaluation.no-finetune", "--execution.checkpoint_every=15"),
]
HEAD = ("kB", "exit code", "saved after round", "lost checkpoints", "goes on to the same", "said")


class Row(NamedTuple):
    """What came of one size, as the table's row."""

    size: int
    code: int
    saved: int
    lost: int
    equal: bool
    said: str

    @property
    def good(self) -> bool:
        """Returns whether all that is promised was kept."""
        return self.code == 3 and not self.lost and self.equal and self.said.startswith("error: ")


@contextlib.contextmanager
def disk(size: int) -> Iterator[Path]:
    """Mounts an empty file system in memory of so many kB."""
    with tempfile.TemporaryDirectory() as place:
        mount("-t", "tmpfs", "-o", f"size={size}k", "fedjax_nc", place)
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


def mount(*words: str) -> None:
    """Mounts, or ends with the system's reason on one line."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(done.stderr.split())}: start this as root where mounting is allowed")


def stopped(out: Path) -> tuple[int, list[str], set[int]]:
    """Runs until the disk is full; returns the exit code, what was said, and the rounds saved."""
    processes, seen = start(ARGV, out), set()
    [steps] = [directory / "ckpt" for directory in directories(ARGV, out)]
    while processes[0].poll() is None:
        seen |= set(facts.steps(steps))
        time.sleep(0.002)
    codes, said = ended(processes)
    return codes[0], said.splitlines(), seen | set(facts.steps(steps))


def is_good(steps: Path, step: int) -> bool:
    """Returns whether a checkpoint is there, and what was saved."""
    with contextlib.suppress(UserError):
        checkpoint.raw(steps, step)
        return True
    return False


def attempt(size: int, whole: Path) -> Row:
    """Runs on a disk of so many kB, looks at what is left, makes room and runs on."""
    with disk(size) as place:
        out = place / "runs"
        code, lines, seen = stopped(out)
        [directory] = directories(ARGV, out)
        kept = sorted(seen)[-2:]  # older ones were given up for newer ones
        lost = sum(not is_good(directory / "ckpt", step) for step in kept)
        mount("-o", f"remount,size={ROOM}k", str(place))
        codes, after = ended(start(ARGV, out))
        equal = codes == [0] and same(directory, directories(ARGV, whole)[0])
        alone = sum(line.startswith(("error", "Traceback")) for line in lines) == 1
        said = lines[-1] if lines and alone else " / ".join(lines)
        if not equal:
            print(after, file=sys.stderr)
        said = said.replace(str(out), out.name)
        return Row(size, code, saved=max(seen, default=0), lost=lost, equal=equal, said=said)


def sizes(count: int, most: int) -> Iterator[int]:
    """Yields kB, in pages of 4, each about the same factor above the one before."""
    last = 0
    for i in range(count):
        last = max(last + 4, 4 * int((most / 4 - 1) ** (i / max(1, count - 1))))
        yield last


def main() -> int:
    """Prints a row for each size; returns whether any was not as promised."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--sizes", type=int, default=3, help="how many sizes are tried")
    count = parser.parse_args().sizes
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch)
        with disk(ROOM) as place:
            codes, said = ended(start(ARGV, place / "runs"))
            assert codes == [0], said
            most = shutil.disk_usage(place).used >> 10
            shutil.copytree(place / "runs", whole, dirs_exist_ok=True)
        print(f"a whole run takes {most} kB at its end\n")
        print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        wrong = 0
        for size in sizes(count, most):
            row = attempt(size, whole)
            cells = (
                row.size,
                row.code,
                row.saved,
                row.lost,
                "yes" if row.equal else "no",
                row.said,
            )
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            wrong += not row.good
    print(f"\n{count} sizes, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
