"""Datasets in .npz files: what their headers tell, read without importing numpy."""

import array
import hashlib
import lzma
import math
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_nc import inputs
from fedjax_nc.data.spec import DatasetSpec, kind_of
from fedjax_nc.errors import UserError, reason
from fedjax_nc.inputs import MEGABYTE

# The names of the four arrays: ours, and those that Keras writes.
KEYS = (("train_x", "train_y", "test_x", "test_y"), ("x_train", "y_train", "x_test", "y_test"))
DAMAGE = (  # what reading a damaged archive raises
    *(OSError, EOFError, ValueError, SyntaxError, LookupError, TypeError, OverflowError),
    *(RuntimeError, MemoryError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)
# A file may unpack to this much, or to so many times its size: measured data never shrinks so far,
# zeros shrink a thousandfold.
_UNPACKED, _TIMES = 256 * MEGABYTE, 200
_HEADER = 10_000  # characters of an array's header, as numpy limits it
_CODES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}


class Header(NamedTuple):
    """What precedes an array in a .npy file."""

    descr: str  # the dtype, such as "<i8"
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The bytes of the array that follows."""
        kind = re.fullmatch(r"[<>|=]?([biufcSU?])(\d{1,9})?", self.descr)
        if not kind:
            raise ValueError("it holds something else than numbers")
        each = int(kind[2] or 1) * (4 if kind[1] == "U" else 1)
        return each * math.prod(self.shape)


def inspect(path: str) -> DatasetSpec:
    """Returns the record of a dataset in a file, from the arrays' headers and the labels alone.

    Mean, standard deviation and the number of words are left out, since only the examples tell
    them.
    """
    with _opened(path) as file:
        keys = find_keys([name.removesuffix(".npy") for name in file.namelist()], path)
        known, classes = check_arrays(file), 0
        headers = [known[key] for key in keys]
        for key, header in zip(keys, headers, strict=True):
            with file.open(f"{key}.npy") as stream:
                if key in (keys[1], keys[3]):
                    _header(stream)
                    if header.descr[1:] not in _CODES:
                        raise UserError(
                            f"{path}: {key} is {header.descr} {list(header.shape)}: give one "
                            "integer label per example"
                        )
                    classes = max(classes, _largest(stream.read(), header.descr) + 1)
    (_, train), (_, labels), (_, test), (_, test_labels) = headers
    if len(train) not in (2, 3, 4) or train[1:] != test[1:]:
        raise UserError(
            f"{path}: {keys[0]} is {list(train)} and {keys[2]} {list(test)}: give both as images "
            "[n, h, w] or [n, h, w, c], or as word ids [n, length]"
        )
    if train[:1] != labels[:1] or test[:1] != test_labels[:1]:
        raise UserError(
            f"{path}: {train[0]} and {test[0]} examples, {labels[0] if labels else 0} and "
            f"{test_labels[0] if test_labels else 0} labels: give every example one label"
        )
    shape = (*train[1:], 1) if len(train) == 3 else train[1:]
    return DatasetSpec(
        name=path,
        classes=classes,
        shape=shape,
        train=train[0],
        test=test[0],
        kind=kind_of(shape),
        source="an .npz file",
    )


def find_keys(names: Iterable[str], path: str) -> tuple[str, ...]:
    """Returns the names of the four arrays among those of a file, or refuses the file."""
    present = list(names)
    for keys in KEYS:
        if set(keys) <= set(present):
            return keys
    raise UserError(
        f"{path} holds {', '.join(sorted(present)) or 'nothing'}: give it the arrays "
        f"{', '.join(KEYS[0])}, or {', '.join(KEYS[1])}"
    )


def fingerprint(path: str) -> str:
    """Returns eight hexadecimal characters that change with the content of the four arrays.

    They are those that `arrays.fingerprint` gives for the same arrays.
    """
    digest = hashlib.sha256()
    with _opened(path) as file:
        for key in find_keys([name.removesuffix(".npy") for name in file.namelist()], path):
            with file.open(f"{key}.npy") as stream:
                header = _header(stream)
                digest.update(f"{header.descr} {header.shape}\n".encode())
                for block in iter(lambda stream=stream: stream.read(1 << 20), b""):
                    digest.update(block)
    return digest.hexdigest()[:8]


def check_arrays(file: zipfile.ZipFile) -> dict[str, Header]:
    """Returns the headers of an archive's arrays, each of which is as long as its header says."""
    headers = {}
    for info in file.infolist():
        name = info.filename.removesuffix(".npy")
        if name in headers:
            raise ValueError(f"it holds '{name}' twice")
        with file.open(info) as stream:
            headers[name] = _header(stream)
            if stream.tell() + headers[name].size != info.file_size:
                raise ValueError(f"'{name}' is not as long as it says")
    return headers


def check_unpacked(file: zipfile.ZipFile, most: int) -> None:
    """Refuses an archive that unpacks to more than so many bytes."""
    unpacked = sum(info.file_size for info in file.infolist())
    if unpacked > most:
        raise ValueError(
            f"it unpacks to {unpacked / MEGABYTE:.0f} MB, more than {most / MEGABYTE:.0f}"
        )


@contextmanager
def _opened(path: str) -> Iterator[zipfile.ZipFile]:
    try:
        found = Path(path).expanduser()
        inputs.check_file(found)
        with zipfile.ZipFile(found) as file:
            check_unpacked(file, max(_UNPACKED, _TIMES * found.stat().st_size))
            yield file
    except FileNotFoundError:
        raise UserError(f"dataset file '{path}' does not exist") from None
    except DAMAGE as error:
        raise UserError(
            f"cannot read '{path}' as an .npz file ({reason(error)}): write it again, with "
            "numpy.savez"
        ) from error


def _header(stream: Any) -> Header:
    magic, major = stream.read(6), stream.read(2)[0]
    if magic != b"\x93NUMPY":
        raise ValueError("it holds something else than arrays")
    (length,) = struct.unpack(*(("<H", stream.read(2)) if major == 1 else ("<I", stream.read(4))))
    text = stream.read(min(length, _HEADER + 1)).decode("latin1").strip()
    content = inputs.literal(inputs.parse_python(text, _HEADER, mode="eval").body)
    if not isinstance(content["descr"], str):
        raise ValueError("it holds an array of records")
    shape = tuple(content["shape"])
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("it holds an array without a shape")
    return Header(content["descr"], shape)


def _largest(content: bytes, descr: str) -> int:
    labels = array.array(_CODES[descr[1:]], content)
    if descr[0] in "<>" and (descr[0] == "<") != (sys.byteorder == "little"):
        labels.byteswap()
    return max(labels, default=-1)
