"""Settings that come from files and from Python, checked by the types of a dataclass's fields."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedjax_nc.errors import UserError, quoted, unknown

LARGEST = 2**63  # whole numbers from here on fit no array
_LARGEST_FLOAT = 10**300


def filled(old: Any, content: Any, prefix: str = "") -> Any:
    """Returns a record with the settings of a table in their place; what it leaves out stays.

    Args:
      old: a frozen dataclass, whose fields may be such records themselves.
      content: what a file says, so anything.
      prefix: how the names of the settings begin in errors, such as "local.".
    """
    if not isinstance(content, Mapping):
        where = prefix.removesuffix(".") or "a configuration"
        raise UserError(f"{where} is a table of settings, {quoted(content)} was given")
    hints, values = get_type_hints(type(old)), {}
    strange = sorted(f"{prefix}{name}" for name in content if name not in hints)
    if strange:
        raise UserError(f"a setting that this version does not know: {', '.join(strange)}")
    for name, given in content.items():
        present, full = getattr(old, name), f"{prefix}{name}"
        if dataclasses.is_dataclass(present):
            values[name] = filled(present, given, prefix=f"{full}.")
        else:
            values[name] = value(full, given, kind=hints[name])
    return dataclasses.replace(old, **values)


def value(name: str, given: Any, kind: Any) -> Any:
    """Returns a value as its setting's type, or refuses it."""
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        if given in inner:
            return given
        raise unknown(name, given if isinstance(given, str) else quoted(given), allowed=inner)
    if get_origin(kind) is tuple:
        if isinstance(given, list | tuple):
            return tuple(value(name, item, kind=inner[0]) for item in given)
    elif type(None) in inner:
        return None if given is None else value(name, given, kind=inner[0])
    elif kind is float and type(given) is int and abs(given) < _LARGEST_FLOAT:
        return float(given)
    elif type(given) is kind:
        return given
    wanted = getattr(kind, "__name__", str(kind)) if not inner else str(kind)
    raise UserError(f"{name} is {wanted}, {quoted(given)} was given")


def check_numbers(record: Any) -> None:
    """Refuses whole numbers that fit no array, naming the flag."""
    for name, number in _numbers(record):
        if abs(number) >= LARGEST:
            raise UserError(f"--{name}={quoted(number)}: give a smaller number")


def _numbers(record: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    for field in dataclasses.fields(record):
        found = getattr(record, field.name)
        if dataclasses.is_dataclass(found):
            yield from _numbers(found, f"{prefix}{field.name}.")
        for number in found if isinstance(found, tuple) else (found,):
            if isinstance(number, int):
                yield f"{prefix}{field.name}", number
