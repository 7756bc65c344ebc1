"""How time and memory of a round grow with clients, participants, model size and devices.

python benchmarks/scaling.py                                  # every axis, into runs/benchmarks
python benchmarks/scaling.py --axis stored devices --out benchmarks/results/scaling.json

Each point is a process of its own on generated 8x8 pictures in a file, of which a round reads those
of its participants: `--execution.pool_mb=0`. CPU seconds are of all its threads, so that they tell
something on a machine with other work. Memory is the most that the process held in rounds after
those that compile; the peak is of everything. Results of other axes in the file stay.
"""

import argparse
import ctypes
import dataclasses
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import machine
from progress import Progressing

from fedjax_nc.errors import Fault

SIDE, CLASSES, TESTS = 8, 10, 1000
EXAMPLES = 5  # of a client, one of which is its test
ROUNDS, WARM_UP = 9, 3  # of which the last count; the first compile
LAST, FLAT = 3, 20  # points that an exponent is fitted to; the least ratio of a chart's ends
BLOCK = 10_000  # pictures that are generated at once
RESULTS = machine.UNTRACKED / "scaling.json"


@dataclass(frozen=True)
class Point:
    """One point of an axis: the settings of a run that is measured."""

    method: str = "fedavg"
    clients: int = 1000
    participants: int = 10
    width: int = 64  # of both hidden layers
    devices: int = 1
    command: bool = False  # three rounds as the command runs them, records and tests included


@dataclass(frozen=True)
class Axis:
    """Points of which one number differs."""

    field: str
    label: str
    points: tuple[Point, ...]

    def of(self, point: Point | dict[str, Any]) -> float:
        """Returns what is on the axis."""
        content = point if isinstance(point, dict) else dataclasses.asdict(point)
        return float(content["parameters"] if self.field == "width" else content[self.field])


def _vary(field: str, values: tuple[int, ...], base: Point) -> tuple[Point, ...]:
    return tuple(replace(base, **{field: value}) for value in values)


AXES = {
    "stored": Axis(
        "clients",
        "stored clients, fedavg",
        _vary("clients", (100, 1000, 10_000, 100_000, 1_000_000), base=Point()),
    ),
    "participants": Axis(
        "participants",
        "participants of 2,000, fedavg",
        _vary("participants", (10, 32, 100, 316, 1000), base=Point(clients=2000)),
    ),
    "model": Axis(
        "width",
        "parameters, fedavg",
        _vary("width", (16, 64, 256, 1024, 2048), base=Point(clients=100)),
    ),
    "devices": Axis(
        "devices",
        "virtual devices, scaffold of 2,000 clients",
        _vary("devices", (1, 2, 8), base=Point(method="scaffold", clients=2000, width=128)),
    ),
    "command": Axis(
        "clients",
        "stored clients, whole command",
        _vary("clients", (1000, 10_000, 100_000), base=Point(command=True)),
    ),
}
QUICK = _vary("clients", (1000, 50_000), base=Point())


def settings(point: Point) -> Any:
    """Returns the configuration of a point."""
    from fedjax_nc import config

    cfg = config.RunConfig(
        method=point.method,
        dataset="generated",
        model="mlp",
        rounds=3,
        data=config.Data(partition="iid", test_fraction=0.2, normalise="half"),
        local=config.Local(batch_size=EXAMPLES, epochs=1),
        federation=config.Federation(clients=point.clients, participants=point.participants),
        evaluation=config.Evaluation(every=3, personal=False, finetune=False),
        execution=config.Execution(
            devices=point.devices, shard=point.devices > 1, pool_mb=0, checkpoint_every=3
        ),
    )
    config.validate(cfg)
    return cfg


def brought(point: Point, folder: Path) -> Any:
    """Returns a network of the point's size, and random pictures in a file."""
    import numpy as np

    from fedjax_nc.data.arrays import Arrays
    from fedjax_nc.data.spec import DatasetSpec
    from fedjax_nc.host.assemble import Given
    from fedjax_nc.models.mlp import MLP

    rng, count, shape = np.random.default_rng(0), point.clients * EXAMPLES, (SIDE, SIDE, 1)
    path = folder / "pictures"
    with path.open("wb") as file:  # written, not mapped: what is mapped counts as memory
        for start in range(0, count, BLOCK):
            size = (min(BLOCK, count - start), *shape)
            file.write(rng.integers(0, 256, size, dtype=np.uint8).tobytes())
    x = np.memmap(path, np.uint8, "r", shape=(count, *shape))
    test_x = rng.integers(0, 256, (TESTS, *shape), dtype=np.uint8)
    y, test_y = (rng.integers(0, CLASSES, n, dtype=np.int32) for n in (count, TESTS))
    spec = DatasetSpec(name="generated", classes=CLASSES, shape=shape, train=count, test=TESTS)
    module = MLP(widths=(point.width, point.width))
    return Given(model=module, dataset=(spec, Arrays(x, y, test_x=test_x, test_y=test_y)))


def rounds_of(job: Any) -> Iterator[Any]:
    """Yields the state after every round, run as the loop of a command runs them."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from fedjax_nc.host.loop import AT_ONCE, make_rounds_of
    from fedjax_nc.host.states import first_state
    from fedjax_nc.train import schedule

    state = first_state(job)
    draw = jax.jit(lambda n: schedule.participants(state.key[0], n, federation=job.task.federation))
    groups = [np.asarray(draw(number)) for number in range(ROUNDS)]
    rounds_fn, hyper = make_rounds_of(job, state), schedule.make_hyper(job.task, 0)
    hyper = hyper._replace(lr=jnp.full(AT_ONCE, hyper.lr))
    for data in job.feed.clients(groups):
        state, _ = rounds_fn(state, hyper, 1, data)
        yield state


def measure(point: Point) -> dict[str, Any]:
    """Runs a point in this process, which has not used jax before."""
    from fedjax_nc import devices

    devices.start(point.devices)
    with tempfile.TemporaryDirectory() as place:
        given = brought(point, Path(place))
        used = time.process_time()
        found = _command(point, given, Path(place)) if point.command else _rounds(point, given)
        found |= {"cpu_seconds_in_all": time.process_time() - used}
    return {"peak_mb": _status("VmHWM")} | found


def _rounds(point: Point, given: Any) -> dict[str, Any]:
    import jax

    from fedjax_nc import tree
    from fedjax_nc.host.assemble import assemble

    job = assemble(settings(point), given=given)
    clock: list[tuple[float, float]] = []
    state: Any = None
    peak = 0.0
    for state in rounds_of(job):
        jax.block_until_ready(state)
        if len(clock) == WARM_UP:
            peak = _status("VmHWM")
            _forget_compiling()
        clock.append((time.perf_counter(), time.process_time()))
    steady = _status("VmHWM")
    pairs = list(zip(clock[WARM_UP:], clock[WARM_UP + 1 :], strict=False))
    clients = jax.tree.leaves(state.clients)
    held = [[shard.data.nbytes for shard in x.addressable_shards] for x in clients]
    return {
        "seconds": statistics.median(b[0] - a[0] for a, b in pairs),
        "cpu_seconds": statistics.median(b[1] - a[1] for a, b in pairs),
        "peak_mb": max(peak, steady),
        "rounds_mb": steady,
        "table_mb": tree.num_bytes((job.data.train, job.data.client_test)) / 1e6,
        "parameters": tree.num_elements(state.weights.params),
        "state_mb": tree.num_bytes(state.clients) / 1e6,
        "state_mb_of_devices": [sum(of_one) / 1e6 for of_one in zip(*held, strict=True)],
    }


def _command(point: Point, given: Any, folder: Path) -> dict[str, Any]:
    import numpy as np

    from fedjax_nc.host.reporting import Quiet
    from fedjax_nc.host.session import Request, run_seeds

    cfg = settings(point)
    [outcome] = run_seeds(Request((cfg,), given, out=str(folder)), Quiet())
    assert outcome.job is not None and outcome.directory is not None
    tables = (outcome.job.data.train, outcome.job.data.client_test)
    return {
        "table_mb": sum(np.asarray(x).nbytes for table in tables for x in table) / 1e6,
        "partition_mb": (outcome.directory / "partition.npz").stat().st_size / 1e6,
    }


def _forget_compiling() -> None:
    """Gives back what compiling freed, and lets the high-water mark begin again.

    How much memory compiling takes differs by tens of megabytes from one time to the next.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{name}:"))


def row_of(point: Point) -> dict[str, Any]:
    """Measures a point in a process of its own."""
    content = dataclasses.asdict(point)
    # what is freed goes back at once: else glibc keeps some of it, more or less by chance
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}
    env |= {"JAX_ENABLE_COMPILATION_CACHE": "false"}  # the same for the first run and later ones
    argv = [sys.executable, __file__, "--child", json.dumps(content)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    if done.returncode:
        raise Fault(f"{content}: {done.stderr[-2000:]}")
    return content | json.loads(done.stdout.splitlines()[-1])


def exponent(x: list[float], y: list[float]) -> float:
    """Fits y = a x^b by least squares of the logarithms; returns b."""
    u, v = [math.log(a) for a in x], [math.log(b) for b in y]
    return statistics.linear_regression(u, v).slope


def slope(rows: list[dict[str, Any]]) -> float:
    """Returns the bytes of memory a stored client takes beyond the index table."""
    beyond = [(_memory(row) - row["table_mb"]) * 1e6 for row in rows]
    return statistics.linear_regression([float(row["clients"]) for row in rows], beyond).slope


def _memory(row: dict[str, Any]) -> float:
    return row.get("rounds_mb", row["peak_mb"])


def _time(row: dict[str, Any]) -> float:
    return row["cpu_seconds_in_all"] if row["command"] else row["cpu_seconds"]


def fitted(axis: Axis, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the exponents of time and memory over the largest points, where what grows shows.

    Where the number of stored clients varies, it also returns the bytes that each of them takes.
    """
    last = rows[-LAST:]
    x = [axis.of(row) for row in last]
    found = {"time": exponent(x, [*map(_time, last)]), "memory": exponent(x, [*map(_memory, last)])}
    if all(row.get("state_mb") for row in last):
        found |= {"state of a device": exponent(x, [max(r["state_mb_of_devices"]) for r in last])}
    return found | ({"bytes of a client": slope(rows)} if axis.field == "clients" else {})


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "CPU s a round": lambda r: f"{r['cpu_seconds']:.3f}" if "cpu_seconds" in r else "",
    "s a round": lambda r: f"{r['seconds']:.3f}" if "seconds" in r else "",
    "MB of rounds": lambda r: f"{r['rounds_mb']:.0f}" if "rounds_mb" in r else "",
    "peak MB": lambda r: f"{r['peak_mb']:.0f}",
    "index table MB": lambda r: f"{r['table_mb']:.2f}",
    "client state MB": lambda r: f"{r['state_mb']:.1f}" if r.get("state_mb") else "",
    "of each device": lambda r: (
        " ".join(f"{x:.1f}" for x in sorted(set(r["state_mb_of_devices"])))
        if r.get("state_mb")
        else ""
    ),
    "CPU s in all": lambda r: f"{r['cpu_seconds_in_all']:.1f}",
}


def show(result: dict[str, Any]) -> None:
    """Prints a table of every axis, as a document has it."""
    for name, content in result["axes"].items():
        axis, rows = AXES[name], content["rows"]
        head = [axis.label, *COLUMNS]
        print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for row in rows:
            cells = [f"{axis.of(row):,.0f}", *(cell(row) for cell in COLUMNS.values())]
            print("|", " | ".join(cells), "|")
        told = {k: round(v, 2 if "bytes" not in k else None) for k, v in content["fitted"].items()}
        print("\nfitted:", ", ".join(f"{key} {value + 0.0:g}" for key, value in told.items()))


def draw(result: dict[str, Any], path: Path) -> None:
    """Draws seconds and memory of every axis, a panel each, all scales logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    names = [*result["axes"]]
    layout = [[*names[i : i + 3], *"." * (i + 3 - len(names))] for i in range(0, len(names), 3)]
    size = 11, 3.2 * len(layout)
    figure, places = plt.subplot_mosaic(layout, figsize=size, layout="constrained")
    for name, content in result["axes"].items():
        place = places[name]
        axis, rows, fit = AXES[name], content["rows"], content["fitted"]
        x, beside = [axis.of(row) for row in rows], place.twinx()
        place.plot(x, [_time(row) for row in rows], "o-", color="C0")
        beside.plot(x, [_memory(row) for row in rows], "s--", color="C1")
        if "state of a device" in fit:
            held = [max(row["state_mb_of_devices"]) for row in rows]
            beside.plot(x, held, "^:", color="C1", label="client state of a device")
            beside.legend(fontsize=8)
        place.set(xscale="log", yscale="log", xlabel=axis.label)
        if max(x) < 10:  # without a power of ten
            place.set_xticks(x, [f"{value:g}" for value in x], minor=False)
            place.xaxis.set_minor_formatter(NullFormatter())
        beside.set(yscale="log")
        place.set_title(f"time ^{fit['time']:z.2f}, memory ^{fit['memory']:z.2f}", fontsize=10)
        when = "in all" if rows[0]["command"] else "a round"
        place.set_ylabel(f"CPU seconds {when}", color="C0")
        beside.set_ylabel("MB", color="C1")
        for one in (place, beside):
            one.tick_params(labelsize=8)
            one.yaxis.set(major_locator=LogLocator(subs=(1, 3)), minor_formatter=NullFormatter())
            one.yaxis.set_major_formatter(FormatStrFormatter("%g"))
            low, high = one.get_ylim()
            if high / low < FLAT:  # a flat line is to look flat
                middle = math.sqrt(low * high)
                one.set_ylim(middle / math.sqrt(FLAT), middle * math.sqrt(FLAT))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv: list[str]) -> int:
    """Parses, runs, writes, prints, draws."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--axis", nargs="+", default=["all"], choices=["all", *AXES])
    parser.add_argument("--quick", action="store_true", help="two points, and bytes of a client")
    parser.add_argument("--out", default=str(RESULTS), help=f"results file (default: {RESULTS})")
    parser.add_argument("--show", action="store_true", help="measure nothing: fit and draw again")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    if flags.child:
        print(json.dumps(measure(Point(**json.loads(flags.child)))))
        return 0
    if flags.quick:
        rows = [row_of(point) for point in QUICK]
        print(json.dumps({"rows": rows, "bytes_of_a_client": slope(rows)}))
        return 0
    path, names = Path(flags.out), list(AXES) if "all" in flags.axis else flags.axis
    before = json.loads(path.read_text()) if path.exists() else {"scaling": {"axes": {}}}
    axes = before["scaling"]["axes"]
    if not flags.show:
        with Progressing("points", sum(len(AXES[name].points) for name in names)) as progress:
            for name in names:
                rows = []
                for point in AXES[name].points:
                    rows.append(row_of(point))
                    progress.step(f"{name}: {rows[-1]['peak_mb']:.0f} MB")
                axes[name] = {"rows": rows, "argv": argv}
    fits = {name: fitted(AXES[name], axes[name]["rows"]) for name in AXES if name in axes}
    found = {"axes": {name: axes[name] | {"fitted": fit} for name, fit in fits.items()}}
    if flags.show:
        path.write_text(json.dumps(before | {"scaling": found}, indent=1) + "\n")
    else:
        machine.write(flags.out, "scaling", argv=argv, found=found)
    draw(found, path.with_suffix(".png"))
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
