"""Contestants in child processes that run a round each in turn, and what they took."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from workload import WARM_UP, Workload, encode

from fedjax_nc.errors import UserError

HERE = Path(__file__).parent
CLOSE = 1.4  # variants slower than this times the best of their family leave after warm-up
TORCH_MODELS = ("mlp", "cnn", "fedavg_cnn", "resnet20", "resnet20_b")


class Peer(NamedTuple):
    """Another framework: its script, what must be importable, what it can run."""

    script: str
    modules: tuple[str, ...]
    models: tuple[str, ...] = TORCH_MODELS


PEERS = {
    "torch": Peer("plain_torch.py", ("torch",)),
    "pfl": Peer("run_pfl.py", ("torch", "pfl")),
    "flower": Peer("run_flower.py", ("torch", "flwr", "ray")),
    "fedjax": Peer("run_fedjax.py", ("fedjax", "haiku"), models=("fedavg_cnn", "resnet20_b")),
}


@dataclasses.dataclass
class Contestant:
    """One process; `family` is who it belongs to: several variants may run for one framework."""

    family: str
    command: list[str]
    workload: Workload
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    answers: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def start(self) -> None:
        """Start it and wait until it is ready for its first round."""
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        paths = [str(HERE), str(HERE / "peers"), os.environ.get("PYTHONPATH", "")]
        quiet = {
            "OMP_WAIT_POLICY": "PASSIVE",  # who is not in turn must not spin
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # compile seconds are those of a cold start
            "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }  # fmt: skip
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=os.environ | quiet)  # fmt: skip
        self.facts = self._answer()

    def round(self) -> dict[str, float]:
        """Run one round."""
        assert self.process.stdin
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        self.answers.append(self._answer())
        return self.answers[-1]

    def stop(self) -> None:
        """End it; what was measured stays."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.log.seek(0)
        said = [text for text in self.log.read().splitlines() if text.strip()]
        reason = said[-1].removeprefix("fedjax_nc.errors.UserError: ") if said else "no output"
        raise UserError(f"{self.family} on {self.workload.title} stopped: {reason}")

    @property
    def seconds(self) -> list[float]:
        """Of the rounds that count."""
        return [a["seconds"] for a in self.answers[WARM_UP:]]


def ours(workload: Workload, rounds: int, family: str = "ours") -> Contestant:
    """The project itself."""
    options = json.dumps({"rounds": WARM_UP + rounds})
    command = [sys.executable, str(HERE / "ours.py"), encode(workload), options]
    return Contestant(family, command, workload=workload)


def peers(name: str, workload: Workload, rounds: int, python: str) -> list[Contestant]:
    """A peer in all the variants that are worth trying; raises if it cannot run here."""
    peer = PEERS[name]
    if workload.method != "fedavg" or workload.steps or workload.model not in peer.models:
        raise UserError(
            f"{name} is left out for {workload.title}: here it runs fedavg with equal clients on "
            f"{', '.join(peer.models)}"
        )
    if name == "fedjax" and workload.model == "resnet20_b" and workload.norm != "group":
        raise UserError("fedjax is left out: it has no BatchNorm; pass --norm=group")
    missing = missing_modules(python, peer.modules)
    if missing:
        raise UserError(
            f"{name} is left out: {python} has no {', '.join(missing)}; give --peer_python an "
            "environment made with pip install -r benchmarks/peers/requirements.txt"
        )
    cores = len(os.sched_getaffinity(0))
    variants: list[tuple[str, dict[str, Any]]] = [(name, {"threads": cores})]
    if name == "torch":  # as one writes it, and with what a tuning guide says
        variants = [(family, {"threads": t, "tuned": family != "torch"})
                    for family in ("torch", "torch_tuned") for t in sorted({1, cores})]  # fmt: skip
    script = str(HERE / "peers" / peer.script)
    return [
        Contestant(family, [python, script, encode(workload),
                            json.dumps(options | {"rounds": WARM_UP + rounds})], workload=workload)
        for family, options in variants
    ]  # fmt: skip


def missing_modules(python: str, modules: tuple[str, ...]) -> list[str]:
    """Those that this Python cannot import."""
    code = (
        "import sys, importlib.util as u; print(*(m for m in sys.argv[1:] if not u.find_spec(m)))"
    )
    try:
        done = subprocess.run([python, "-c", code, *modules], capture_output=True, text=True,
                              check=True)  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"--peer_python={python} does not run: {error}") from None
    return done.stdout.split()


def run(contestants: list[Contestant], rounds: int, progress: Callable[[str, int], None]) -> None:
    """Start all, run the rounds in turn, stop all. `progress` is told of work done and dropped."""
    started = []
    try:
        for one in contestants:
            progress(f"starting {one.family}", 0)
            one.start()
            started.append(one)
        racing = list(contestants)
        for number in range(WARM_UP + rounds):
            if number == WARM_UP:
                kept = _close_ones(racing)
                progress("", (len(racing) - len(kept)) * rounds)
                racing = kept
            for one in racing:
                answer = one.round()
                progress(f"{one.family} {one.facts['variant']}: {answer['seconds']:.2f} s", 1)
    finally:
        for one in started:
            one.stop()


def _close_ones(racing: list[Contestant]) -> list[Contestant]:
    """Without the variants of a family that their last warm-up round shows to be slower."""
    best: dict[str, float] = {}
    for one in racing:
        last = one.answers[-1]["seconds"]
        best[one.family] = min(last, best.get(one.family, last))
    return [one for one in racing if one.answers[-1]["seconds"] <= CLOSE * best[one.family]]


def summary(one: Contestant, flops: float, peak_gflops: float) -> dict[str, Any]:
    """A contestant's row of the results; seconds of a dropped variant are its last warm-up's."""
    dropped = not one.seconds
    seconds = one.seconds or [one.answers[-1]["seconds"]]
    median, w = statistics.median(seconds), one.workload
    return {
        "name": one.family, **one.facts, "workload": dataclasses.asdict(w), "dropped": dropped,
        "rounds": len(one.seconds), "round_seconds": [round(s, 4) for s in seconds],
        "seconds": median, "seconds_min": min(seconds), "seconds_max": max(seconds),
        "compile_seconds": max(one.answers[0]["seconds"] - median, 0.0),
        "clients_per_second": w.participants / median,
        "images_per_second": w.images_per_round / median,
        "flops_per_round": flops, "gflops": flops / median / 1e9,
        "percent_of_peak": 100 * flops / median / 1e9 / peak_gflops,
        "peak_memory_mb": max(a["peak_memory_mb"] for a in one.answers),
    }  # fmt: skip
