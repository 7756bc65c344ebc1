"""Reads the records and the summary that a run has left, and checks the kind of every value."""

from pathlib import Path
from typing import Any

from fedjax_nc import inputs
from fedjax_nc.errors import reason, short
from fedjax_nc.io import records
from fedjax_nc.io.facts import Damaged

_SUMMARY = 16 * inputs.MEGABYTE  # bytes of a run's summary
_LARGEST = 1e18  # times, accuracies and counts beyond it are none


def rows(path: Path) -> list[dict[str, Any]]:
    """Returns the records of all rounds, whose values are numbers, or tables and lists of them."""
    return _checked(records.read(path), path.name)


def saved_rows(text: str) -> list[dict[str, Any]]:
    """Returns the records in a checkpoint, which have all that a summary of the run needs."""
    found = _checked(records.rows_of(text, "facts"), "facts")
    for number, row in enumerate(found, 1):
        needed = {"seconds", "compiled"} | ({"global_loss"} if "global_accuracy" in row else set())
        if absent := needed - row.keys():
            raise Damaged(f"line {number} of facts has no {min(absent)}")
    return found


def summary(path: Path) -> dict[str, Any]:
    """Returns a finished run's summary."""
    try:
        found = inputs.read_json(path, _SUMMARY)
    except (OSError, ValueError) as error:
        inputs.raise_fault(error, path)
        raise Damaged(f"{path.name} is damaged ({reason(error)})") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path.name} is damaged (it is no summary)")
    for name, value in found.items():
        count = name in ("seeds_in_parallel", "rounds")
        if count and not _is_count(value):
            raise Damaged(f"{path.name} is damaged ({name} is no number)")
        if name.endswith("accuracy") and not (value is None or _is_moderate(value)):
            listed = name.endswith("class_accuracy") and isinstance(value, list)
            if not (listed and _holds_numbers(value)):
                raise Damaged(f"{path.name} is damaged ({short(name)} is no number)")
    return found


def _checked(found: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    for number, row in enumerate(found, 1):
        for name, value in row.items():
            if not _fits(name, value):
                raise Damaged(f"line {number} of {where} has no number for {short(name)}")
    return found


def _fits(name: str, value: Any) -> bool:
    """Returns whether a record may have this value under this name."""
    if name in ("seconds", "global_accuracy") or (name.endswith("accuracy") and _is_number(value)):
        return _is_moderate(value)
    return _holds_numbers(value)


def _is_moderate(value: Any) -> bool:
    # a number that is not itself is NaN
    return _is_number(value) and (value != value or abs(value) < _LARGEST)


def _is_number(value: Any) -> bool:
    # losses may be infinite; whole numbers of 400 digits are nothing that a float can hold
    return type(value) is float or (type(value) is int and abs(value) < _LARGEST)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < _LARGEST


def _holds_numbers(value: Any) -> bool:
    """Returns whether nothing but numbers, truth values and gaps is in tables and lists."""
    if isinstance(value, dict):
        return all(map(_holds_numbers, value.values()))
    if isinstance(value, list):
        return all(map(_holds_numbers, value))
    return value is None or type(value) is bool or _is_number(value)
