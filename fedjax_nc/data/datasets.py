"""Datasets as numpy arrays, from wherever they are: a package, a file, a data directory."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedjax_nc.config import Data, Order
from fedjax_nc.data import arrays, cache, decode, imagenet, official, own, prepared
from fedjax_nc.data.arrays import Arrays
from fedjax_nc.data.catalogue import find, is_own, sized
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import UserError

_DECODER = 1  # part of the cache's name: raise it when decoding or tokenising changes


def read(name: str, data: Data) -> tuple[DatasetSpec, Arrays]:
    """Reads a dataset at the sizes a run asks for.

    Args:
      name: of the catalogue, a path to an .npz file, or hf:owner/name.
      data: whose `dir`, `order`, `side`, `length` and `words` are used.

    Returns:
      The record, completed by what only the examples tell (mean and standard deviation where none
      are published), and the examples.
    """
    if is_own(name):
        return own.load(name, side=data.side)
    spec = sized(name, data)
    examples = load(name, data.dir, spec=spec, order=data.order)
    if spec.is_text and not spec.words:
        spec = replace(spec, words=arrays.count_words(examples))
    if not spec.is_text and not spec.mean:
        mean, std = arrays.channel_statistics(examples.train_x)
        spec = replace(spec, mean=mean, std=std)
    return spec, examples


def load(
    name: str,
    directory: str | None = None,
    spec: DatasetSpec | None = None,
    order: Order = "stored",
) -> Arrays:
    """Loads all examples of a dataset of the catalogue.

    Args:
      name: of the dataset.
      directory: the TFDS data directory where one is needed, or ImageNet's own; by default
        TFDS_DATA_DIR, then ~/tensorflow_datasets.
      spec: the record at another size than the catalogue's.
      order: of a prepared TFDS directory's examples; all other data have one order, that
        of their files.
    """
    spec = spec or find(name)
    if spec.load is not None:
        return _loaded(spec)
    root = prepared.data_dir(directory)
    return _from_pictures(spec, root) if spec.subset else _from_tfds(spec, root, order=order)


def _loaded(spec: DatasetSpec) -> Arrays:
    """Calls the function of a record and compares what it returns with the record."""
    function = spec.load
    if isinstance(function, str):
        module, _, attribute = function.partition(":")
        function = getattr(importlib.import_module(module), attribute)
    where = f"dataset '{spec.name}'"
    found: Any = function() if callable(function) else ()
    examples = arrays.check(found, where)
    told = (spec.train, spec.test, spec.shape)
    given = (len(examples.train_y), len(examples.test_y), examples.train_x.shape[1:])
    if told != given:
        raise UserError(
            f"{where} has (train, test, shape) {given}, and is registered with {told}: correct one"
        )
    if (largest := max(examples.train_y.max(), examples.test_y.max())) >= spec.classes:
        raise UserError(
            f"{where} has the label {largest}, and is registered with {spec.classes} classes: "
            "correct one"
        )
    return examples


def _from_tfds(spec: DatasetSpec, root: Path, order: Order) -> Arrays:
    """Reads a prepared TFDS directory by way of the cache, which has a folder for each order."""
    name, found = spec.name, prepared.inspect(spec.name, root)
    variant = f"-{spec.words}x{spec.shape[0]}" if spec.is_text else ""
    variant += "-official" if order == "official" else ""

    def write(folder: Path) -> None:
        prepared.check_shards(name, root, prepared=found)
        places = official.find(name, root, found=found) if order == "official" else None
        write_arrays = decode.decode_text if spec.is_text else decode.decode_images
        write_arrays(spec, found, folder=folder, places=places)

    again = f"delete {found.path}, then {prepared.remedy(name, root)}"
    return cache.cached(
        f"{name}-{found.fingerprint}-{_DECODER}{variant}",
        root,
        write=write,
        broken=f"{_braced(found.path)} cannot be decoded ({{}}): {_braced(again)}",
    )


def _from_pictures(spec: DatasetSpec, root: Path) -> Arrays:
    """Reads what `prepare_data.py` left, or ImageNet's own directory by way of the cache."""
    side = spec.shape[0]
    ready = root / spec.name / str(side)
    if ready.is_dir():
        return cache.open_folder(ready)
    if not imagenet.is_one(root):
        raise UserError(
            f"data directory {root} has neither {spec.name}/{side} nor ImageNet's train and val: "
            f"{prepared.remedy(spec.name, root)} --data.side {side} --from PATH"
        )
    found = imagenet.find(spec.name, root)
    key = f"{spec.name}-{imagenet.fingerprint(found)}-{_DECODER}-{side}"
    return cache.cached(
        key,
        root,
        write=lambda folder: imagenet.decode(spec.name, found, side=side, folder=folder),
        broken=f"{_braced(root)} cannot be decoded ({{}}): get that picture again",
    )


def _braced(text: str | Path) -> str:
    """Returns a text that `format` leaves as it is."""
    return str(text).replace("{", "{{").replace("}", "}}")
