"""What every model costs: compile time, speed of local training, memory of a client.

python benchmarks/models.py                              # every model of the catalogue
python benchmarks/models.py --models resnet20 vgg11 --repeats 5

A round of FedAvg with a client on every core, on random 32x32 images, or on reviews of 200 words.
Each model has two processes of its own: the first compiles into an empty cache, the second finds
the program there. CPU seconds of compiling are the process's own, whatever else the machine does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import machine
from progress import Progressing
from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_nc.errors import UserError, unknown
from fedjax_nc.models.catalogue import MODELS

RESULTS = machine.UNTRACKED / "models.json"
COLD, WARM = 60.0, 5.0  # seconds a round may take to compile, and to load from the cache
COLUMNS = {
    "model": "model",
    "parameters": "parameters",
    "mflops": "MFLOPs",
    "cold": "compile s",
    "cold_cpu": "CPU s",
    "warm": "warm s",
    "images_per_second": "images/s",
    "gflops": "GFLOP/s",
    "memory_mb": "MB per\nclient",
}


def measure(model: str, batch_size: int, batches: int, repeats: int) -> dict[str, Any]:
    """In this process: seconds to trace and compile a round, then rounds."""
    import jax
    import ours
    import workload

    from fedjax_nc import devices, tree
    from fedjax_nc.host import dry_run
    from fedjax_nc.host.states import first_state
    from fedjax_nc.train import seeds
    from fedjax_nc.train.round import make_round
    from fedjax_nc.train.schedule import make_hyper

    devices.start(0)
    cores = len(jax.devices())
    job = ours.make_job(
        workload.Workload(
            model=model,
            clients=cores,
            participants=cores,
            images=batches * batch_size,
            batch_size=batch_size,
        )
    )
    state, hyper = seeds.take(first_state(job), 0), make_hyper(job.task, 0)
    fn: Any = make_round(job.task, job.executor)
    start, used = time.perf_counter(), time.process_time()
    program = fn.lower(state, hyper, job.data).compile()
    compile_seconds, compile_cpu = time.perf_counter() - start, time.process_time() - used
    operations, parameters = dry_run.round_flops(job), tree.num_elements(state.weights.params)
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        state = jax.block_until_ready(program(state, hyper, job.data)[0])
        seconds.append(time.perf_counter() - start)
    each = statistics.median(seconds[1:])  # the first warms up
    return {
        "parameters": parameters,
        "compile_seconds": compile_seconds,
        "compile_cpu": compile_cpu,
        "seconds": seconds[1:],
        "images_per_second": cores * batches * batch_size / each,
        "gflops": operations / each / 1e9,
        "memory_mb": program.memory_analysis().temp_size_in_bytes / 1e6,  # a client per device
        "executor": f"{job.executor.name} x{job.executor.devices}",
    }


def row_of(model: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Cold and warm, from processes of their own."""
    with tempfile.TemporaryDirectory() as cache:
        argv = [sys.executable, __file__, "--child", model, *_numbers(flags)]
        found = []
        for _ in range(2):
            done = subprocess.run(
                argv,
                env=os.environ
                | {
                    "JAX_COMPILATION_CACHE_DIR": cache,
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                },
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = found
    faster = max(found, key=lambda one: one["images_per_second"])
    return (
        {"model": model, "mflops": MODELS[model].mflops}
        | faster
        | {
            "cold": cold["compile_seconds"],
            "cold_cpu": cold["compile_cpu"],
            "warm": warm["compile_seconds"],
        }
    )


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table, and which targets are not met."""
    console, table = Console(highlight=False), Table(box=box.SIMPLE_HEAD, padding=0)
    for title in COLUMNS.values():
        table.add_column(title, justify="left" if title == "model" else "right")
    for row in rows:
        table.add_row(
            row["model"],
            f"{row['parameters']:,}",
            f"{row['mflops']:.1f}",
            *(f"{row[name]:.1f}" for name in list(COLUMNS)[3:]),
        )
    console.print(table)
    slow = [
        f"{r['model']} ({name})"
        for r in rows
        for name, limit in (("cold", COLD), ("warm", WARM))
        if r[name] > limit
    ]
    console.print(f"more than {COLD:.0f} s cold or {WARM:.0f} s warm:", ", ".join(slow) or "none")


def main(argv: list[str]) -> int:
    """Parse, run, write, print."""
    parser = argparse.ArgumentParser(description="Time every model on random data.")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="which ones")
    parser.add_argument("--batch_size", type=int, default=50, help="images per step")
    parser.add_argument("--batches", type=int, default=2, help="steps of a client in a round")
    parser.add_argument("--repeats", type=int, default=3, help="rounds that count")
    parser.add_argument("--out", default=str(RESULTS), help=f"results file (default: {RESULTS})")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    if flags.child:
        found = measure(flags.child, flags.batch_size, batches=flags.batches, repeats=flags.repeats)
        print(json.dumps(found))
        return 0
    try:
        for model in flags.models:
            if model not in MODELS:
                raise unknown("model", model, allowed=MODELS)
        if min(flags.repeats, flags.batches, flags.batch_size) < 1:
            raise UserError("--repeats, --batches and --batch_size: give numbers above zero")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = []
    with Progressing("models", len(flags.models)) as progress:
        for model in flags.models:
            rows.append(row_of(model, flags))
            progress.step(f"{model}: {rows[-1]['cold']:.0f} s to compile")
    found = {"batch_size": flags.batch_size, "batches": flags.batches, "rows": rows}
    machine.write(flags.out, "models", argv=argv, found=found)
    show(rows)
    return 0


def _numbers(flags: argparse.Namespace) -> list[str]:
    return [f"--{name}={getattr(flags, name)}" for name in ("batch_size", "batches", "repeats")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
