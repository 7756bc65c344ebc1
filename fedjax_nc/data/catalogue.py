"""Every dataset by name, readable without importing numpy or jax."""

import re
from dataclasses import replace

from fedjax_nc.config import Data
from fedjax_nc.data import npz
from fedjax_nc.data.builtin import RECORDS
from fedjax_nc.data.spec import DatasetSpec, Release
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
