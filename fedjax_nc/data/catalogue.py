"""Every dataset by name, readable without importing numpy or jax."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from fedjax_nc.config import Data
from fedjax_nc.data import npz
from fedjax_nc.data.builtin import RECORDS
from fedjax_nc.data.spec import DatasetSpec, Kind, Release
from fedjax_nc.errors import UserError, unknown

DATASETS = {spec.name: spec for spec in RECORDS}
HUB = "hf:"  # how the name of a dataset of the Hugging Face Hub begins


def is_own(name: str) -> bool:
    """Returns whether a name stands for a file or for a dataset of the Hub."""
    return name.endswith(".npz") or name.startswith(HUB)


def find(name: str) -> DatasetSpec:
    """Returns the record of a dataset, or refuses a name that does not exist.

    Of an .npz file it tells what the headers tell, and of a dataset of the Hub the name alone; only
    `datasets.read` knows the rest.
    """
    if name.startswith(HUB):
        if not re.fullmatch(r"[^:]+(:[^:]+)?", name[len(HUB) :]):
            raise UserError(f"dataset '{name}': give hf:owner/name or hf:owner/name:config")
        return DatasetSpec(
            name=name, classes=0, shape=(), train=0, test=0, source="Hugging Face Hub"
        )
    if is_own(name):
        return npz.inspect(name)
    if name.startswith("arrays@"):
        raise UserError(f"dataset '{name}' was given as arrays in Python: give them again")
    if name not in DATASETS:
        raise unknown("dataset", name, allowed=DATASETS)
    return DATASETS[name]


def short_name(name: str) -> str:
    """Returns a name for directories and titles: a file's without its folder and ending."""
    if name.startswith(HUB):
        return re.sub(r"\W+", "-", name[len(HUB) :]).strip("-")
    return Path(name).stem if is_own(name) else name


def release_of(name: str) -> Release:
    """Returns the official release of a dataset, or refuses one that nobody downloads."""
    release = DATASETS[name].release if name in DATASETS else None
    if release is None:
        allowed = [spec.name for spec in DATASETS.values() if spec.release]
        raise unknown("prepared dataset", name, allowed=allowed)
    return release


def sized(name: str, data: Data) -> DatasetSpec:
    """Returns the record of a dataset at the sizes a run asks for.

    Reviews are cut to `data.length` words of a vocabulary of `data.words`, ImageNet's pictures to
    `data.side` pixels. Every other dataset has one size.
    """
    spec = find(name)
    if spec.release and spec.is_text:
        return replace(spec, shape=(data.length,), words=data.words)
    return replace(spec, shape=(data.side, data.side, 3)) if spec.subset else spec


def register_dataset(
    name: str,
    *,
    classes: int,
    shape: tuple[int, ...],
    train: int,
    test: int,
    load: Callable[[], Any] | str,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    kind: Kind = "images",
    source: str = "",
    words: int = 0,
) -> None:
    """Adds a dataset, which is then chosen by its name like any other.

    Every argument but `load` is a literal, so that a plugin's datasets are listed without running
    its file. The same facts may be registered again, with another `load`, as a notebook does.

    Args:
      name: letters, digits and underscores.
      classes: labels are 0 to `classes` - 1.
      shape: of an image [h, w, c], or [length] of a row of word ids.
      train: the number of training examples.
      test: the number of test examples.
      load: a function of no arguments that returns train_x, train_y, test_x and test_y, or where to
        find it, "module:function". It is called when a run starts.
      mean: of each channel, images counted from 0 to 1; computed from the training images if left
        out, like `std`.
      std: of each channel.
      kind: what protocols choose a network by: "digits" (small grey pictures), "images",
        "photographs" (of some 200 pixels) or "text".
      source: where the data come from, for `--list`.
      words: of text, how many words have an id of their own: the largest id less one.
    """
    spec = DatasetSpec(
        name=name,
        classes=classes,
        shape=tuple(shape),
        train=train,
        test=test,
        mean=tuple(mean),
        std=tuple(std),
        kind=kind,
        words=words,
        source=source,
        load=load,
    )
    _check(spec)
    old = DATASETS.get(name)
    builtin = any(record.name == name for record in RECORDS)
    if builtin or (old and replace(old, load=load, source=source) != spec):
        raise UserError(f"dataset '{name}' exists already, with other facts: choose another name")
    DATASETS[name] = spec


def _check(spec: DatasetSpec) -> None:
    """Refuses a record that contradicts itself."""
    if not re.fullmatch(r"\w+", spec.name):
        raise UserError(f"dataset name '{spec.name}': use letters, digits and underscores")
    where = f"dataset '{spec.name}'"
    if spec.kind not in get_args(Kind):
        raise unknown(f"kind of {where}", str(spec.kind), allowed=get_args(Kind))
    counts = {"classes": spec.classes - 1, "train": spec.train, "test": spec.test}
    if low := [key for key, count in counts.items() if count < 1]:
        raise UserError(f"{where}: {low[0]}={getattr(spec, low[0])}: give a larger number")
    if len(spec.shape) != (1 if spec.is_text else 3) or min(spec.shape) < 1:
        wanted = "(length,)" if spec.is_text else "(height, width, channels)"
        raise UserError(f"{where}: shape={spec.shape}: give {wanted}")
    channels = 0 if spec.is_text else spec.shape[-1]
    if len(spec.mean) != len(spec.std) or len(spec.mean) not in (0, channels):
        raise UserError(
            f"{where}: mean={spec.mean}, std={spec.std}: give {channels} numbers each, or neither"
        )
    if min(spec.std, default=1) <= 0:
        raise UserError(f"{where}: std={spec.std}: give numbers above zero")
    if not all(map(math.isfinite, (*spec.mean, *spec.std))):
        raise UserError(f"{where}: mean={spec.mean}, std={spec.std}: give finite numbers")
    if max(spec.classes, spec.train, spec.test, *spec.shape) >= 2**31:
        raise UserError(f"{where}: a number is 2147483648 or more: give a smaller one")
    if not callable(spec.load) and not re.fullmatch(r"[\w.]+:\w+", spec.load or ""):
        raise UserError(f'{where}: load={spec.load!r}: give a function or "module:function"')
