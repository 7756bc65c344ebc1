"""A run's directory: who may write there, and the files that explain it to a stranger."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from fedjax_nc import config, errors
from fedjax_nc.errors import UserError
from fedjax_nc.io import records
from fedjax_nc.io.files import write_atomically

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorflow-datasets", "numpy")


def path_of(out: str, cfg: config.RunConfig) -> Path:
    """Returns a seed's directory: runs/{dataset}-{partition}/{method}/{confighash}/seed{k}."""
    dataset = Path(cfg.dataset).stem if cfg.dataset.endswith(".npz") else cfg.dataset
    data = f"{_safe(dataset)}-{_safe(config.partition_name(cfg.data))}"
    return Path(out) / data / _safe(cfg.method) / config.config_hash(cfg) / f"seed{cfg.seed}"


def _safe(name: str) -> str:
    """Returns a name that is one part of a path on every system."""
    return "".join(c if c.isalnum() or c in "._=,@" else "-" for c in name.replace(" ", ""))


def check(
    directory: Path,
    cfg: config.RunConfig,
    *,
    overwrite: bool,
    plugins: Sequence[dict[str, str]] = (),
) -> None:
    """Refuses a directory that holds anything but this run, unless told to overwrite.

    It holds another run if its configuration differs, or if a plugin has changed since.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file: choose another --out")
    if overwrite or not directory.exists() or not any(directory.iterdir()):
        return
    if _identity(_read_config(directory)) != _identity(config.to_dict(cfg)):
        raise UserError(
            f"{directory} holds a run of another configuration: choose another --out, or "
            f"--overwrite to replace it"
        )
    try:
        facts = json.loads((directory / "environment.json").read_text())
    except (OSError, ValueError):
        return
    before = {p.get("path", p.get("module")): p["sha256"] for p in facts.get("plugins", ())}
    for plugin in plugins:
        name = plugin.get("path", plugin.get("module"))
        if before.get(name, plugin["sha256"]) != plugin["sha256"]:
            raise UserError(
                f"{directory} holds a run with another version of the plugin {name}: choose "
                f"another --out, or --overwrite to replace it"
            )


def describe(
    directory: Path,
    cfg: config.RunConfig,
    *,
    command: list[str],
    plugins: Sequence[dict[str, str]] = (),
    overwrite: bool = False,
) -> None:
    """Makes the directory, emptied first under `overwrite`, and says in it what it is."""
    try:
        if overwrite and directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {directory} ({error}): choose another --out") from error
    write_atomically(
        directory / "config.yaml", yaml.safe_dump(config.to_dict(cfg), sort_keys=False)
    )
    write_atomically(directory / "command.txt", shlex.join(command) + "\n")
    facts = environment() | ({"plugins": list(plugins)} if plugins else {})
    write_atomically(directory / "environment.json", json.dumps(facts, indent=2) + "\n")


def finished(
    directory: Path, *, track: Sequence[str] = (), track_every: int = 1
) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """Returns the records and the summary of a finished run, None of one that is not.

    A finished run that does not hold the records that `track` asks for is refused.
    """
    if not (directory / "summary.json").exists():
        return None
    rows = records.read(directory / "metrics.jsonl")
    due = [row for row in rows if row["round"] % track_every == 0]
    absent = [name for name in track if any(name not in row for row in due)]
    if absent:
        raise UserError(
            f"--track={','.join(absent)} records while training, and {directory} is already "
            "finished: add --overwrite to train it again"
        )
    return rows, json.loads((directory / "summary.json").read_text())


def read(directory: Path) -> config.RunConfig:
    """The configuration of a run that is there."""
    if not (directory / "config.yaml").is_file():
        near = sorted(directory.glob("**/config.yaml"))[:1] if directory.is_dir() else []
        hint = (
            f"did you mean {near[0].parent}?"
            if near
            else f"give one that `{errors.command('run')}` has left"
        )
        raise UserError(f"{directory} is not a run directory, it has no config.yaml: {hint}")
    content = _read_config(directory)
    if not isinstance(content, dict):
        raise UserError(f"{directory / 'config.yaml'} cannot be read: run the command again")
    try:
        return config.from_dict(content)
    except UserError as error:
        raise UserError(f"{directory / 'config.yaml'}: {error}") from error


def _read_config(directory: Path) -> Any:
    try:
        return yaml.safe_load((directory / "config.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return None


def _identity(content: Any) -> Any:
    """Returns what of a configuration can change a number, and nothing for a damaged one."""
    return config.identity(content) if isinstance(content, dict) else None


def environment() -> dict[str, Any]:
    """Versions, machine and code a number came from."""
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
