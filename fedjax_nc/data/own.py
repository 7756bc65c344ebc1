"""Datasets that a person brings along: arrays, an .npz file, or a name of the Hugging Face Hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_nc.data import arrays, npz
from fedjax_nc.data.arrays import Arrays
from fedjax_nc.data.catalogue import HUB
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import UserError, reason


def load(name: str, *, side: int = 224) -> tuple[DatasetSpec, Arrays]:
    """Loads a dataset that is not in the catalogue.

    Args:
      name: a path to an .npz file, hf:owner/name or hf:owner/name:config.
      side: of a dataset of the Hub whose pictures differ in size, the size they get.

    Returns:
      The record, with mean and standard deviation of the training images, and the examples.
    """
    if name.startswith(HUB):
        from fedjax_nc.data import hub

        found, source = arrays.check(hub.load(name, side), name), "Hugging Face Hub"
    else:
        found, source = arrays.check(_read(name), name), "an .npz file"
    return arrays.describe(found, name, source=source), found


def from_arrays(given: Sequence[Any]) -> tuple[DatasetSpec, Arrays]:
    """Makes a dataset of the arrays (train_x, train_y, test_x, test_y).

    Returns:
      The record, whose name has a fingerprint of the content, and the examples.
    """
    found = arrays.check(given, "the arrays")
    return arrays.describe(found, f"arrays@{fingerprint(given)}", source="arrays"), found


def fingerprint(given: str | Sequence[Any]) -> str:
    """Returns eight hexadecimal characters that change with the content of arrays or of a file."""
    return npz.fingerprint(given) if isinstance(given, str) else arrays.fingerprint(given)


def _read(path: str) -> list[np.ndarray]:
    npz.inspect(path)  # which says what is wrong with a file
    try:
        with np.load(Path(path).expanduser(), allow_pickle=False) as file:
            return [file[key] for key in npz.find_keys(file.files, path)]
    except npz.DAMAGE as error:
        raise UserError(
            f"cannot read '{path}' as an .npz file ({reason(error)}): write it again, with "
            "numpy.savez"
        ) from error
