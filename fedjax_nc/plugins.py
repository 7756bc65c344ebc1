"""Files outside the package that add methods, regularisers, datasets and models.

`read` finds what a file registers without importing it, so that flags and lists know it at once;
`load` imports the files when a run needs them.
"""

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedjax_nc import inputs, typed
from fedjax_nc.data.catalogue import DATASETS, register_dataset
from fedjax_nc.errors import UserError, reason
from fedjax_nc.methods import catalogue
from fedjax_nc.methods.entry import last_name, literal, literals
from fedjax_nc.models.catalogue import MODELS, register_model

_LARGEST = inputs.MEGABYTE  # bytes of a plugin, which is parsed whole at every start
GROUP = "fedjax_nc.plugins"  # the entry points whose modules are read
# what a file may call, and the records that the call adds to
_REGISTER = {
    "register_dataset": (register_dataset, DATASETS),
    "register_model": (register_model, MODELS),
}
_DEFERRED = ("load", "module")  # their keywords that need not be literals
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("name", "kind", "source", "summary", "norm", *_DEFERRED), str),
    **dict.fromkeys(("classes", "train", "test", "words", "min_size", "blocks"), int),
    **dict.fromkeys(("mean", "std"), tuple[float, ...]),
    "shape": tuple[int, ...],
    "text": bool,
    "options": dict,
}


@dataclass(frozen=True)
class Plugin:
    """A file that was read."""

    path: Path
    name: str  # the module's, by which it is imported
    dotted: bool  # found by that name, not by its path
    content: bytes
    records: list[tuple[str, str]] = field(default_factory=list)  # (register function, name)

    @property
    def sha256(self) -> str:
        """The checksum of the file as it was read."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class Pending:
    """Stands for an object of a file until the file is imported, which registers it again."""

    expression: str
    path: Path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses, since the object does not exist yet."""
        raise UserError(
            f"{self.expression} of {self.path} is needed before the file is imported: call "
            "fedjax_nc.plugins.load() first"
        )


_READ: dict[Path, Plugin] = {}
_LOADED: dict[Path, bytes] = {}  # path -> what was imported


def read(names: Iterable[str] = ()) -> None:
    """Reads plugins: paths of .py files, dotted names of modules, and all installed entry points.

    The same file twice is one plugin; a file that has changed in between is read again.
    """
    for name in names:
        _read(name)
    for point in _entry_points():
        try:
            _read(point.module)
        except UserError as error:
            package = point.dist.name if point.dist else "a package"
            raise UserError(f"{error} (entry point '{point.name}' of {package})") from None


def load() -> None:
    """Imports every plugin that was read and is not imported as it is now."""
    for plugin in _READ.values():
        _load(plugin)


def record() -> list[dict[str, str]]:
    """Returns the path or module and the checksum of every plugin, for run directories."""
    return [
        {"module": p.name, "sha256": p.sha256}
        if p.dotted
        else {"path": str(p.path), "sha256": p.sha256}
        for p in _READ.values()
    ]


def forget() -> None:
    """Removes every plugin and what it added, as if none had been read."""
    for plugin in list(_READ.values()):
        _forget(plugin)
        _LOADED.pop(plugin.path, None)
    _entry_points.cache_clear()


@functools.cache
def _entry_points() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group=GROUP))


def _read(name: str) -> None:
    path, dotted = _find(name)
    try:
        content = inputs.read(path, _LARGEST)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read plugin {path} ({reason(error)}): give another") from error
    old = _READ.get(path)
    if old and old.content == content:
        return
    try:
        tree = inputs.parse_python(content, _LARGEST)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte, or too deep
        raise _broken(path, error, line=getattr(error, "lineno", None)) from None
    if old:
        _forget(old)
    unique = f"fedjax_nc_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    plugin = Plugin(path, name if dotted else unique, dotted=dotted, content=content)
    _READ[path] = plugin
    try:
        methods = catalogue.read(tree, path, load=functools.partial(_load, plugin))
        _read_records(tree, plugin)
        if not methods and not plugin.records:
            raise UserError(
                f"plugin {path} registers nothing: decorate a function with fedjax_nc.base or "
                "fedjax_nc.regulariser, or call register_dataset or register_model at its top level"
            )
    except UserError:
        _forget(plugin)
        raise


def _find(name: str) -> tuple[Path, bool]:
    """Returns the file of a plugin, and whether it was named as a module."""
    inputs.check_path("plugin", name)
    if name.endswith(".py") or os.sep in name:
        path = Path(name).expanduser().resolve()
        if not path.is_file() or path.suffix != ".py":
            raise UserError(f"plugin '{name}': there is no such Python file")
        return path, False
    try:
        spec = importlib.util.find_spec(name)  # imports the packages around it, not the module
    except (ImportError, ValueError):
        spec = None
    except Exception as error:
        raise UserError(f"plugin '{name}': {_one_line(error)}") from None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        near = f"give the file, {name}.py" if Path(f"{name}.py").is_file() else "is it installed?"
        raise UserError(f"plugin '{name}': there is no such Python module: {near}")
    return Path(spec.origin).resolve(), True


def _read_records(tree: ast.Module, plugin: Plugin) -> None:
    """Registers the datasets and models that a file registers at its top level."""
    constants = literals(tree)
    for node in tree.body:
        call = node.value if isinstance(node, ast.Expr | ast.Assign) else None
        if isinstance(call, ast.Call) and last_name(call.func) in _REGISTER:
            function = last_name(call.func)
            try:
                plugin.records.append((function, _register(call, plugin, constants=constants)))
            except (UserError, TypeError) as error:  # TypeError: a wrong keyword, or one is missing
                where = f"plugin {plugin.path}, line {call.lineno}: {function}"
                raise UserError(f"{where}: {error}") from None


def _register(call: ast.Call, plugin: Plugin, constants: dict[str, Any]) -> str:
    """Makes the call of a file in its place, and returns the name that was registered."""
    given = {keyword.arg or "": keyword.value for keyword in call.keywords}
    given |= dict(zip(["name"], call.args, strict=False))
    if "" in given or "name" not in given or len(call.args) > 1:
        raise UserError("write a name and keywords")
    values = {k: _value(k, v, constants=constants, path=plugin.path) for k, v in given.items()}
    function, name = last_name(call.func), values.pop("name")
    for other in _READ.values():
        if other is not plugin and (function, name) in other.records:
            raise UserError(f"'{name}' is registered by {other.path} too: rename one of them")
    if function == "register_model":
        values["source"] = str(plugin.path)
    register, _ = _REGISTER[function]
    register(name, **values)
    return name


def _value(key: str, node: ast.expr, *, constants: dict[str, Any], path: Path) -> Any:
    try:
        found = literal(node, constants)
        return typed.value(key, found, kind=_TYPES[key]) if key in _TYPES else found
    except ValueError:
        if key not in _DEFERRED:
            raise UserError(f"{key} is computed: write it as a literal") from None
        return Pending(ast.unparse(node), path)


def _load(plugin: Plugin) -> None:
    """Imports a plugin unless the same content was imported before."""
    before = _LOADED.get(plugin.path)
    if before == plugin.content:
        return
    _LOADED[plugin.path] = plugin.content  # now, since the file may build what it registers
    try:
        if not plugin.dotted:
            _import_file(plugin)
        elif before and plugin.name in sys.modules:  # it has changed
            importlib.reload(sys.modules[plugin.name])
        else:
            importlib.import_module(plugin.name)
    except BaseException as error:
        _LOADED.pop(plugin.path, None)
        if isinstance(error, UserError | KeyboardInterrupt):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if f.filename == str(plugin.path)]
        raise _broken(plugin.path, error, line=lines[-1] if lines else None) from error


def _import_file(plugin: Plugin) -> None:
    folder = str(plugin.path.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # as for a script, but last: its neighbours hide nothing
    spec = importlib.util.spec_from_file_location(plugin.name, plugin.path)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[plugin.name] = module
    try:  # what was read, neither a later version nor one that Python has cached
        exec(compile(plugin.content, str(plugin.path), "exec"), vars(module))
    except BaseException:
        del sys.modules[plugin.name]
        raise


def _forget(plugin: Plugin) -> None:
    """Removes what a plugin added to the catalogues."""
    catalogue.forget(str(plugin.path))
    for function, name in plugin.records:
        _, records = _REGISTER[function]
        records.pop(name, None)
    del _READ[plugin.path]


def _broken(path: Path, error: BaseException, line: int | None) -> UserError:
    place = f", line {line}" if line else ""
    return UserError(f"plugin {path}{place}: {_one_line(error)}")


def _one_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}"
