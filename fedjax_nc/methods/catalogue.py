"""What methods exist and what they take, read from their source without importing jax.

A method's keyword arguments are its hyperparameters and its docstring is its manual page, so the
flags, `--list` and docs/methods.md all come from the factory itself.
"""

import ast
import functools
import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_nc import inputs
from fedjax_nc.errors import UserError, quoted, unknown
from fedjax_nc.methods import entry as entries
from fedjax_nc.methods.entry import Entry

_LONGEST = 2000  # characters of a specification; one with every hyperparameter has some 300
_LARGEST = 2**31  # whole numbers beyond it overflow in the arithmetic of a run
_ADDED: dict[tuple[str, str], Entry] = {}  # from outside the package, by kind and name


class Piece(NamedTuple):
    """One name of a specification, with the arguments given to it."""

    entry: Entry
    kwargs: dict[str, Any]


@functools.cache
def _built_in() -> dict[tuple[str, str], Entry]:
    found = {}
    for path in sorted(Path(__file__).resolve().parent.glob("*.py")):
        load = functools.partial(importlib.import_module, f"{__package__}.{path.stem}")
        for entry in entries.from_source(ast.parse(path.read_bytes()), path, load=load):
            found[entry.kind, entry.name] = entry
    return found


def bases() -> dict[str, Entry]:
    """Returns the methods that stand alone."""
    return _of_kind("base")


def regularisers() -> dict[str, Entry]:
    """Returns the regularisers, which follow a bar."""
    return _of_kind("regulariser")


def _of_kind(kind: str) -> dict[str, Entry]:
    return {e.name: e for e in (*_built_in().values(), *_ADDED.values()) if e.kind == kind}


def read(tree: ast.Module, path: Path, load: Callable[[], Any]) -> list[Entry]:
    """Adds the methods and regularisers of a parsed file, which `load` imports later."""
    return [add(entry) for entry in entries.from_source(tree, path, load=load)]


def add(entry: Entry) -> Entry:
    """Adds an entry; a file or notebook may replace its own, and no other."""
    key = (entry.kind, entry.name)
    old = _built_in().get(key) or _ADDED.get(key)
    if old and old.origin != entry.origin:
        raise UserError(
            f"{entry.kind} '{entry.name}' is defined in {old.origin} and in {entry.origin}: rename "
            "one of them"
        )
    if key in _built_in():
        return _built_in()[key]
    if old and entry.load is None:  # the file is being imported
        entry = entry._replace(load=old.load)
    _ADDED[key] = entry
    return entry


def is_kept(entry: Entry) -> bool:
    """Returns whether an entry is the package's own or a plugin's, whose file is recorded."""
    return (entry.kind, entry.name) in _built_in() or entry.load is not None


def forget(origin: str) -> None:
    """Removes what a file outside the package has added."""
    for key in [key for key, entry in _ADDED.items() if entry.origin == origin]:
        del _ADDED[key]


def parse(spec: str) -> list[Piece]:
    """Splits "a(x=1) | b" into names and arguments, all known."""
    if len(spec) > _LONGEST:
        raise UserError(
            f"method {quoted(spec)} has {len(spec)} characters: give at most {_LONGEST}, as name "
            "or name(x=1), joined by ' | '"
        )
    pieces = []
    texts = [part for text in spec.split("|") for part in _fine_tuned(text.strip())]
    for position, text in enumerate(texts):
        name, kwargs = _call(text, spec)
        allowed = regularisers() if position else bases()
        if name not in allowed:
            raise unknown("regulariser" if position else "method", name, allowed=allowed)
        entry = allowed[name]
        pieces.append(Piece(entry, {k: checked(entry, k, value=v) for k, v in kwargs.items()}))
    return pieces


def show(piece: Piece) -> str:
    """Writes a name with its arguments the one canonical way: in order, without defaults."""
    given = [
        f"{key}={piece.kwargs[key]!r}"
        for key, default in piece.entry.hyper.items()
        if piece.kwargs.get(key, default) != default
    ]
    return f"{piece.entry.name}({', '.join(given)})" if given else piece.entry.name


def with_hyper(spec: str, overrides: dict[str, Any]) -> str:
    """Puts hyperparameters into a specification and writes it the one canonical way.

    An override goes to the piece that has such a hyperparameter; defaults are left out.
    """
    pieces = parse(spec)
    for key, value in overrides.items():
        owners = [p for p in pieces if key in p.entry.hyper]
        if len(owners) > 1:
            raise UserError(f"several pieces of '{spec}' take '{key}': write it as name({key}=...)")
        owner = owners[0] if owners else pieces[-1]
        owner.kwargs[key] = checked(owner.entry, key, value=value)
    return " | ".join(show(p) for p in pieces)


def completed(spec: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Puts hyperparameters where a specification leaves them open, in the one canonical way.

    Args:
      spec: the specification.
      settings: hyperparameters of each name; a regulariser's begins with its bar: `| ccvr`.
    """
    pieces = parse(spec)
    for entry, kwargs in pieces:
        name = f"| {entry.name}" if entry.kind == "regulariser" else entry.name
        own = {k: checked(entry, k, value=v) for k, v in settings.get(name, {}).items()}
        kwargs.update(own | kwargs)
    return " | ".join(show(p) for p in pieces)


def choices_of(spec: str) -> dict[str, tuple[Any, ...]]:
    """Returns the words that may be chosen, of each hyperparameter that has a list of them."""
    return {k: v for entry, _ in parse(spec) for k, v in entry.choices.items()}


def hyper_of(spec: str) -> dict[str, tuple[Any, str]]:
    """Returns what `--hp.` can set for this specification: name -> (present value, manual line)."""
    values: dict[str, tuple[Any, str]] = {}
    clashes = set()
    for entry, kwargs in parse(spec):
        present = {k: (kwargs.get(k, v), entry.help.get(k, "")) for k, v in entry.hyper.items()}
        clashes |= values.keys() & present.keys()
        values |= present
    return {k: v for k, v in values.items() if k not in clashes}


def checked(entry: Entry, key: str, value: Any) -> Any:
    """Returns a hyperparameter as the type of its default, if its type and choices allow it.

    Which numbers make sense is for the factory to say; only those that are not finite are refused.
    """
    if key not in entry.hyper:
        if not entry.hyper:
            raise UserError(f"'{entry.name}' has no hyperparameters, '{key}' was given")
        raise unknown(f"hyperparameter of {entry.name}", key, allowed=entry.hyper)
    default, choices = entry.hyper[key], entry.choices.get(key)
    try:
        value = _as(default, value)
    except TypeError:
        wanted = type(default).__name__
        raise UserError(
            f"hyperparameter {key} of {entry.name} is {wanted}, {quoted(value)} was given"
        ) from None
    if choices and value not in choices:
        raise unknown(f"{key} of {entry.name}", str(value), allowed=map(str, choices))
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, float) and not math.isfinite(number):
            raise UserError(f"hyperparameter {key}={value} of {entry.name}: give finite numbers")
        if isinstance(number, int) and abs(number) >= _LARGEST:
            raise UserError(
                f"hyperparameter {key}={quoted(value)} of {entry.name}: give whole numbers below "
                f"{_LARGEST}"
            )
    return value


def _as(default: Any, value: Any) -> Any:
    """Returns the value as the type of the default, where no number changes by it."""
    value = value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value
    if isinstance(default, tuple) and isinstance(value, tuple | list):
        alike = len({type(d) for d in default}) == 1
        return tuple(_as(default[0] if alike else v, v) for v in value)
    if isinstance(default, float) and type(value) is int:
        return float(value) if abs(value) < 10**inputs.DIGITS else math.inf
    if type(value) is not type(default):
        raise TypeError
    return value


def _fine_tuned(text: str) -> tuple[str, ...]:
    """`X-ft`, as tables write it, is `X | ft`."""
    return (text.removesuffix("-ft"), "ft") if text.endswith("-ft") else (text,)


def _call(piece: str, spec: str) -> tuple[str, dict[str, Any]]:
    try:
        node = inputs.parse_python(piece, _LONGEST, mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            kwargs = {str(k.arg): inputs.literal(k.value) for k in node.keywords}
            if len(kwargs) == len(node.keywords):  # none twice
                return node.func.id, kwargs
    except (SyntaxError, ValueError):
        pass
    raise UserError(f"cannot read method {quoted(spec)}: write name or name(x=1), joined by ' | '")
