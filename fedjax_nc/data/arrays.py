"""Examples and labels as arrays: their form, their checks, and what they tell about a dataset."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_nc.data.spec import DatasetSpec, kind_of
from fedjax_nc.errors import UserError

_ROWS = 1024  # examples that are looked at together, so that a large file need not fit in memory


class Arrays(NamedTuple):
    """Images uint8 or float32 [n, h, w, c], or word ids int32 [n, length]; labels int32 [n]."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def check(given: Any, where: str) -> Arrays:
    """Refuses arrays that are no dataset, and brings others into the form that rounds compute on.

    Images are [n, h, w] or [n, h, w, c]. Those of uint8 stay as they are; whole numbers from 0 to
    255, and floats from 0 to 1 that are such numbers divided by 255, become uint8 without loss; all
    other floats become float32. Rows of word ids are integers [n, length]. Labels are integers from
    0 to C - 1, [n] or [n, 1].

    Args:
      given: train_x, train_y, test_x, test_y.
      where: what a refusal calls them.

    Returns:
      The same examples in the same order.
    """
    if not isinstance(given, Sequence) or len(given) != 4:
        count = f"{len(given)} arrays" if isinstance(given, Sequence) else type(given).__name__
        raise UserError(f"{where}: {count}: give train_x, train_y, test_x and test_y")
    named = {name: _plain(array) for name, array in zip(Arrays._fields, given, strict=True)}
    for split in ("train", "test"):
        x, y = named[f"{split}_x"], named[f"{split}_y"]
        if not x.ndim or not y.ndim or len(x) != len(y):
            raise UserError(
                f"{where}: {split}_x is {_show(x)} and {split}_y {_show(y)}: give every example "
                "one label"
            )
        if not len(x):
            raise UserError(f"{where}: {split}_x is {_show(x)}: give at least one example")
    train_x, test_x = named["train_x"], named["test_x"]
    if train_x.shape[1:] != test_x.shape[1:]:
        raise UserError(
            f"{where}: train_x is {_show(train_x)} and test_x {_show(test_x)}: give examples of "
            "one shape"
        )
    train_x, test_x = _examples(train_x, test_x, where=where)
    train_y, test_y = (_labels(named[name], name, where=where) for name in ("train_y", "test_y"))
    found, classes = len(np.unique(train_y)), int(max(train_y.max(), test_y.max())) + 1
    if classes < 2 or 2 * found < classes:
        raise UserError(
            f"{where}: the largest label is {classes - 1} and train_y has {found} different ones: "
            "number the classes from 0 to C - 1, at least two"
        )
    return Arrays(train_x, train_y, test_x=test_x, test_y=test_y)


def describe(arrays: Arrays, name: str, source: str) -> DatasetSpec:
    """Returns the record of a dataset of which the arrays are all that is known."""
    text = arrays.train_x.ndim == 2
    mean, std = ((), ()) if text else channel_statistics(arrays.train_x)
    return DatasetSpec(
        name=name,
        classes=int(max(arrays.train_y.max(), arrays.test_y.max())) + 1,
        shape=arrays.train_x.shape[1:],
        train=len(arrays.train_y),
        test=len(arrays.test_y),
        mean=mean,
        std=std,
        kind=kind_of(arrays.train_x.shape[1:]),
        words=count_words(arrays) if text else 0,
        source=source,
    )


def count_words(arrays: Arrays) -> int:
    """Returns how many words have an id of their own: all but padding, 0, and unknown ones, 1."""
    return max(1, int(max(arrays.train_x.max(), arrays.test_x.max())) - 1)


def channel_statistics(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Computes mean and standard deviation of every channel of images, uint8 counted as 0 to 1.

    A channel that is the same everywhere gets the deviation 1, by which one can divide.
    """
    scale, wide = (255, np.uint16) if x.dtype == np.uint8 else (1, np.float64)
    total = squares = np.zeros(x.shape[1:])  # over examples first, which is several times faster
    for rows in _chunks(x):
        total = total + rows.sum(0, dtype=np.float64)
        squares = squares + (rows.astype(wide) ** 2).sum(0, dtype=np.float64)
    mean = total.mean((0, 1)) / len(x) / scale
    std = np.sqrt(np.maximum(squares.mean((0, 1)) / len(x) / scale**2 - mean**2, 0))
    std = np.where(std > 1e-6 * np.maximum(np.abs(mean), 1), std, 1.0)  # below is rounding
    return tuple(_rounded(mean)), tuple(_rounded(std))


def fingerprint(given: Sequence[Any]) -> str:
    """Returns eight hexadecimal characters that change with dtype, shape or content of arrays."""
    digest = hashlib.sha256()
    for array in map(_plain, given):
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        for rows in _chunks(array):
            digest.update(rows.tobytes())
    return digest.hexdigest()[:8]


def _plain(array: Any) -> np.ndarray:
    # A whole file stays mapped, and is read row by row later; of a part the offset is not known.
    mapped = isinstance(array, np.memmap) and not isinstance(array.base, np.ndarray)
    return array if mapped and array.flags.c_contiguous else np.asarray(array)


def _chunks(x: np.ndarray) -> Iterator[np.ndarray]:
    return (x[i : i + _ROWS] for i in range(0, len(x), _ROWS)) if x.ndim else iter((x,))


def _show(array: np.ndarray) -> str:
    return f"{array.dtype} [{', '.join(map(str, array.shape))}]"


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]  # the same on every machine


def _labels(y: np.ndarray, name: str, where: str) -> np.ndarray:
    column = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y  # as Keras has CIFAR's
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise UserError(f"{where}: {name} is {_show(y)}: give one integer label per example")
    if column.min() < 0 or column.max() >= 2**31:
        raise UserError(
            f"{where}: {name} has labels from {column.min()} to {column.max()}: number the classes "
            "from 0 to C - 1"
        )
    return np.ascontiguousarray(column, np.int32)


def _examples(train: np.ndarray, test: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    for x, name in ((train, "train_x"), (test, "test_x")):
        if x.ndim == 2 and (x.dtype.kind not in "iu" or x.dtype == np.uint8):
            raise UserError(
                f"{where}: {name} is {_show(x)}: give images [n, h, w] or [n, h, w, c] (of a table "
                "of numbers [n, columns, 1, 1]), or int32 word ids [n, length]"
            )
        if x.ndim not in (2, 3, 4) or not x.size or x.dtype.kind not in "iuf":
            raise UserError(
                f"{where}: {name} is {_show(x)}: give images [n, h, w] or [n, h, w, c] of uint8 or "
                "floats, or int32 word ids [n, length]"
            )
        if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] > 4:
            raise UserError(
                f"{where}: {name} is {_show(x)}, with the channels first: give [n, h, w, c], as "
                f"{name}.transpose(0, 2, 3, 1)"
            )
    if train.ndim == 2:
        return _word_ids(train, "train_x", where=where), _word_ids(test, "test_x", where=where)
    train, test = _pixels(train, test, where=where)
    return (train[..., None], test[..., None]) if train.ndim == 3 else (train, test)


def _word_ids(x: np.ndarray, name: str, where: str) -> np.ndarray:
    if x.min() < 0 or x.max() >= 2**31:
        raise UserError(f"{where}: {name} has word ids from {x.min()} to {x.max()}: give 0 or more")
    return np.ascontiguousarray(x, np.int32)


def _pixels(train: np.ndarray, test: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images of both splits as uint8 where that loses nothing, as float32 otherwise."""
    if train.dtype != test.dtype:
        raise UserError(
            f"{where}: train_x is {train.dtype} and test_x {test.dtype}: give both as the same"
        )
    if train.dtype == np.uint8:
        return train, test
    low, high = (float(f([f(train), f(test)])) for f in (np.min, np.max))
    if not np.isfinite([low, high]).all():
        raise UserError(f"{where}: an image has a pixel that is NaN or infinite: mend or drop it")
    scale = 255 if high <= 1 and train.dtype.kind == "f" else 1
    if low >= 0 and high * scale <= 255 and all(_is_whole(x, scale) for x in (train, test)):
        return _converted(train, np.uint8, scale=scale), _converted(test, np.uint8, scale=scale)
    if train.dtype.kind != "f":
        raise UserError(
            f"{where}: images are {train.dtype} from {low:g} to {high:g}: give 0 to 255, or floats"
        )
    return _converted(train, np.float32), _converted(test, np.float32)


def _is_whole(x: np.ndarray, scale: int) -> bool:
    """Whether every pixel is a whole number divided by `scale`, in the precision it is given in."""
    return all(
        (np.rint(rows * scale) / np.asarray(scale, x.dtype) == rows).all() for rows in _chunks(x)
    )


def _converted(x: np.ndarray, dtype: Any, scale: int = 1) -> np.ndarray:
    new = np.empty(x.shape, dtype)
    for i, rows in enumerate(_chunks(x)):
        new[i * _ROWS : i * _ROWS + len(rows)] = np.rint(rows * scale) if scale > 1 else rows
    return new
