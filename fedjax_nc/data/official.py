"""The official order of the examples that prepared directories hold in TFDS's shuffled order."""

import hashlib
import io
import re
import zipfile
from pathlib import Path

import numpy as np

from fedjax_nc import inputs
from fedjax_nc.data import npz
from fedjax_nc.data.catalogue import release_of
from fedjax_nc.data.decode import records
from fedjax_nc.data.prepared import Prepared, remedy
from fedjax_nc.data.spec import Release
from fedjax_nc.errors import UserError

FILE = "official_order.npz"  # beside the shards: for each split the places that `find` returns
_FILE, _FILE_EACH = inputs.MEGABYTE, 8  # bytes of that file: some, and a number per example


def find(name: str, root: Path, *, found: Prepared) -> dict[str, np.ndarray]:
    """Finds the place in the official files of each stored example, or refuses where none is known.

    It is what our preparer wrote beside the shards. A directory of TFDS's own making tells it by
    the examples' ids (CIFAR, Tiny-ImageNet), or by the rule of its shuffling (MNIST).

    Args:
      name: of the dataset.
      root: the data directory, for the advice.
      found: the dataset's directory.

    Returns:
      For each split a permutation, int64 [n]: example i as stored is example places[i].
    """
    release = release_of(name)
    places = {}
    for split in release.splits:
        count = sum(found.shards[split].values())
        if (found.path / FILE).exists():
            total = sum(sum(shards.values()) for shards in found.shards.values())
            place = _written(found.path / FILE, split, most=_FILE + _FILE_EACH * total)
        else:
            place = _derived(name, release, split=split, found=found)
        if place is None:
            raise UserError(
                f"{found.path} does not tell the official order of its examples: delete it, then "
                f"{remedy(name, root)}, or pass --data.order=stored (no partitions from elsewhere)"
            )
        if not np.array_equal(np.sort(place), np.arange(count)):
            raise ValueError(f"{FILE} does not number the {count} examples of split '{split}'")
        places[split] = place
    return places


def write(folder: Path, places: dict[str, list[int]]) -> None:
    """Writes the places of each split's examples beside the shards."""
    np.savez(folder / FILE, allow_pickle=False, **{s: np.array(p) for s, p in places.items()})


def _written(path: Path, split: str, most: int) -> np.ndarray:
    try:
        packed = io.BytesIO(inputs.read(path, most))
        with zipfile.ZipFile(packed) as opened:
            npz.check_unpacked(opened, most)
            npz.check_arrays(opened)
        packed.seek(0)
        with np.load(packed, allow_pickle=False) as file:
            return np.asarray(file[split], np.int64)
    except npz.DAMAGE as error:
        raise ValueError(f"{path.name} is damaged") from error


def _derived(name: str, release: Release, *, split: str, found: Prepared) -> np.ndarray | None:
    """Returns the places that a directory without `FILE` tells, None if it tells none."""
    examples = records(found.path, split, label=f"ordering {name} {split}")
    ids, labels = zip(*((e.get("id"), e["label"]) for e in examples), strict=True)
    if all(isinstance(known, bytes) for known in ids):
        return _ranks([_in_files(i) for i in ids]) if len(set(ids)) == len(ids) else None
    if release.reader != "idx":
        return None
    # TFDS sorts by the md5 of the split's name and the example's key, here its official number.
    keys = [hashlib.md5(f"{split}{i}".encode()).digest() for i in range(len(labels))]
    place = np.argsort(_ranks(keys))  # the number whose key is at each rank
    ordered = np.empty(len(labels), np.uint8)
    if not all(isinstance(label, int) and 0 <= label < 256 for label in labels):
        return None
    ordered[place] = labels
    header = b"\0\0\x08\x01" + len(labels).to_bytes(4, "big")
    file = release.kinds["idx"][1 + 2 * release.splits.index(split)]
    official = hashlib.md5(header + ordered.tobytes()).hexdigest() == release.md5.get(file)
    return place if official else None


def _in_files(known: bytes) -> tuple[int, bytes]:
    """Returns the key that sorts ids: train_00017 and val_17.JPEG by number, others by name."""
    number = re.fullmatch(rb"(?:train|test|val)_(\d+)(?:\.JPEG)?", known)
    return (int(number[1]) if number else 0), known


def _ranks(keys: list) -> np.ndarray:
    """Returns the position of each key among all of them, sorted."""
    place = np.empty(len(keys), np.int64)
    place[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
    return place
