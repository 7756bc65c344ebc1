"""Results of studies as JSON files in a run's `analysis` folder, with what they depend on."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_nc import inputs
from fedjax_nc.io import files
from fedjax_nc.study.base import Results
from fedjax_nc.study.options import Options

_FILE = 256 * inputs.MEGABYTE  # bytes of a study's results; those of a large landscape are some 10


def plain(value: Any) -> Any:
    """Converts arrays to lists of numbers of seven digits, and NaN and infinity to None."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    array = np.asarray(value)
    if array.ndim:
        return [plain(v) for v in array]
    number = array.item()
    if isinstance(number, int):
        return number
    return float(f"{number:.7g}") if math.isfinite(number) else None


def conditions(options: Options, uses: tuple[str, ...]) -> dict[str, Any]:
    """Returns what the results of a study depend on: the round, and the options it uses."""
    values = dataclasses.asdict(options)
    return {"round": options.round} | {name: plain(values[name]) for name in uses}


def read(directory: Path, name: str, under: dict[str, Any]) -> tuple[Results | None, str]:
    """Reads a study's results from a run directory.

    Args:
      directory: the run's.
      name: of the study.
      under: the conditions, without which the results would be others.

    Returns:
      The results, or None where there are none under these conditions; and in which conditions
      those that are there differ, "" if in none.
    """
    try:
        content = inputs.read_json(directory / "analysis" / f"{name}.json", _FILE)
        results, before = content["numbers"], content["asked"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, ""
    if not isinstance(results, dict) or not isinstance(before, dict):
        return None, ""
    if before == under:
        return results, ""
    differences = [
        f"{k} {before.get(k)} instead of {v}" for k, v in under.items() if before.get(k) != v
    ]
    return None, ", ".join(differences)


def write(
    directory: Path,
    name: str,
    *,
    method: str,
    seconds: float,
    under: dict[str, Any],
    results: Results,
) -> None:
    """Writes a study's results, and the conditions under which they hold, into a run directory."""
    content = {
        "study": name,
        "method": method,
        "seconds": round(seconds, 2),
        "asked": under,
        "numbers": results,
    }
    folder = directory / "analysis"
    folder.mkdir(exist_ok=True)
    files.write_atomically(folder / f"{name}.json", json.dumps(content) + "\n")
