"""Damages checkpoints at random, resumes, and counts what came of it.

python benchmarks/faults.py --tries 1000
"""

import argparse
import collections
import dataclasses
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import devices
from fedjax_nc.cli import flags, main
from fedjax_nc.errors import UserError
from fedjax_nc.host import loop
from fedjax_nc.host.assemble import assemble
from fedjax_nc.host.states import place, stack_states, state_of_seed
from fedjax_nc.io import checkpoint, facts, rundir
from fedjax_nc.train import schedule

ROUNDS = 6
COMMAND = [
    *("--dataset=digits", "--model=mlp", "--data.limit=300", "--local.epochs=1"),
    *("--federation.clients=4", "--federation.participants=2", "--execution.checkpoint_every=2"),
    *("--evaluation.no-personal", "--evaluation.no-finetune", f"--rounds={ROUNDS}"),
]
WAYS = ("flip", "cut", "delete", "zero", "garbage", "folder")


def damage(rng: random.Random, folder: Path) -> str:
    """Damages one file, or removes one folder, below a folder of checkpoints."""
    way = rng.choices(WAYS, (60, 10, 10, 10, 5, 5))[0]
    if way == "folder":
        target = rng.choice(sorted(p for p in folder.rglob("*") if p.is_dir()))
        shutil.rmtree(target)
    else:
        target = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
        data = bytearray(target.read_bytes())
        start = rng.randrange(len(data)) if data else 0
        if way == "delete":
            target.unlink()
        elif way == "flip" and data:
            data[start] ^= 1 << rng.randrange(8)
        elif way == "cut":
            del data[start:]
        elif way in ("zero", "garbage"):
            stop = min(len(data), start + rng.randrange(1, 512))
            data[start:stop] = bytes(stop - start) if way == "zero" else rng.randbytes(stop - start)
        if way != "delete":
            target.write_bytes(data)
    return f"{way} of {target.relative_to(folder)}"


class Method:
    """A finished run of a method, its states by round, and its compiled rounds."""

    def __init__(self, spec: str, out: Path) -> None:
        """Trains it without interruption."""
        argv = [f"--method={spec}", *COMMAND]
        assert main.train([*argv, f"--out={out}"]) == 0
        cfg = flags.parse(argv).configs[0]
        self.spec, self.job = spec, assemble(cfg)
        self.directory = rundir.path_of(str(out), cfg)
        self.template = state_of_seed(self.job)
        self.rows = rundir.results(self.directory)[0]
        self.run = (facts.newest(self.directory / "ckpt") or {})["run"]  # as the command compares
        self.rounds = loop.make_rounds_of(self.job, stack_states([self.template]))
        steps = checkpoint.steps(self.directory / "ckpt")
        self.saved = {0: self.template} | {
            step: checkpoint.load(self.directory / "ckpt", self.template, step=step)
            for step in steps
        }

    def finish(self, state):
        """Trains to the last round."""
        done, job = int(state.round), self.job
        # what it is given is donated
        state = place(job, stack_states([jax.tree.map(lambda x: x.copy(), state)]))
        examples = job.feed.clients(np.zeros((ROUNDS, 2), int))
        for number in range(done, ROUNDS):
            hyper = schedule.make_hyper(job.task, number)
            rates = np.full(loop.AT_ONCE, hyper.lr)
            state, _ = self.rounds(state, hyper._replace(lr=rates), 1, next(examples))
        return jax.tree.map(lambda x: x[0], dataclasses.replace(state))


def same(left, right) -> bool:
    """Returns whether two states are equal bit for bit."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(_bits(a) == _bits(b) for a, b in pairs)


def _bits(x) -> bytes:
    key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if key else x).tobytes()


def attempt(method: Method, rng: random.Random, folder: Path) -> tuple[str, str]:
    """Damages a copy of the checkpoints once to three times, resumes; returns what came of it."""
    shutil.copytree(method.directory / "ckpt", folder / "ckpt")
    shutil.copy(method.directory / "metrics.jsonl", folder)
    done = "; ".join(damage(rng, folder / "ckpt") for _ in range(rng.choice((1, 1, 1, 2, 3))))
    try:
        found = checkpoint.restore(folder / "ckpt", method.template, run=method.run)
    except UserError as error:  # damage is no other run, and the same command must go on
        return "refused", f"{done}: {error}"
    except Exception:
        return "traceback", f"{done}\n{traceback.format_exc()}"
    step = 0 if found.state is None else int(found.state.round)
    state = method.template if found.state is None else found.state
    exact = same(state, method.saved[step]) and [*found.rows] == method.rows[:step]
    exact = exact and same(method.finish(state), method.saved[ROUNDS])
    names = {ROUNDS: "newest checkpoint", 0: "from round 1"}
    return (names.get(step, "earlier checkpoint") if exact else "wrong"), done


def run() -> int:
    """Runs all tries and prints the counts by method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tries", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "scaffold", "moon"])
    given = parser.parse_args()
    devices.start(0)
    rng, failed = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        for spec in given.methods:
            method = Method(spec, Path(scratch) / "runs")
            counts: collections.Counter[str] = collections.Counter()
            for _ in range(-(-given.tries // len(given.methods))):
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    outcome, done = attempt(method, rng, Path(folder))
                counts[outcome] += 1
                if outcome in ("wrong", "traceback", "refused"):
                    failed += 1
                    print(f"{spec}: {outcome}: {done}", flush=True)
            told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
            print(f"{spec}: {counts.total()} tries: {told}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(run())
