"""Reading flags with tyro: errors on one line, and a hint for a flag that does not exist."""

import contextlib
import dataclasses
import difflib
import io
from collections.abc import Iterator
from typing import Annotated, Any, get_type_hints

from fedjax_nc.errors import UserError, quoted

_LONGEST = 10_000  # characters of a flag with its value; a path has 4,000 at most
_SHOWN = 80  # characters of an unknown flag that are looked at
_NEAR = 0.6  # similarity from which on a flag is suggested


def read(shape: Any, argv: list[str], prog: str, default: Any = None) -> Any:
    """Returns an instance of a dataclass filled from flags; an unknown flag is refused."""
    import tyro  # a third of a second that a mistyped method need not wait for

    for word in argv:
        if len(word) > _LONGEST:
            raise UserError(
                f"{quoted(word)} has {len(word)} characters: give at most {_LONGEST} at once"
            )
    said = io.StringIO()
    options = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(said):
            found, rest = tyro.cli(shape, args=argv, prog=prog, return_unknown_args=True, **options)
    except SystemExit as stop:
        if stop.code:
            raise UserError(_reason(said.getvalue())) from None
        raise
    if rest:
        raise unknown_flag(rest[0], list(_names(found)))
    return found


def plugin_flag() -> Any:
    """Returns the type of `--plugin`, which several commands have and which may be repeated."""
    import tyro

    about = "File or dotted module with methods, models or datasets."
    return Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(help=about)]


def given_names(argv: list[str]) -> frozenset[str]:
    """Returns the dotted names of the flags that were typed: `--local.no-nesterov` is one."""
    names = set()
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            group, dot, name = word[2:].split("=")[0].replace("-", "_").rpartition(".")
            names.add(f"{group}{dot}{name.removeprefix('no_')}")
    return frozenset(names)


def values_of(argv: list[str], flag: str) -> list[str]:
    """Returns every value of a flag, before the real parse."""
    values = []
    for i, word in enumerate(argv):
        if word.startswith(f"{flag}="):
            values.append(word.split("=", 1)[1])
        elif word == flag and i + 1 < len(argv):
            values.append(argv[i + 1])
    return values


def unknown_flag(word: str, names: list[str]) -> UserError:
    """Returns the error for a flag that does not exist, with those it may stand for."""
    given = word.split("=")[0][:_SHOWN]
    if not word.startswith("-"):
        return UserError(f"unknown argument {given}: see --help")
    near = suggestions(given, names)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UserError(f"unknown flag {given}: {hint}see --help")


def suggestions(given: str, names: list[str]) -> list[str]:
    """Returns the flags that end in the same word, or else the most similar one."""
    word = given.lstrip("-").replace("-", "_").lower()
    others = {name: name.lstrip("-") for name in names if name != given}
    same = [name for name, other in others.items() if _last(other) == _last(word)]
    if same:
        return same

    def similarity(name: str) -> float:
        other = others[name]
        pairs = ((word, other), (_last(word), _last(other)))
        return max(difflib.SequenceMatcher(None, a, b).ratio() for a, b in pairs)

    best = max(others, key=similarity, default=None)
    return [best] if best and similarity(best) >= _NEAR else []


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _names(flags: Any, prefix: str = "--") -> Iterator[str]:
    """Yields the names of all flags of a parsed dataclass, as tyro forms them."""
    import tyro

    hints = get_type_hints(type(flags), include_extras=True)
    for field in dataclasses.fields(flags):
        marks = getattr(hints[field.name], "__metadata__", ())
        if tyro.conf.Positional in marks:
            continue
        named = [mark.name for mark in marks if getattr(mark, "name", None) is not None]
        name = named[0] if named else field.name
        value = getattr(flags, field.name)
        if dataclasses.is_dataclass(value):
            yield from _names(value, f"{prefix}{name}." if name else prefix)
        else:
            yield f"{prefix}{name}"


def _reason(box: str) -> str:
    """Returns the sentence in the box that tyro draws around an error, on one line."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    start = 1 if lines and lines[0].startswith("─") else 0
    rules = (i for i, line in enumerate(lines) if i >= start and line.startswith("──"))
    text = " ".join(" ".join(lines[start : next(rules, len(lines))]).split()).rstrip(".")
    text = text.removeprefix("Error parsing ")
    return f"{text[:1].lower()}{text[1:]}: see --help" if text else "bad flags: see --help"
