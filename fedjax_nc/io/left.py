"""Reads the records and the summary that a run has left, and checks the kind of every value."""

from pathlib import Path
from typing import Any

from fedjax_nc import inputs
from fedjax_nc.errors import reason
from fedjax_nc.io import records
from fedjax_nc.io.facts import Damaged

# Bytes of a run's records and summary: a row has some 2 kB, with every class's accuracy some 20.
_ROWS, _SUMMARY = 256 * inputs.MEGABYTE, 16 * inputs.MEGABYTE
_LARGEST = 1e18  # numbers beyond it are no record of anything


def rows(path: Path) -> list[dict[str, Any]]:
    """Returns the records of all rounds, whose values are numbers, or tables and lists of them."""
    try:
        text = inputs.read(path, _ROWS).decode() if path.exists() else ""
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name} is damaged ({reason(error)})") from None
    found = records.rows_of(text, path.name)
    for number, row in enumerate(found, 1):
        wrong = next((name for name in row if not _holds_numbers(row[name])), "")
        for name in ("seconds", "global_accuracy"):
            if name in row and not _is_number(row[name]):
                wrong = name
        if wrong:
            raise Damaged(f"line {number} of {path.name} has no number for {wrong:.40}")
    return found


def summary(path: Path) -> dict[str, Any]:
    """Returns a finished run's summary."""
    try:
        found = inputs.read_json(path, _SUMMARY)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name} is damaged ({reason(error)})") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path.name} is damaged (it is no summary)")
    for name, value in found.items():
        count = name in ("seeds_in_parallel", "rounds")
        if count and not _is_count(value):
            raise Damaged(f"{path.name} is damaged ({name} is no number)")
        if name.endswith("accuracy") and not (value is None or _is_number(value)):
            listed = name.endswith("class_accuracy") and isinstance(value, list)
            if not (listed and _holds_numbers(value)):
                raise Damaged(f"{path.name} is damaged ({name} is no number)")
    return found


def _is_number(value: Any) -> bool:
    # a number that is not itself is NaN; math.isnan fails at whole numbers of 400 digits
    return type(value) in (int, float) and (value != value or abs(value) < _LARGEST)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < _LARGEST


def _holds_numbers(value: Any) -> bool:
    """Returns whether nothing but numbers, truth values and gaps is in tables and lists."""
    if isinstance(value, dict):
        return all(map(_holds_numbers, value.values()))
    if isinstance(value, list):
        return all(map(_holds_numbers, value))
    return value is None or type(value) is bool or _is_number(value)
