"""A grid from a YAML file: the same flags, a list for an axis, and `zip` and `without` beside."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_nc import inputs
from fedjax_nc.errors import UserError, quoted, reason
from fedjax_nc.io import yamls
from fedjax_nc.sweep.grid import Flag, plain

_MOST = inputs.MEGABYTE
_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")
_HERE = ("grid", "workers", "launcher", "address", "gpus", "name", "columns", "dry_run", "slurm")


class Written(NamedTuple):
    """What a file says of a grid."""

    flags: list[Flag]
    together: tuple[str, ...]
    without: tuple[str, ...]


def read(path: Path) -> Written:
    """Returns the grid that a file describes."""
    try:
        content = yamls.read(path, _MOST)
    except FileNotFoundError:
        raise UserError(f"--grid={path}: there is no such file") from None
    except (OSError, ValueError) as error:
        inputs.raise_fault(error, path)
        raise UserError(f"--grid={path} cannot be read ({reason(error)})") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"--grid={path}: write flags of run with their values, as `rounds: 10`")
    together = _groups(path, content.pop("zip", []))
    without = _conditions(path, content.pop("without", []))
    return Written(_flags(path, content), together=together, without=without)


def _flags(path: Path, content: dict[Any, Any], prefix: str = "") -> list[Flag]:
    """Returns the flags of a table, those of a group within it by their dotted names."""
    found: list[Flag] = []
    for key, value in content.items():
        name = f"{prefix}{key}"
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            raise UserError(f"--grid={path}: {quoted(key)} is no name of a flag")
        if not prefix and name.replace("-", "_") in _HERE:
            raise UserError(f"--grid={path}: {name} is no part of a grid: give it as --{name}")
        if isinstance(value, dict):
            if prefix:
                raise UserError(f"--grid={path}: {name} is a table within a table: give values")
            found += _flags(path, value, f"{name}.")
            continue
        values = value if isinstance(value, list) else [value]
        if not values:
            raise UserError(f"--grid={path}: {name} has no values, so there are no cells")
        texts = tuple(_text(path, name, value=one) for one in values)
        found.append(Flag(plain(f"--{name}"), f"--{name}", values=texts))
    return found


def _text(path: Path, name: str, value: Any) -> str:
    """Returns a value as it is typed; one that takes several words is a list of its own."""
    if isinstance(value, list) and value and not any(isinstance(v, list) for v in value):
        return " ".join(_text(path, name, value=one) for one in value)
    if isinstance(value, str | int | float):
        try:
            return str(value)
        except ValueError:  # a number of more digits than Python writes
            pass
    raise UserError(
        f"--grid={path}: {name} is {quoted(value)}: give numbers, words, true or false, or a list"
    )


def _groups(path: Path, given: Any) -> tuple[str, ...]:
    """Returns groups of axes: [a, b], or several of them, [[a, b], [c, d]]."""
    groups: list[Any] = given if isinstance(given, list) else [None]
    if isinstance(given, list) and given and not any(isinstance(group, list) for group in given):
        groups = [given]
    for group in groups:
        if not (isinstance(group, list) and group and all(isinstance(n, str) for n in group)):
            raise UserError(f"--grid={path}: zip is {quoted(given)}: give names of axes in a list")
    return tuple(",".join(group) for group in groups)


def _conditions(path: Path, given: Any) -> tuple[str, ...]:
    """Returns the cells to leave out: a table of values for each, in a list."""
    tables = given if isinstance(given, list) else [given]
    found = []
    for table in tables:
        if not isinstance(table, dict) or not table:
            raise UserError(
                f"--grid={path}: without is {quoted(given)}: give a list of tables, as "
                "[{method: fedavg, hp.beta: 0.5}]"
            )
        pairs = [f"{name}={_text(path, 'without', value=v)}" for name, v in table.items()]
        found.append(",".join(pairs))
    return tuple(found)
