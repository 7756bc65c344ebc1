"""Image datasets of the Hugging Face Hub, by its `datasets` library (the extra `hf`)."""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_nc import inputs
from fedjax_nc.data import imagenet
from fedjax_nc.data.catalogue import HUB
from fedjax_nc.data.progress import track
from fedjax_nc.errors import UserError, reason

_IMAGES = ("image", "img")  # the usual names of the columns, where there are several
_LABELS = ("label", "labels", "fine_label")
_TESTS = ("test", "validation", "valid", "val")
_GREY, _COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "CMYK")
_TIMEOUT = 5  # seconds
_FACTS = ("README.md", "dataset_infos.json", "dataset_info.json", "state.json", "metadata.jsonl")
_MOST = 16 * inputs.MEGABYTE  # bytes of each of these, which the library reads whole


def load(name: str, side: int) -> tuple[np.ndarray, ...]:
    """Loads the images and labels of a dataset of the Hub, from the library's cache if it is there.

    Args:
      name: hf:owner/name or hf:owner/name:config; a local directory may stand for owner/name.
      side: the size of pictures that differ in size; others keep theirs.

    Returns:
      train_x, train_y, test_x, test_y. The test split is the one called test, or the validation
      split where there is none or it has no labels.
    """
    library = _library(name)
    path, _, config = name.removeprefix(HUB).partition(":")
    splits = _fetch(library, name, path=path, config=config or None)
    image, label = _columns(name, next(iter(splits.values())).features)
    labels = {split: np.asarray(splits[split][label][:]) for split in splits}
    tests = [split for split in _TESTS if split in splits and _are_known(labels[split])]
    if "train" not in splits or not tests:
        raise UserError(
            f"{name} has the splits {', '.join(splits)}: give a dataset with train, and with test "
            "or validation that has labels"
        )
    chosen = {"train": splits["train"], "test": splits[tests[0]]}
    images = _decode(name, chosen, column=image, side=side)
    return images["train"], labels["train"], images["test"], labels[tests[0]]


def _are_known(labels: np.ndarray) -> bool:
    return labels.dtype.kind in "iu" and labels.size > 0 and bool(labels.min() >= 0)


def _library(name: str) -> Any:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f"{name} needs the library `datasets` ({error}): run: pip install 'fedjax_nc[hf]'"
        ) from error
    return datasets


def _fetch(library: Any, name: str, path: str, config: str | None) -> Any:
    """The splits of a dataset, by their names."""
    for file in Path(path).glob("*") if Path(path).is_dir() else ():
        if file.name in _FACTS and (not file.is_file() or file.stat().st_size > _MOST):
            raise UserError(f"{file} is no file of at most {_MOST} bytes: delete it")
    try:
        with _offline_if_unreachable(library, path):
            return library.load_dataset(path, config)
    except ConnectionError as error:
        raise UserError(
            f"{name} is not in the cache {library.config.HF_DATASETS_CACHE}, and the Hub is not "
            "reached: load it once where there is a network, or give an .npz file"
        ) from error
    except Exception as error:  # a damaged file makes the library raise anything
        raise UserError(
            f"cannot load {name} ({reason(error)}): give hf:owner/name or hf:owner/name:config"
        ) from error


@contextmanager
def _offline_if_unreachable(library: Any, path: str) -> Iterator[None]:
    """Sends the library straight to its cache where it would try the Hub for half a minute."""
    settings = library.config
    known = settings.HF_HUB_OFFLINE
    if not known and not os.path.isdir(path):
        try:
            hub = urllib.request.Request(settings.HF_ENDPOINT, method="HEAD")
            urllib.request.urlopen(hub, timeout=_TIMEOUT).close()
        except urllib.error.HTTPError:
            pass  # it answers
        except OSError:
            settings.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        settings.HF_HUB_OFFLINE = known


def _columns(name: str, features: Any) -> tuple[str, str]:
    """The columns of images and of labels: those with a usual name, or the only ones."""
    kinds = {key: type(feature).__name__ for key, feature in features.items()}
    images = [key for key, kind in kinds.items() if kind == "Image"]
    classes = [key for key, kind in kinds.items() if kind == "ClassLabel"]
    integers = [k for k, kind in kinds.items() if kind == "Value" and "int" in features[k].dtype]
    usual = [key for key in _LABELS if key in (*classes, *integers)]
    image = [key for key in _IMAGES if key in images][:1] or images
    label = usual[:1] or classes or integers
    if len(image) != 1 or len(label) != 1:
        columns = ", ".join(f"{key} ({kind})" for key, kind in kinds.items())
        raise UserError(
            f"{name} has the columns {columns}: give a dataset with one column of images and one "
            "of class labels"
        )
    return image[0], label[0]


def _decode(name: str, splits: dict[str, Any], column: str, side: int) -> dict[str, np.ndarray]:
    """The pictures of all splits as uint8 of one size, coloured if any is."""
    sizes, modes = set(), set()
    for split, pictures in splits.items():
        for picture in _pictures(pictures, column, label=f"measuring {name} {split}"):
            sizes.add(picture.size)
            modes.add(picture.mode)
    if strange := sorted(modes - {*_GREY, *_COLOUR}):
        raise UserError(
            f"{name} has pictures of mode {', '.join(strange)}: give 8 bits per channel, or an "
            ".npz file of floats"
        )
    mode = "L" if modes <= set(_GREY) else "RGB"
    (wide, high), *others = sizes
    shape = (side, side) if others else (high, wide)
    images = {}
    for split, pictures in splits.items():
        images[split] = np.empty(
            (len(pictures), *shape, *((3,) if mode == "RGB" else ())), np.uint8
        )
        found = _pictures(pictures, column, label=f"decoding {name} {split}")
        for i, picture in enumerate(found):
            picture = picture.convert(mode)
            images[split][i] = imagenet.centre(picture, side) if others else np.asarray(picture)
    return images


def _pictures(split: Any, column: str, label: str) -> Iterator[Any]:
    for example in track(split.select_columns([column]), len(split), label=label):
        yield example[column]
