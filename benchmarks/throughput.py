"""Throughput per round: methods x models x clients x executors x lowerings, alone or against peers.

python benchmarks/throughput.py                                  # the fixed workload
python benchmarks/throughput.py --against torch,fedjax,flower,pfl --peer_python other/bin/python
python benchmarks/throughput.py --methods fedavg fedetf --models mlp cnn --convs auto native
"""

import dataclasses
import datetime
import itertools
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import chart
import machine
import race
import targets
import tyro
from progress import Progressing
from tyro.conf import OmitArgPrefixes, arg
from workload import WARM_UP, Workload

from fedjax_nc.errors import UserError, unknown


@dataclasses.dataclass(frozen=True)
class Work:
    """What a round is; every combination of several values is a row."""

    methods: Annotated[tuple[str, ...], arg(aliases=["--method"])] = ("fedavg",)
    """Methods, as for experiments/run.py."""
    models: Annotated[tuple[str, ...], arg(aliases=["--model"])] = ("fedavg_cnn",)
    """Models."""
    norm: str = "default"
    """Normalisation: default (the model's), running, batch, group, none."""
    clients: tuple[int, ...] = (100,)
    """Numbers of clients."""
    participants: tuple[int, ...] = (10,)
    """Clients per round."""
    images: int = 500
    """Images of each client, 32x32x3."""
    batch_size: int = 50
    """Images per step."""
    epochs: int = 1
    """Local epochs."""
    lr: float = 0.01
    """Learning rate of SGD."""
    momentum: float = 0.9
    """Momentum of SGD."""


@dataclasses.dataclass(frozen=True)
class How:
    """How it is computed."""

    executors: Annotated[tuple[str, ...], arg(aliases=["--executor"])] = ("auto",)
    """Executors, as --execution.executor."""
    convs: Annotated[tuple[str, ...], arg(aliases=["--conv"])] = ("auto",)
    """Convolution lowerings, as --execution.conv."""
    devices: int = 0
    """Devices; 0: one per core."""
    chunk: int = 4
    """Clients at once under `chunked`."""


@dataclasses.dataclass(frozen=True)
class Compare:
    """Who else runs, one round each in turn."""

    against: str = ""
    """Peers, with commas: torch, fedjax, flower, pfl. PyTorch at 1 thread and at one per core."""
    peer_python: str = sys.executable
    """The Python that has them."""


@dataclasses.dataclass(frozen=True)
class Instead:
    """Other questions; each runs instead of the table."""

    unequal: bool = False
    """Unequal clients against equal ones with the same steps in all."""
    seeds: bool = False
    """Three seeds as one program against one."""
    growth: bool = False
    """100 rounds in one process against 10 processes of 10: time and memory."""
    start: bool = False
    """Seconds from the start of experiments/run.py to the end of its first round."""


@dataclasses.dataclass(frozen=True)
class Output:
    """How long, and where to."""

    rounds: int = 5
    """Rounds that count; two more come before."""
    json: str = ""
    """Results file, with a PNG chart beside it. Default: runs/benchmarks/, named by the work, which
    git ignores; what README and docs/performance.md show is in benchmarks/results/."""


@dataclasses.dataclass(frozen=True)
class Flags:
    """Time federated rounds on random images; writes JSON and a chart, prints a table."""

    work: Work = Work()
    how: How = How()
    compare: Compare = Compare()
    instead: Instead = Instead()
    output: Output = Output()


def workloads(work: Work, how: How) -> Iterator[Workload]:
    """Every combination."""
    same = {
        k: getattr(work, k) for k in ("norm", "images", "batch_size", "epochs", "lr", "momentum")
    }
    for method, model, clients, participants, executor, conv in itertools.product(
        work.methods, work.models, work.clients, work.participants, how.executors, how.convs
    ):
        yield Workload(
            method,
            model,
            clients=clients,
            participants=participants,
            executor=executor,
            conv=conv,
            devices=how.devices,
            chunk=how.chunk,
            **same,
        )


def peer_names(against: str) -> list[str]:
    """The peers asked for."""
    names = [name.strip() for name in against.split(",") if name.strip()]
    for name in names:
        if name not in race.PEERS:
            raise unknown("peer", name, allowed=race.PEERS)
    return names


def compare(flags: Flags, peak: float) -> list[dict[str, Any]]:
    """The table's rows: every workload, with its peers behind it."""
    rounds, rows = flags.output.rounds, []
    names, groups = peer_names(flags.compare.against), []
    for workload in workloads(flags.work, flags.how):
        group = [race.ours(workload, rounds)]
        for name in names:
            try:
                group += race.peers(name, workload, rounds=rounds, python=flags.compare.peer_python)
            except UserError as error:  # the others go on
                print(error, file=sys.stderr)
        groups.append(group)
    total = sum(len(group) for group in groups) * (WARM_UP + rounds)
    with Progressing("timing", total) as progress:
        for group in groups:
            race.run(group, rounds, progress=progress.step)
            flops = group[0].facts["flops_per_round"]
            new = [race.summary(one, flops, peak_gflops=peak) for one in group]
            rows += [row | {"ratio": row["seconds"] / new[0]["seconds"]} for row in new]
    return rows


def main(argv: list[str]) -> int:
    """Parse, run, write, print."""
    parsed = tyro.cli(OmitArgPrefixes[Flags], args=argv, prog="throughput.py")
    flags: Flags = parsed  # type: ignore[assignment]
    asked = [name for name, on in dataclasses.asdict(flags.instead).items() if on]
    base = next(workloads(flags.work, flags.how))
    result: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/throughput.py", *argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
    }
    try:
        if flags.output.rounds < 1:
            raise UserError(f"--rounds={flags.output.rounds}: give a number above zero")
        peer_names(flags.compare.against)  # a typo is told before anything is measured
        if asked:
            for name in asked:
                result[name] = getattr(targets, name)(base, flags.output.rounds)
        else:
            result["machine"]["peak"] = machine.measure_peak()
            result["rows"] = compare(flags, result["machine"]["peak"]["gflops"])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    path = Path(flags.output.json or machine.UNTRACKED / f"{default_name(flags.work, asked)}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    chart.show(result)
    written = [path]
    if "rows" in result:
        written.append(path.with_suffix(".png"))
        chart.draw(result, written[-1])
    print("written:", *written, file=sys.stderr)
    return 0


def default_name(work: Work, asked: list[str]) -> str:
    """A file name that tells what was timed."""
    return "-".join(asked or [*work.methods, *work.models])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
