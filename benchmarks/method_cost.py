"""What methods cost beside FedAvg on the same model: time per local step and round, peak memory.

python benchmarks/method_cost.py                                  # every method with a target
python benchmarks/method_cost.py --model=resnet8 --methods feddr_plus moon "fedavg | kd"
python benchmarks/method_cost.py --terms --methods fedblade       # ms of each term of the objective

One client on one device with one thread, as clients run by default on a CPU. A step is the local
loop alone; a round adds what follows it, such as FedDW's pass over the client's data.
"""

import argparse
import itertools
import os
import sys
import time
from typing import Any

import chart
import jax
import jax.numpy as jnp
import machine
import numpy as np
import ours
import terms
import workload
from flax import linen as nn
from progress import Progressing
from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_nc import devices, tree
from fedjax_nc.errors import UserError
from fedjax_nc.host.assemble import Job
from fedjax_nc.host.states import first_state
from fedjax_nc.models.conv import Dense
from fedjax_nc.models.resnet import ResNet
from fedjax_nc.train import seeds
from fedjax_nc.train.client import make_broadcast, make_rows, train_client
from fedjax_nc.train.round import make_round
from fedjax_nc.train.schedule import make_hyper

RESULTS = machine.UNTRACKED / "method_cost.json"
EPOCHS = 5
WIDE = "resnet8 + dense 1280"  # no model of the catalogue has that many features
LDDECORR = "fedavg | decorr(kind='lddecorr', beta=0.005)"
MODEL = {"fedalign": "resnet8", LDDECORR: WIDE}  # of methods that need a certain one
STEP = {  # the most a step may take, as a multiple of FedAvg's
    "fedetf": 1.1,
    "feddw": 1.1,
    "dot_regression": 1.1,
    "feddr_plus": 1.45,
    "fedavg | kd": 1.45,
    "fedavg | ntd": 1.45,
    "fedavg | ld": 1.45,
    "fedavg | fd": 1.45,
    "fedavg | kd | fd | ld": 1.5,  # three terms, one teacher
    "moon": 1.8,
    "fedalign": 1.35,
    LDDECORR: 1.25,
}
MEMORY = {"feddw": 1.1, "fedalign": 1.1}
COLUMNS = (
    "method",
    "model",
    "ms per\nstep",
    "x FedAvg\nstep",
    "target",
    "",
    "x FedAvg\nround",
    "memory\nMB",
    "x FedAvg\nmemory",
    "target",
    "",
)


class Wide(nn.Module):
    """ResNet-8 and a dense layer to 1280 features."""

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Features of a batch, and the map after each stage."""
        blocks, levels, x = ResNet((1, 1, 1))(x, train=train, mask=mask)
        return blocks, levels, Dense(1280)(x)


def make_job(method: str, model: str, *, batch_size: int, batches: int) -> Job:
    """Assembles one client that trains by this method."""
    return ours.make_job(
        workload.Workload(
            method,
            "resnet8" if model == WIDE else model,
            clients=1,
            participants=1,
            images=batches * batch_size,
            batch_size=batch_size,
            epochs=EPOCHS,
            executor="scan",
            devices=1,
        ),
        module=Wide() if model == WIDE else None,
    )


def compiled(job: Job) -> tuple[Any, Any, float]:
    """Returns functions that time the local loop and the round, and megabytes of the round."""
    task, state, data = job.task, seeds.take(first_state(job), 0), job.data
    hyper = make_hyper(task, 0)

    def train(state, hyper, data):
        rows = make_rows(
            task, state.key, ids=jnp.arange(1), data=data, client_state=dict(state.clients)
        )
        broadcast = make_broadcast(task, state, hyper=hyper, pool=data.pool)
        return train_client(task, broadcast, row=tree.take(rows, 0))[1]

    def seconds(program) -> float:
        mine = jax.block_until_ready(jax.tree.map(jnp.copy, state))  # a round consumes it
        start = time.perf_counter()
        jax.block_until_ready(program(mine, hyper, data))
        return time.perf_counter() - start

    functions: tuple[Any, Any] = jax.jit(train), make_round(task, job.executor)
    step, whole = (fn.lower(state, hyper, data).compile() for fn in functions)
    memory = whole.memory_analysis()
    peak = memory.argument_size_in_bytes + memory.output_size_in_bytes
    peak += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    return lambda: seconds(step), lambda: seconds(whole), peak / 1e6


def measure(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per method; in every turn FedAvg runs right before or after it."""
    cases: list[tuple[str, str]] = [(m, MODEL.get(m) or flags.model) for m in flags.methods]
    wanted = [*(("fedavg", model) for _, model in cases), *cases]
    jobs = {
        case: make_job(*case, batch_size=flags.batch_size, batches=flags.batches) for case in wanted
    }
    programs, times = {}, {case: [] for case in cases}
    with Progressing("method cost", len(jobs) + len(cases) * (flags.repeats + 1)) as progress:
        for case, job in jobs.items():
            programs[case] = compiled(job)
            progress.step(f"compiled {', '.join(case)}")
        for turn, case in itertools.product(range(flags.repeats + 1), cases):
            order = 1 if turn % 2 else -1  # each is first as often
            pair = [programs[case], programs["fedavg", case[1]]][::order]
            taken = [[one[what]() for one in pair][::order] for what in (0, 1)]
            times[case] += [taken] if turn else []  # the first warms up
            progress.step(f"turn {turn} of {flags.repeats}: {', '.join(case)}")
    rows = []
    for case in cases:
        seconds = np.array(times[case])  # [turn, step or round, method or FedAvg]
        ratios = seconds[:, :, 0] / seconds[:, :, 1]
        memory, fedavg = programs[case][-1], programs["fedavg", case[1]][-1]
        step_ms = 1e3 * np.median(seconds[:, 0, 0]) / (EPOCHS * flags.batches)
        rows.append(
            {
                "method": case[0],
                "model": case[1],
                "step_ms": float(step_ms),
                "step_ratio": float(np.median(ratios[:, 0])),
                "step_limit": STEP.get(case[0]),
                "round_ratio": float(np.median(ratios[:, 1])),
                "step_ratios": ratios[:, 0].tolist(),
                "memory_limit": MEMORY.get(case[0]),
                "memory_mb": memory,
                "memory_ratio": memory / fedavg,
            }
        )
    return rows


def verdict(row: dict[str, Any], what: str) -> list[str]:
    """The target of the step or the memory and whether it is met; blank if there is none."""
    limit, met = row[f"{what}_limit"], row[f"{what}_ratio"] <= (row[f"{what}_limit"] or 0)
    return [chart.ratio(limit), "met" if met else "not met"] if limit else ["", ""]


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table, and which targets are not met."""
    console, table = Console(highlight=False), Table(box=box.SIMPLE_HEAD, padding=0)
    if not console.is_terminal:  # a file has room for every column
        console.width = 160
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in COLUMNS[:2] else "right")
    for r in rows:
        table.add_row(
            r["method"],
            r["model"],
            f"{r['step_ms']:.2f}",
            chart.ratio(r["step_ratio"]),
            *verdict(r, "step"),
            chart.ratio(r["round_ratio"]),
            f"{r['memory_mb']:.1f}",
            chart.ratio(r["memory_ratio"]),
            *verdict(r, "memory"),
        )
    wide = any(r["model"] == WIDE for r in rows)
    console.print(table, f"'{WIDE}' is a model of this benchmark only\n" if wide else "", end="")
    missed = [
        f"{r['method']} ({what})"
        for r in rows
        for what in ("step", "memory")
        if verdict(r, what)[1] == "not met"
    ]
    console.print("targets not met:", ", ".join(missed) or "none")


def measure_terms(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per term of every method, in each of its phases."""
    cases = [(m, MODEL.get(m) or flags.model) for m in flags.methods]
    jobs = {case: make_job(*case, batch_size=flags.batch_size, batches=1) for case in cases}
    return terms.measure(jobs, flags.repeats)


def show_terms(rows: list[dict[str, Any]]) -> None:
    """Print milliseconds of forward and backward pass per batch, a line per term."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for name in ("method", "model", "phase", "term", "ms per\nbatch"):
        table.add_column(name, justify="right" if name.startswith("ms") else "left")
    for r in rows:
        table.add_row(r["method"], r["model"], str(r["phase"]), r["term"], f"{r['ms']:.4f}")
    Console(highlight=False).print(table)


def main(argv: list[str]) -> int:
    """Parse, run, write, print."""
    parser = argparse.ArgumentParser(description="Time methods against FedAvg on random images.")
    parser.add_argument("--model", default="cnn", help="of methods that do not need a certain one")
    parser.add_argument("--methods", nargs="+", default=list(STEP), help="as for run.py")
    parser.add_argument("--batch_size", type=int, default=64, help="images per step")
    parser.add_argument("--batches", type=int, default=4, help="of a client: an epoch's steps")
    parser.add_argument("--repeats", type=int, default=9, help="turns that count")
    parser.add_argument("--terms", action="store_true", help="time each term of the objective")
    parser.add_argument("--out", default="", help=f"results file (default: {RESULTS})")
    flags = parser.parse_args(argv)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("NPROC", "1")  # as `start_jax` does when every core has a device
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    try:
        if min(flags.repeats, flags.batches, flags.batch_size) < 1:
            raise UserError("--repeats, --batches and --batch_size: give numbers above zero")
        devices.start(1)
        rows = measure_terms(flags) if flags.terms else measure(flags)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = {"batch_size": flags.batch_size, "epochs": EPOCHS}
    found |= {"terms" if flags.terms else "rows": rows}
    out = flags.out or str(RESULTS.with_stem("terms") if flags.terms else RESULTS)
    machine.write(out, "method_cost", argv=argv, found=found)
    (show_terms if flags.terms else show)(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
