"""Small datasets that are installed with a package."""

import gzip
import hashlib
import importlib.util
import io
import zlib
from pathlib import Path

import numpy as np

from fedjax_nc.data import mnist5k as five_thousand
from fedjax_nc.errors import UserError

# of the text in scikit-learn's digits.csv.gz
_DIGITS = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
Four = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def mnist5k() -> Four:
    """Returns 4,000 training and 1,000 test digits of MNIST."""
    images, labels = five_thousand.read()
    return _stratified(images, labels, test_per_class=100)


def digits() -> Four:
    """Returns scikit-learn's digits of 8x8 pixels, 360 of them for tests."""
    table = _digits()
    pixels = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8)  # written as 0..16
    return _stratified(pixels.reshape(-1, 8, 8, 1), table[:, -1], test_per_class=36)


def _digits() -> np.ndarray:
    # Only the file is wanted: importing scikit-learn costs a second and scipy.
    spec = importlib.util.find_spec("sklearn")
    path = spec and spec.origin and Path(spec.origin).parent / "datasets/data/digits.csv.gz"
    if not path or not path.is_file():
        raise UserError("digits.csv.gz of scikit-learn is missing: run: pip install scikit-learn")
    try:
        with gzip.open(path, "rb") as file:
            text = file.read()
    except (OSError, EOFError, zlib.error):
        text = b""
    if hashlib.sha256(text).hexdigest() != _DIGITS:
        raise UserError(
            f"{path} is damaged: run: pip install --force-reinstall --no-deps scikit-learn"
        )
    return np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.uint8)


def _stratified(x: np.ndarray, y: np.ndarray, test_per_class: int) -> Four:
    """Splits examples at random, with equally many of each class for tests."""
    # RandomState and not default_rng: its stream is frozen, so the split never changes.
    order = np.random.RandomState(0).permutation(len(y))
    held_out = np.zeros(len(y), bool)
    for label in np.unique(y):
        held_out[order[y[order] == label][:test_per_class]] = True
    train, test = order[~held_out[order]], order[held_out[order]]
    return x[train], y[train].astype(np.int32), x[test], y[test].astype(np.int32)
