"""What methods exist and what they take, read from their source without importing jax.

A method's keyword arguments are its hyperparameters and its docstring is its manual page, so the
flags, `--list` and docs/methods.md all come from the factory itself.
"""

import ast
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_nc.errors import UserError, unknown

_SECTIONS = ("Paper", "Changes", "Defaults", "Differs", "Uploads")


class Entry(NamedTuple):
    """A base method or a regulariser."""

    name: str
    kind: str  # base | regulariser
    family: str  # the file it lives in
    hyper: dict[str, Any]  # hyperparameter -> default
    choices: dict[str, tuple[str, ...]]  # hyperparameter -> what it may be, where that is a list
    help: dict[str, str]  # hyperparameter -> its line under "Args:"
    summary: str
    sections: dict[str, str]  # Paper, Changes, Defaults, Differs, Uploads

    @property
    def venue(self) -> str:
        """Where the paper appeared, or its year: `ICLR 2023`."""
        paper = self.sections["Paper"]
        found = re.search(r", ((?:[A-Z]\w+(?: [A-Z]+)?|arXiv [\d.]+),? (?:19|20)\d\d)\b", paper)
        return found.group(1) if found else re.findall(r"\b(?:19|20)\d\d\b", paper)[-1]


class Piece(NamedTuple):
    """One name of a specification, with the arguments given to it."""

    entry: Entry
    kwargs: dict[str, Any]


@functools.cache
def _entries() -> tuple[Entry, ...]:
    found = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                kinds = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
                found += [
                    _entry(node, k, family=path.stem) for k in kinds & {"base", "regulariser"}
                ]
    return tuple(found)


def bases() -> dict[str, Entry]:
    """Methods that stand alone."""
    return {e.name: e for e in _entries() if e.kind == "base"}


def regularisers() -> dict[str, Entry]:
    """What may follow a bar."""
    return {e.name: e for e in _entries() if e.kind == "regulariser"}


def parse(spec: str) -> list[Piece]:
    """Split "a(x=1) | b" into names and arguments, all known."""
    pieces = []
    texts = [part for text in spec.split("|") for part in _fine_tuned(text.strip())]
    for position, text in enumerate(texts):
        name, kwargs = _call(text, spec)
        allowed = regularisers() if position else bases()
        if name not in allowed:
            raise unknown("regulariser" if position else "method", name, allowed=allowed)
        for key, value in kwargs.items():
            _check(allowed[name], key, value=value)
        pieces.append(Piece(allowed[name], kwargs))
    return pieces


def with_hyper(spec: str, overrides: dict[str, Any]) -> str:
    """The specification with hyperparameters put in, written the one canonical way.

    An override goes to the piece that has such a hyperparameter; defaults are left out.
    """
    pieces = parse(spec)
    for key, value in overrides.items():
        owners = [p for p in pieces if key in p.entry.hyper]
        if len(owners) > 1:
            raise UserError(f"several pieces of '{spec}' take '{key}': write it as name({key}=...)")
        owner = owners[0] if owners else pieces[-1]
        _check(owner.entry, key, value=value)
        owner.kwargs[key] = value
    return " | ".join(_show(p) for p in pieces)


def choices_of(spec: str) -> dict[str, tuple[str, ...]]:
    """What the hyperparameters that are lists of words may be."""
    return {k: v for entry, _ in parse(spec) for k, v in entry.choices.items()}


def hyper_of(spec: str) -> dict[str, tuple[Any, str]]:
    """What `--hp.` can set for this specification: name -> (present value, manual line)."""
    values: dict[str, tuple[Any, str]] = {}
    clashes = set()
    for entry, kwargs in parse(spec):
        present = {k: (kwargs.get(k, v), entry.help.get(k, "")) for k, v in entry.hyper.items()}
        clashes |= values.keys() & present.keys()
        values |= present
    return {k: v for k, v in values.items() if k not in clashes}


def _check(entry: Entry, key: str, value: Any) -> None:
    if key not in entry.hyper:
        if not entry.hyper:
            raise UserError(f"'{entry.name}' has no hyperparameters, '{key}' was given")
        raise unknown(f"hyperparameter of {entry.name}", key, allowed=entry.hyper)
    default = entry.hyper[key]
    number = isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool)
    if type(value) is not type(default) and not number:
        wanted = type(default).__name__
        raise UserError(f"hyperparameter {key} of {entry.name} is {wanted}, {value!r} was given")
    if key in entry.choices and value not in entry.choices[key]:
        raise unknown(f"{key} of {entry.name}", str(value), allowed=entry.choices[key])
    if isinstance(value, int | float) and not 0 <= value < float("inf"):
        raise UserError(f"hyperparameter {key}={value} of {entry.name}: give zero or more")


def _entry(node: ast.FunctionDef, kind: str, family: str) -> Entry:
    doc = ast.get_docstring(node) or ""
    defaults = [ast.literal_eval(d) for d in node.args.kw_defaults if d is not None]
    hyper = dict(zip([a.arg for a in node.args.kwonlyargs], defaults, strict=True))
    choices = {
        a.arg: tuple(ast.literal_eval(a.annotation.slice))
        for a in node.args.kwonlyargs
        if isinstance(a.annotation, ast.Subscript) and ast.unparse(a.annotation.value) == "Literal"
    }
    lines = re.findall(r"^  (\w+): (.+(?:\n    .+)*)", doc, re.MULTILINE)
    manual = {name: " ".join(text.split()) for name, text in lines}
    sections = {
        title: " ".join(match.group(1).split())
        for title in _SECTIONS
        if (match := re.search(rf"^{title}:((?:.+)(?:\n  +.+)*)", doc, re.MULTILINE))
    }
    return Entry(
        node.name.removesuffix("_reg"),
        kind,
        family=family,
        hyper=hyper,
        choices=choices,
        help=manual,
        summary=doc.splitlines()[0] if doc else "",
        sections=sections,
    )


def _fine_tuned(text: str) -> tuple[str, ...]:
    """`X-ft`, as tables write it, is `X | ft`."""
    return (text.removesuffix("-ft"), "ft") if text.endswith("-ft") else (text,)


def _call(piece: str, spec: str) -> tuple[str, dict[str, Any]]:
    try:
        node = ast.parse(piece, mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            kwargs = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
            if len(kwargs) == len(node.keywords):  # none twice
                return node.func.id, kwargs
    except (SyntaxError, ValueError):
        pass
    raise UserError(f"cannot read method '{spec}': write name or name(x=1), joined by ' | '")


def _show(piece: Piece) -> str:
    hyper, kwargs = piece.entry.hyper, piece.kwargs
    values = {k: type(hyper[k])(kwargs[k]) for k in hyper if k in kwargs}  # 1 and 1.0 are one
    given = [f"{k}={v!r}" for k, v in values.items() if v != hyper[k]]
    return f"{piece.entry.name}({', '.join(given)})" if given else piece.entry.name
