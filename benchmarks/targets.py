"""Other questions: unequal clients, seeds in parallel, growth over rounds, time to start."""

import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import race
from progress import Progressing
from workload import WARM_UP, Workload

from fedjax_nc.errors import UserError

ROOT = Path(__file__).parents[1]
# steps of ten clients against equal ones with the same total
UNEQUAL = {
    "20 to 1 over ten clients": ((20, 11, 6, 4, 3, 2, 1, 1, 1, 1), (5,) * 10),
    "one with 20 shares of ten": ((200, *(10,) * 9), (29,) * 10),
}
LONG, SHORT = 100, 10
PAIRS = 3  # of whole commands
STARTS = 3  # warm starts, after a first one that fills the compile cache


def unequal(base: Workload, rounds: int) -> dict[str, Any]:
    """Seconds with unequal clients over seconds with equal ones and the same steps in all."""
    result = {}
    with Progressing("unequal", len(UNEQUAL) * 2 * (WARM_UP + rounds)) as progress:
        for name, (skewed, equal) in UNEQUAL.items():
            pair = []
            for family, steps in (("unequal", skewed), ("equal", equal)):
                fields = {"clients": len(steps), "participants": len(steps), "steps": steps}
                pair.append(race.ours(dataclasses.replace(base, **fields), rounds, family=family))
            race.run(pair, rounds, progress=progress.step)
            seconds = [statistics.median(one.seconds) for one in pair]
            result[name] = {
                "steps": skewed,
                "equal_steps": equal,
                "seconds": seconds[0],
                "equal_seconds": seconds[1],
                "ratio": seconds[0] / seconds[1],
            }
    return {"model": base.model, "cases": result}


def seeds(base: Workload, rounds: int) -> dict[str, Any]:
    """Three seeds as one program against one: steady rounds, and whole commands on mnist5k."""
    pair = [
        race.ours(dataclasses.replace(base, seeds=n), rounds, family=f"{n} seeds") for n in (3, 1)
    ]
    with Progressing("seeds", 2 * (WARM_UP + rounds) + 2 * (1 + PAIRS)) as progress:
        race.run(pair, rounds, progress=progress.step)
        three, one = (statistics.median(contestant.seconds) for contestant in pair)
        command = _commands(base, progress)
    return {
        "model": base.model,
        "seconds": three,
        "one_seconds": one,
        "ratio": three / one,
        "command": command,
    }


def _commands(base: Workload, progress: Progressing) -> dict[str, Any]:
    flags = ["experiments/run.py", f"--method={base.method}", f"--model={base.model}"]
    pair = [[*flags, "--seeds", "0", "1", "2", "--seeds_parallel"], [*flags, "--seeds", "0"]]
    times: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory() as directory:
        for number in range(1 + PAIRS):  # the first pair fills the compile cache
            for which, argv in enumerate(pair):
                out = ["--out", f"{directory}/{number}-{which}"]
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, *argv, *out],
                    check=True,
                    cwd=ROOT,
                    env=_env(directory),
                    capture_output=True,
                )
                times[which].append(time.perf_counter() - began)
                progress.step(f"{' '.join(argv)}: {times[which][-1]:.1f} s")
    three, one = (statistics.median(t[1:]) for t in times)
    return {
        "command": " ".join(["python", *pair[0]]),
        "seconds": three,
        "one_seconds": one,
        "ratio": three / one,
    }


def growth(base: Workload, _rounds: int) -> dict[str, Any]:
    """100 rounds in one process against ten processes of 10: seconds and memory."""
    runs = LONG // SHORT
    with Progressing("growth", LONG + runs * SHORT + (runs + 1) * WARM_UP) as progress:
        long = race.ours(base, LONG)
        race.run([long], LONG, progress=progress.step)
        short = []
        for _ in range(runs):
            short.append(race.ours(base, SHORT))
            race.run([short[-1]], SHORT, progress=progress.step)
    memory = [a["memory_mb"] for a in long.answers[WARM_UP:]]
    return {
        "model": base.model,
        "first_ten_seconds": statistics.median(long.seconds[:SHORT]),
        "last_ten_seconds": statistics.median(long.seconds[-SHORT:]),
        "short_runs_seconds": statistics.median(s for one in short for s in one.seconds),
        "first_ten_memory_mb": max(memory[:SHORT]),
        "last_ten_memory_mb": max(memory[-SHORT:]),
        "short_runs_memory_mb": max(one.answers[-1]["memory_mb"] for one in short),
        "round_seconds": [round(s, 4) for s in long.seconds],
        "memory_mb": [round(m, 1) for m in memory],
    }


def start(_base: Workload, _rounds: int) -> dict[str, Any]:
    """Seconds from the start of the default command to its first recorded round."""
    with tempfile.TemporaryDirectory() as directory, Progressing("start", STARTS + 1) as progress:
        times = []
        for number in range(STARTS + 1):
            times.append(_first_round(Path(directory), number))
            progress.step(f"first round after {times[-1]:.2f} s")
    return {
        "command": "python experiments/run.py",
        "cold_seconds": times[0],
        "warm_seconds": statistics.median(times[1:]),
        "warm": times[1:],
    }


def _first_round(directory: Path, number: int) -> float:
    out = directory / f"run{number}"
    command = [sys.executable, str(ROOT / "experiments/run.py"), "--out", str(out)]
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        process = subprocess.Popen(command, stderr=log, stdout=log, env=_env(directory))
        try:
            while not any(p.stat().st_size for p in out.rglob("metrics.jsonl")):
                if process.poll() is not None:
                    log.seek(0)
                    raise UserError(f"{' '.join(command)} stopped: {log.read()[-300:]}")
                time.sleep(0.01)
            return time.perf_counter() - began
        finally:
            process.terminate()
            process.wait()


def _env(directory: str | Path) -> dict[str, str]:
    """With a compile cache for these runs alone."""
    kept = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    return kept | {"XDG_CACHE_HOME": str(directory)}
