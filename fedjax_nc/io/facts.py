"""Facts that a checkpoint keeps of its run, with a checksum that tells damage; no jax needed."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_nc import inputs
from fedjax_nc.errors import reason

_MOST = 512 * inputs.MEGABYTE  # bytes of a step's facts, of which the records are nearly all
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


def read(step: Path) -> dict[str, Any]:
    """Reads the facts of a checkpoint as Orbax's handler of JSON wrote them."""
    path = step / "facts" / "metadata"
    try:
        found = opened(inputs.read_json(path, _MOST))
    except FileNotFoundError:
        raise Damaged("facts: metadata is lost") from None
    except (OSError, ValueError) as error:
        inputs.raise_fault(error, path)
        raise Damaged(f"facts: metadata cannot be read ({reason(error)})") from None
    except Damaged as error:
        raise Damaged(f"facts: {error}") from None
    if wrong := _wrong_kind(found):
        raise Damaged(f"facts: {wrong} is none")
    return found


def _wrong_kind(found: Mapping[str, Any]) -> str:
    """Returns the name of a fact that is not of its kind, or nothing."""
    for name, kind in (("arrays", dict), ("run", dict), ("begun", dict), ("rows", str)):
        if name in found and not isinstance(found[name], kind):
            return name
    for name in ("arrays", "run"):
        if not all(isinstance(text, str) for text in found.get(name, {}).values()):
            return name
    return "" if "arrays" in found else "arrays"


def steps(directory: Path) -> list[int]:
    """Returns the rounds of which there is a checkpoint, damaged ones that were set aside not."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isdecimal())


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
