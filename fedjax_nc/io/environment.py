"""Where numbers come from: versions and machine, of every start of a run."""

import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fedjax_nc import inputs
from fedjax_nc.errors import short

_MOST = 16 * inputs.MEGABYTE  # bytes: a start has half a kilobyte
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorflow-datasets", "numpy")


def now() -> dict[str, Any]:
    """Returns the versions, machine and code that this process has."""
    import jax

    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": sys.version.split()[0],
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "machine": platform.machine(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "backend": jax.default_backend(),
        "devices": [str(d) for d in jax.devices()],
        "git_commit": _git_commit(),
    }


def start(devices: int) -> dict[str, Any]:
    """Returns the record of this start, which a run's history and its checkpoints keep.

    Args:
      devices: how many the run computes on.
    """
    import jax

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "devices": devices,
        "processes": jax.process_count(),
        "backend": jax.default_backend(),
        "processor": _processor(),
        "python": sys.version.split()[0],
        **{name: metadata.version(name) for name in ("jax", "jaxlib", "orbax-checkpoint")},
    }


def read(directory: Path) -> dict[str, Any]:
    """Returns a run's environment.json, nothing of one that is lost or damaged."""
    path = directory / "environment.json"
    try:
        found = inputs.read_json(path, _MOST)
    except (OSError, ValueError) as error:
        inputs.raise_fault(error, path)
        return {}
    return found if isinstance(found, dict) else {}


def plugins(directory: Path) -> dict[str, str]:
    """Returns the checksums of the plugins that a run was started with, by path or module."""
    known = read(directory).get("plugins")
    found = {}
    for one in known if isinstance(known, list) else []:
        if isinstance(one, dict):
            name, checksum = one.get("path", one.get("module")), one.get("sha256")
            if isinstance(name, str) and isinstance(checksum, str):
                found[name] = checksum
    return found


def history(directory: Path) -> list[dict[str, Any]]:
    """Returns the starts of a run so far; of an earlier version's run the one it tells of."""
    found = read(directory)
    known = found.get("history", [])
    if isinstance(known, list) and known and all(isinstance(one, dict) for one in known):
        return known
    packages, devices = found.get("packages"), found.get("devices")
    if not isinstance(packages, dict) or not isinstance(devices, list):
        return []
    versions = {name: packages[name] for name in ("jax", "jaxlib") if name in packages}
    told = {"time": found.get("started"), "backend": found.get("backend")}
    return [{**told, "devices": len(devices), **versions}]


def differences(begun: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """Returns in words where a run began and where it goes on, if it may round differently."""
    names = ("devices", "backend", "processor", "jax", "jaxlib")
    changed = [n for n in names if n in begun and n in start and begun[n] != start[n]]
    if not changed:
        return ""
    then, here = (", ".join(_words(n, one[n]) for n in changed) for one in (begun, start))
    return f"the run began with {then} and goes on with {here}"


def _words(name: str, value: Any) -> str:
    if name == "devices":
        return f"{short(str(value))} device{'s' if value != 1 else ''}"
    return f"{name} {short(str(value))}" if name in ("jax", "jaxlib") else short(str(value))


def _processor() -> str:
    """Returns the name of the processor; another one may round differently."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _git_commit() -> str | None:
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
