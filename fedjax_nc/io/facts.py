"""Facts that a checkpoint keeps of its run, with a checksum that tells damage; no jax needed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What of a run's facts must be as they were, and what it means when one is not.
_RUNS = {
    "config": "another configuration",
    "order": "another order of examples",
    "labels": "other training labels",
    "examples": "other examples",
    "partition": "another partition",
}


class Damaged(Exception):
    """Something on disk is not what was written; the message says why in a few words."""


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns JSON content with a checksum of itself."""
    return {**content, "checksum": _checksum(content)}


def opened(content: Any) -> dict[str, Any]:
    """Returns what `sealed` was given, and refuses what is not it."""
    if not isinstance(content, dict) or "checksum" not in content:
        raise Damaged("it has no checksum")
    rest = {name: value for name, value in content.items() if name != "checksum"}
    if content["checksum"] != _checksum(rest):
        raise Damaged("its checksum differs")
    return rest


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_json(path: Path) -> Any:
    """Reads JSON, and refuses a file that is lost or holds something else."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path.name} is lost") from None
    except (OSError, ValueError, RecursionError):
        raise Damaged(f"{path.name} is no JSON") from None


def read(step: Path) -> dict[str, Any]:
    """Reads the facts of a checkpoint as Orbax's handler of JSON wrote them."""
    try:
        return opened(load_json(step / "facts" / "metadata"))
    except Damaged as error:
        raise Damaged(f"facts: {error}") from None


def steps(directory: Path) -> list[int]:
    """Returns the rounds of which there is a checkpoint, damaged ones that were set aside not."""
    return sorted(int(p.name) for p in directory.glob("*") if p.name.isdecimal())


def newest(directory: Path) -> dict[str, Any] | None:
    """Returns the facts of the newest checkpoint that has any, without looking at its arrays."""
    for step in reversed(steps(directory)):
        try:
            return read(directory / str(step))
        except Damaged:
            continue
    return None


def other_run(found: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Returns how the run that a checkpoint is of differs from the one asked for, or nothing."""
    then = found.get("run", {})
    for name, meaning in _RUNS.items():
        if name in then and name in asked and then[name] != asked[name]:
            return meaning
    return ""
