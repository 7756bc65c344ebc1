"""metrics.jsonl: one row per round, written again from the checkpoint when a run resumes."""

import json
from pathlib import Path
from typing import Any

from fedjax_nc import inputs
from fedjax_nc.errors import reason
from fedjax_nc.io.facts import Damaged

_MOST = 256 * inputs.MEGABYTE  # bytes: a row has some 2 kB, with every class's accuracy some 20


def line_of(row: dict[str, Any]) -> str:
    """Returns a row as it is written."""
    return json.dumps(row) + "\n"


def read(path: Path) -> list[dict[str, Any]]:
    """Returns all whole rows; a last one that is torn by a kill is left out, other damage told."""
    try:
        text = inputs.read(path, _MOST).decode()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        inputs.raise_fault(error, path)
        raise Damaged(f"{path.name} is damaged ({reason(error)})") from None
    return rows_of(text, path.name)


def rows_of(text: str, name: str) -> list[dict[str, Any]]:
    """Returns the rows of a text; refuses lines that are none, and rounds that are not in order."""
    *whole, _torn = text.split("\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(whole, 1):
        try:
            row = inputs.parse_json(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or type(row.get("round")) is not int:
            raise Damaged(f"line {number} of {name} is no row of a round")
        if rows and row["round"] != rows[-1]["round"] + 1:
            raise Damaged(f"line {number} of {name} is round {row['round']}, out of order")
        rows.append(row)
    return rows


def append(path: Path, line: str) -> None:
    """Adds a row, given as it is written."""
    with path.open("a") as file:
        file.write(line)
