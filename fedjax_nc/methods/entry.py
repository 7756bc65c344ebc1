"""The record of a method or regulariser, made from its source or from the function itself."""

import ast
import inspect
import re
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_nc import inputs
from fedjax_nc.errors import UserError, quoted

KINDS = ("base", "regulariser")  # also the names of their decorators
_SECTIONS = ("Paper", "Changes", "Defaults", "Differs", "Uploads")
_ANNOTATION = 10_000  # characters of the annotation of a hyperparameter
_PLAIN = (bool, int, float, str)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Entry(NamedTuple):
    """A base method or a regulariser."""

    name: str
    kind: str  # base | regulariser
    family: str  # the file it lives in
    hyper: dict[str, Any]  # hyperparameter -> default
    choices: dict[str, tuple[Any, ...]]  # hyperparameter -> what it may be, where that is a list
    help: dict[str, str]  # hyperparameter -> its line under "Args:"
    summary: str
    sections: dict[str, str]  # Paper, Changes, Defaults, Differs, Uploads, as far as given
    function: str  # the factory's own name
    origin: str  # the file's path, or `__main__` in a notebook
    load: Callable[[], Any] | None  # imports the file, so that its decorators run

    @property
    def paper(self) -> str:
        """The paper, or the summary of a method that names none."""
        return self.sections.get("Paper", self.summary)

    @property
    def venue(self) -> str:
        """Where the paper appeared, or its year: `ICLR 2023`; empty without either."""
        paper = self.sections.get("Paper", "")
        found = re.search(r", ((?:[A-Z]\w+(?: [A-Z]+)?|arXiv [\d.]+),? (?:19|20)\d\d)\b", paper)
        years = re.findall(r"\b(?:19|20)\d\d\b", paper)
        return found.group(1) if found else "".join(years[-1:])


def from_source(tree: ast.Module, path: Path, load: Callable[[], Any]) -> list[Entry]:
    """Makes an entry of every decorated function at the top level of a parsed file."""
    constants = literals(tree)
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            kinds = {last_name(d) for d in node.decorator_list} & set(KINDS)
            where = f"{node.name} in {path}, line {node.lineno}"
            for kind in sorted(kinds):
                entry = _entry(
                    node.name,
                    kind,
                    doc=ast.get_docstring(node) or "",
                    parameters=_written(node.args, constants, where=where),
                    where=where,
                    origin=str(path),
                    load=load,
                )
                found.append(entry)
    return found


def from_function(factory: Callable, kind: str, origin: str) -> Entry:
    """Makes the entry of a function that exists: one of a notebook, or of an imported file."""
    where = f"{factory.__name__} in {origin}"
    parameters = inspect.signature(factory).parameters.values()
    for parameter in parameters:
        if parameter.kind not in _NAMED or parameter.default is parameter.empty:
            raise _not_a_keyword(where, parameter.name)
    return _entry(
        factory.__name__,
        kind,
        doc=inspect.getdoc(factory) or "",
        parameters=[(p.name, p.default, _choices(p.annotation)) for p in parameters],
        where=where,
        origin=origin,
        load=None,
    )


def last_name(node: ast.expr) -> str:
    """Returns `base` of `base` and of `fedjax_nc.base`, and nothing of other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def literals(tree: ast.Module) -> dict[str, Any]:
    """Returns the constants a file assigns at its top level."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = literal(node.value, found)
            except ValueError:
                found.pop(node.targets[0].id, None)
    return found


def literal(node: ast.expr, constants: dict[str, Any]) -> Any:
    """Returns the value of a literal or of a constant's name; ValueError if it is neither."""
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    return inputs.literal(node)


def _written(args: ast.arguments, constants: dict[str, Any], where: str):
    """Reads names, defaults and choices of a function's parameters from its source."""
    for arg in (*args.posonlyargs, args.vararg, args.kwarg):
        if arg:
            raise _not_a_keyword(where, arg.arg)
    none: list[Any] = [None] * (len(args.args) - len(args.defaults))
    defaults = [*none, *args.defaults, *args.kw_defaults]
    for arg, default in zip([*args.args, *args.kwonlyargs], defaults, strict=True):
        if default is None:
            raise _not_a_keyword(where, arg.arg)
        try:
            yield arg.arg, literal(default, constants), _choices(arg.annotation)
        except ValueError:
            raise UserError(
                f"{where}: the default of '{arg.arg}' is computed: write it as a literal"
            ) from None


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Returns what `Literal[...]` allows, given as an object, a text or a parsed expression."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    node = annotation.value if isinstance(annotation, ast.Constant) else annotation
    try:
        if isinstance(node, str):
            node = inputs.parse_python(node, _ANNOTATION, mode="eval").body
        if not isinstance(node, ast.Subscript) or last_name(node.value) != "Literal":
            return ()
        words = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return tuple(inputs.literal(word) for word in words)
    except (SyntaxError, ValueError):  # of names that only importing the file would tell
        return ()


def _entry(
    function: str,
    kind: str,
    *,
    doc: str,
    parameters: Iterable[tuple[str, Any, tuple[Any, ...]]],
    where: str,
    origin: str,
    load: Callable[[], Any] | None,
) -> Entry:
    parameters = list(parameters)
    for name, default, _ in parameters:
        values = default if isinstance(default, tuple) else (default,)
        if not all(type(value) in _PLAIN for value in values):
            raise UserError(
                f"{where}: '{name}' = {quoted(default)}: a hyperparameter is a number, True or "
                "False, a text, or a tuple of these"
            )
    lines = re.findall(r"^  (\w+): (.+(?:\n    .+)*)", doc, re.MULTILINE)
    sections = {
        title: " ".join(match.group(1).split())
        for title in _SECTIONS
        if (match := re.search(rf"^{title}:((?:.+)(?:\n  +.+)*)", doc, re.MULTILINE))
    }
    return Entry(
        function.removesuffix("_reg"),
        kind,
        family=Path(origin).stem,
        hyper={name: default for name, default, _ in parameters},
        choices={name: choices for name, _, choices in parameters if choices},
        help={name: " ".join(text.split()) for name, text in lines},
        summary=doc.splitlines()[0] if doc else "",
        sections=sections,
        function=function,
        origin=origin,
        load=load,
    )


def _not_a_keyword(where: str, name: str) -> UserError:
    return UserError(
        f"{where}: '{name}' is no keyword with a default: write each hyperparameter as name=value"
    )
