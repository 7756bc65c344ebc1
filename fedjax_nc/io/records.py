"""metrics.jsonl: one row per round, cut back to the checkpoint when a run resumes."""

import json
from pathlib import Path
from typing import Any

from fedjax_nc.io.files import write_atomically


def read(path: Path) -> list[dict[str, Any]]:
    """All whole rows; a row torn by a kill is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def cut(path: Path, rounds: int) -> list[dict[str, Any]]:
    """Keep the rows up to a round, and return them."""
    rows = [row for row in read(path) if row["round"] <= rounds]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
    return rows


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a row."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
