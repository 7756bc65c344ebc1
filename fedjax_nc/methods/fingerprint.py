"""Short checksums of objects a person brings along: methods, partitioners, networks.

A fingerprint sees the code of functions (name, bytecode, constants), what they close over, their
defaults, the constants and functions of one's own that they use, and the values inside records,
containers and arrays. It is the same in every process of one version of Python. Code that can be
imported from this package or an installed one counts by its name.
"""

import copyreg
import dataclasses
import dis
import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc.errors import UserError
from fedjax_nc.methods import catalogue, registry
from fedjax_nc.methods.base import Method, Phase
from fedjax_nc.types import HeadSpec

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_INSTALLED = {
    Path(__file__).resolve().parents[1],
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")),
}
# what Python itself puts into a class, some of it in an order that changes with every process
_OF_PYTHON = {"__module__", "__doc__", "__dict__", "__weakref__", "__firstlineno__"}
_OF_PYTHON |= {"__static_attributes__", "__annotations__", "__dataclass_fields__"}
# fields that came later, all at the end, which count only where they differ from their defaults
_LATER = {Phase: ("start", "moves", "visits"), HeadSpec: ("scale",)}


def fingerprint(obj: Any) -> str:
    """Returns eight hexadecimal digits that differ for objects that compute different things."""
    return _Walk().digest(obj).hex()[:8]


def is_named(method: Method) -> bool:
    """Returns whether a name alone describes a method: it builds the same, and nobody edits it.

    Methods of a notebook or a script have names too, and change under them.
    """
    try:
        if not all(catalogue.is_kept(piece.entry) for piece in catalogue.parse(method.name)):
            return False
        return fingerprint(registry.build(method.name)) == fingerprint(method)
    except UserError:
        return False


class _Parts(NamedTuple):
    """What an object consists of."""

    kind: str
    items: Iterable[Any]
    ordered: bool = True


class _Member(NamedTuple):
    """A value that a function uses of its module, or one of a class."""

    value: Any


class _Walk:
    """Digests objects, each of them once."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}
        self.alive: list[Any] = []  # an id is unique only among living objects

    def digest(self, obj: Any) -> bytes:
        """Returns the digest of an object; a cycle ends where it closes."""
        if type(obj) in _PLAIN:
            return _hash(type(obj).__name__, [repr(obj).encode()])
        if id(obj) not in self.known:
            self.alive.append(obj)
            self.known[id(obj)] = b"cycle"
            parts = _parts(obj)
            digests = [self.digest(item) for item in parts.items]
            digests = digests if parts.ordered else sorted(digests)
            self.known[id(obj)] = _hash(parts.kind, digests)
        return self.known[id(obj)]


def _hash(kind: str, digests: Iterable[bytes]) -> bytes:
    total = hashlib.sha256(kind.encode())
    for digest in digests:
        total.update(len(digest).to_bytes(8, "big") + digest)
    return total.digest()


def _parts(obj: Any) -> _Parts:
    """Takes an object apart by what it is."""
    if isinstance(obj, _Member):
        return _member(obj.value)
    if name := _installed_name(obj):
        return _Parts("installed", (name,))
    if isinstance(obj, types.FunctionType):
        return _function(obj)
    if isinstance(obj, types.CodeType):
        return _code(obj)
    if isinstance(obj, types.MethodType):
        return _Parts("method", (obj.__func__, obj.__self__))
    if isinstance(obj, functools.partial):
        return _Parts("partial", (obj.func, obj.args, obj.keywords))
    if isinstance(obj, staticmethod | classmethod):
        return _Parts(type(obj).__name__, (obj.__func__,))
    if isinstance(obj, property):
        return _Parts("property", (obj.fget, obj.fset, obj.fdel))
    if isinstance(obj, types.ModuleType):
        return _Parts("module", () if _is_installed(obj) else (_source(obj),))
    if isinstance(obj, type):
        return _class(obj)
    if isinstance(obj, Enum):
        return _Parts("enum", (type(obj), obj.name, obj.value))
    if isinstance(obj, np.ndarray | np.generic | jax.Array):
        return _array(obj)
    if type(obj) in _LATER:
        old = [v for f, v in obj._asdict().items() if not _is_unused(obj, f)]
        return _Parts("sequence", (type(obj), *old))
    if isinstance(obj, tuple | list):
        return _Parts("sequence", (type(obj), *obj))
    if isinstance(obj, Mapping):
        return _Parts("mapping", obj.items(), ordered=False)
    if isinstance(obj, set | frozenset):
        return _Parts("set", obj, ordered=False)
    if dataclasses.is_dataclass(obj):
        values = [(f.name, getattr(obj, f.name, None)) for f in dataclasses.fields(obj)]
        return _Parts("dataclass", (type(obj), *values))
    return _state(obj)


def _is_unused(record: Any, field: str) -> bool:
    late = field in _LATER[type(record)]
    return late and getattr(record, field) == record._field_defaults[field]


def _function(function: types.FunctionType) -> _Parts:
    while _adds_nothing(function):
        function = function.__wrapped__  # type: ignore[attr-defined]
    cells = [_content(cell) for cell in function.__closure__ or ()]
    used = {} if _is_installed(function) else _globals(function)
    defaults = (function.__defaults__, function.__kwdefaults__)
    return _Parts("function", (function.__code__, cells, defaults, used))


def _adds_nothing(function: types.FunctionType) -> bool:
    """Whether a function checks the types of another one or names its result, and no more."""
    file = Path(function.__code__.co_filename)
    around = file.name.startswith("<@beartype") or file.parent.name == "jaxtyping"
    around = around or str(file) == registry.__file__
    return around and isinstance(getattr(function, "__wrapped__", None), types.FunctionType)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return "empty"


def _code(code: types.CodeType) -> _Parts:
    names = (code.co_qualname, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return _Parts("code", (code.co_code, code.co_exceptiontable, code.co_consts, names, counts))


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """Returns what a function uses of its module."""
    names = set(_global_names(function.__code__))
    return {k: _Member(v) for k, v in function.__globals__.items() if k in names}


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _member(value: Any) -> _Parts:
    """Leaves out the state of objects that a run may change, such as a random generator."""
    if type(value) not in _PLAIN and (parts := _parts(value)).kind == "object":
        cls, wrapped, _ = parts.items
        return _Parts("member", (cls, wrapped))
    return _Parts("member", (value,))


def _class(cls: type) -> _Parts:
    if _is_installed(cls):
        return _Parts("class", (cls.__module__, cls.__qualname__))
    members = {k: _Member(v) for k, v in vars(cls).items() if k not in _OF_PYTHON}
    return _Parts("class", (cls.__qualname__, cls.__bases__, members))


def _array(array: Any) -> _Parts:
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return _Parts("key", (str(array.dtype), jax.random.key_data(array)))
    values = np.asarray(array)
    content = values.tolist() if values.dtype.hasobject else values.tobytes()
    return _Parts("array", (str(values.dtype), values.shape, content))


def _state(obj: Any) -> _Parts:
    """Takes any other object apart as pickle would; what pickle refuses counts by its class."""
    wrapped = getattr(obj, "__wrapped__", None)  # of jax.jit and the like
    try:
        reduce = copyreg.dispatch_table.get(type(obj))
        made = reduce(obj) if reduce else obj.__reduce_ex__(4)
        state = made if isinstance(made, str) else [*made[:3], *(list(i or ()) for i in made[3:5])]
    except Exception:
        state = None
    return _Parts("object", (type(obj), wrapped, state))


def _installed_name(obj: Any) -> str:
    """Returns module and name of what an installed module or this package holds."""
    if isinstance(obj, types.ModuleType):
        return obj.__name__ if _is_installed(obj) else ""
    module = sys.modules.get(getattr(obj, "__module__", None) or "")
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    if module is None or not isinstance(name, str) or not _is_installed(module):
        return ""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module.__name__}.{name}" if found is obj else ""


def _is_installed(obj: types.FunctionType | types.ModuleType | type) -> bool:
    """Whether code is Python's, this package's or that of an installed one."""
    if isinstance(obj, types.FunctionType):
        return _in_installed(obj.__code__.co_filename)
    name = obj.__module__ if isinstance(obj, type) else obj.__name__
    top = name.split(".")[0]
    for module in (name, top):  # a part of a compiled library has no file of its own
        if file := getattr(sys.modules.get(module), "__file__", None):
            return _in_installed(file)
    return top in sys.stdlib_module_names


@functools.cache
def _in_installed(file: str) -> bool:
    if file.startswith("<"):  # a notebook's cell, or made by a function such as `dataclass`
        return file.startswith("<frozen")
    folders = Path(file).resolve().parents
    return any(folder in folders for folder in _INSTALLED)


def _source(module: types.ModuleType) -> bytes:
    """Returns the source of one's own module, of which any function may be used."""
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file else module.__name__.encode()
