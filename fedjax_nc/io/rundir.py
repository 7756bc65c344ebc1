"""A run's directory: who may write there, and the files that explain it to a stranger."""

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedjax_nc import config, errors, inputs
from fedjax_nc.errors import UserError
from fedjax_nc.io import environment, facts, files, left, yamls
from fedjax_nc.io.facts import Damaged
from fedjax_nc.io.files import write_atomically

_CONFIG = 64 * inputs.KILOBYTE  # bytes of config.yaml, of which a run writes 2 kB
_NEEDED = {"method", "dataset", "seed", "rounds", "global_accuracy", "seconds_per_round"}
_AGAIN = "run its command again, which makes it of the last checkpoint"


def path_of(out: str, cfg: config.RunConfig) -> Path:
    """Returns a seed's directory: runs/{dataset}-{partition}/{method}/{confighash}/seed{k}.

    A run that an earlier version named by its number of devices too goes on where it is.
    """
    dataset = Path(cfg.dataset).stem if cfg.dataset.endswith(".npz") else cfg.dataset
    data = f"{_safe(dataset)}-{_safe(config.partition_name(cfg.data))}"
    method, seed = Path(out) / data / _safe(cfg.method), f"seed{cfg.seed}"
    path = method / config.config_hash(cfg) / seed
    if cfg.execution.devices and not path.exists():
        earlier = method / config.config_hash(cfg, devices=cfg.execution.devices) / seed
        return earlier if earlier.exists() else path
    return path


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
    if overwrite or not directory.exists() or not files.kept(directory):
        return
    if not _is_of(directory, cfg):
        raise UserError(
            f"{directory} holds a run of another configuration: choose another --out, or "
            f"--overwrite to replace it"
        )
    before = environment.plugins(directory)
    for plugin in plugins:
        name = plugin.get("path") or plugin["module"]
        if before.get(name, plugin["sha256"]) != plugin["sha256"]:
            raise UserError(
                f"{directory} holds a run with another version of the plugin {name}: choose "
                f"another --out, or --overwrite to replace it"
            )


def _is_of(directory: Path, cfg: config.RunConfig) -> bool:
    """Returns whether a directory is of this run.

    Its checkpoints know, else its config.yaml, else its name: so damage to one loses nothing.
    """
    known = facts.newest(directory / "ckpt")
    told = (known or {}).get("run", {}).get("config")
    if told is not None:
        return told == config.fingerprint(cfg)
    found = _read_config(directory)
    if found is not None:
        return config.fingerprint(found) == config.fingerprint(cfg)
    names = {config.config_hash(cfg), config.config_hash(cfg, devices=cfg.execution.devices)}
    return directory.parent.name in names and directory.name == f"seed{cfg.seed}"


def mend(directory: Path, cfg: config.RunConfig) -> str:
    """Writes a damaged config.yaml of this run again; returns a warning if it was."""
    if not directory.is_dir() or not any(directory.iterdir()):
        return ""
    found = _read_config(directory)
    if found is not None and config.fingerprint(found) == config.fingerprint(cfg):
        return ""
    _write_config(directory, cfg)
    return f"{directory / 'config.yaml'} was damaged: it is written again"


def _write_config(directory: Path, cfg: config.RunConfig) -> None:
    write_atomically(
        directory / "config.yaml", yaml.safe_dump(config.to_dict(cfg), sort_keys=False)
    )


def describe(
    directory: Path,
    cfg: config.RunConfig,
    *,
    command: list[str],
    plugins: Sequence[dict[str, str]] = (),
    overwrite: bool = False,
    history: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Makes the directory, emptied first under `overwrite`, and says in it what it is.

    `history` are the starts of the run, this one the last.
    """
    try:
        if overwrite and directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {directory} ({error}): choose another --out") from error
    _write_config(directory, cfg)
    write_atomically(directory / "command.txt", shlex.join(command) + "\n")
    told = environment.now() | ({"plugins": list(plugins)} if plugins else {})
    told["history"] = list(history)
    write_atomically(directory / "environment.json", json.dumps(told, indent=2) + "\n")


def finished(
    directory: Path, *, track: Sequence[str] = (), track_every: int = 1
) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """Returns the records and the summary of a finished run, None of one that is not.

    One with a damaged file is not finished: `damage` says so. A finished run that does not hold
    the records that `track` asks for is refused.
    """
    if not (directory / "summary.json").exists() or damage(directory):
        return None
    rows, summary = results(directory)
    due = [row for row in rows if row["round"] % track_every == 0]
    absent = [name for name in track if any(name not in row for row in due)]
    if absent:
        raise UserError(
            f"--track={','.join(absent)} records while training, and {directory} is already "
            "finished: add --overwrite to train it again"
        )
    return rows, summary


def damage(directory: Path) -> str:
    """Returns what is wrong with the records or the summary of a finished run, or nothing."""
    if not (directory / "summary.json").exists():
        return ""
    try:
        _results(directory)
    except Damaged as error:
        return f"{directory}: {error}"
    return ""


def results(directory: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the records of a run and its summary, which is empty while it runs.

    Damaged ones are refused.
    """
    try:
        return _results(directory)
    except Damaged as error:
        raise UserError(f"{directory}: {error}: {_AGAIN}") from None


def _results(directory: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    log, path = directory / "metrics.jsonl", directory / "summary.json"
    rows = left.rows(log)
    if not path.exists():
        return rows, {}
    summary = left.summary(path)
    if not summary.keys() >= _NEEDED:
        raise Damaged("summary.json is damaged (it is no summary)")
    if "checksum" in summary:  # not in those of earlier versions
        try:
            summary = facts.opened(summary)
        except Damaged as error:
            raise Damaged(f"summary.json is damaged ({error})") from None
    if not rows or (rows[0]["round"], rows[-1]["round"]) != (1, summary["rounds"]):
        raise Damaged(f"metrics.jsonl has lost some of {summary['rounds']} rounds")
    known = facts.newest(directory / "ckpt")
    saved = left.saved_rows((known or {}).get("rows", ""))
    if len(saved) == len(rows) and saved != rows:
        raise Damaged("metrics.jsonl is not what the last checkpoint holds")
    return rows, summary


def read(directory: Path) -> config.RunConfig:
    """Returns the configuration of a run that is there, every setting checked."""
    inputs.check_path("run directory", str(directory))
    path = directory / "config.yaml"
    if not path.is_file():
        near = sorted(directory.glob("**/config.yaml"))[:1] if directory.is_dir() else []
        hint = (
            f"did you mean {near[0].parent}?"
            if near
            else f"give one that `{errors.command('run')}` has left"
        )
        raise UserError(f"{directory} is not a run directory, it has no config.yaml: {hint}")
    content = _load_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} cannot be read: run the command again, which writes it again")
    try:
        found = config.from_dict(content)
    except UserError as error:
        raise UserError(f"{path}: {error} (it is damaged, or of another version)") from error
    known = (facts.newest(directory / "ckpt") or {}).get("run", {})
    if known.get("config", "") not in ("", config.fingerprint(found)):
        raise UserError(
            f"{path} is not the configuration of the checkpoints beside it: run the command "
            "again, which writes it again"
        )
    return found


def _read_config(directory: Path) -> config.RunConfig | None:
    """Returns what config.yaml says, None if it says nothing whole."""
    content = _load_yaml(directory / "config.yaml")
    if not isinstance(content, dict):
        return None
    try:
        return config.from_dict(content)
    except UserError:
        return None


def _load_yaml(path: Path) -> Any:
    """Returns what a file says, None where it cannot be read."""
    try:
        return yamls.read(path, _CONFIG)
    except (OSError, ValueError) as error:
        inputs.raise_fault(error, path)
        return None
