"""What the benchmark ran on: processor, memory, versions, and how fast it multiplies matrices.

python benchmarks/machine.py         # prints it as JSON
"""

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

SIDE, REPEATS = 2048, 10
# ignored by git: results that are checked in, in benchmarks/results, are only replaced by name
UNTRACKED = Path(__file__).parents[1] / "runs" / "benchmarks"


def describe() -> dict[str, Any]:
    """Processor, cores, memory and versions, without importing any of them."""
    versions = {p: metadata.version(p) for p in ("fedjax_nc", "jax", "jaxlib", "flax", "numpy")}
    return {
        "cpu": _line("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int((_line("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20),
        "system": platform.platform(),
        "versions": {"python": platform.python_version(), **versions},
    }


def measure_peak() -> dict[str, Any]:
    """Matrix-product GFLOP/s in float32, from a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "peak"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def _peak() -> dict[str, Any]:
    import jax
    import numpy as np

    a = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    on_device = jax.device_put(a)
    product = jax.jit(lambda a: a @ a)
    found = {
        "numpy": _best(lambda: a @ a),
        "jax": _best(lambda: product(on_device).block_until_ready()),
    }
    by = max(found, key=lambda k: found[k])
    return {"gflops": found[by], "by": by, "of": found, "what": f"float32 {SIDE}x{SIDE} products"}


def write(out: str, name: str, argv: list[str], found: dict[str, Any]) -> dict[str, Any]:
    """Leave what a benchmark found in a file, with its command and machine; gives the whole."""
    result = {
        "command": shlex.join(["python", f"benchmarks/{name}.py", *argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe(),
        name: found,
    }
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print("written:", path, file=sys.stderr)
    return result


def _best(fn: Any) -> float:
    times = []
    for _ in range(REPEATS + 1):  # the first is warm-up, and never the fastest
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return round(2 * SIDE**3 / min(times) / 1e9, 1)


def _line(file: str, name: str) -> str:
    path = Path(file)
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")


if __name__ == "__main__":
    print(
        json.dumps(
            _peak() if sys.argv[1:] == ["peak"] else describe() | {"peak": measure_peak()}, indent=2
        )
    )
