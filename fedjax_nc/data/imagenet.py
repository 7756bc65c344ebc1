"""Subsets of ImageNet, decoded once and to one size from a directory in ImageNet's layout."""

import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_nc import inputs
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.data.progress import track
from fedjax_nc.errors import UserError, reason

_AT_ONCE = 128  # pictures in memory
_LIST = 4 * inputs.MEGABYTE  # bytes of the list of ids, of which ImageNet's has 0.5
_SHA256 = {
    "imagenet100": "fef8ca789d06ee2578d32c8deb8d9949f0fff45730ccbd762869c07aef99802b",
    "imagenet200": "f6523a1025e03c99f15d5a5b907c8158524b9ae965ac85cb4b14f4247b586b03",
}


class Pictures(NamedTuple):
    """The files of a split and their labels."""

    files: list[Path]
    labels: list[int]


def classes(name: str) -> list[str]:
    """Returns the WordNet ids of a subset; a label is a position in this list."""
    file = resources.files("fedjax_nc.data").joinpath(f"classes/{name}.txt")
    packed = file.read_bytes()
    if hashlib.sha256(packed).hexdigest() != _SHA256[name]:
        raise UserError(f"{file} is damaged: install fedjax_nc again")
    text = packed.decode()
    return [w for line in text.splitlines() if not line.startswith("#") for w in line.split()]


def is_one(folder: Path) -> bool:
    """Returns whether a directory looks like ImageNet's."""
    return (folder / "train").is_dir() and (folder / "val").is_dir()


def find(name: str, folder: Path) -> dict[str, Pictures]:
    """Finds the pictures of a subset, or says of which classes there are none.

    Args:
      name: of the subset.
      folder: a directory with train/WNID/*.JPEG, and val likewise, or val/*.JPEG with a list of
        WordNet ids.

    Returns:
      The pictures of the splits "train" and "test".
    """
    wanted = "give a directory with train/WNID/*.JPEG and val/WNID/*.JPEG"
    if not is_one(folder):
        raise UserError(f"{folder} has no train and val: {wanted}")
    ids, subset = classes(name), DATASETS[name].subset
    found = {"train": _by_folder(folder / "train", ids), "test": _by_folder(folder / "val", ids)}
    if not any(found["test"].values()):
        try:
            found["test"] = _flat(folder)
        except (OSError, ValueError) as error:
            raise UserError(f"{folder}: the list of ids: {reason(error)}: {wanted}") from error
    splits = {}
    for split, held in found.items():
        if missing := [wnid for wnid in ids if not held.get(wnid)]:
            raise UserError(
                f"{folder} has no {split} pictures of {len(missing)} of the {len(ids)} classes of "
                f"{name} ({', '.join(missing[:3])}{'...' if missing[3:] else ''}): {wanted}"
            )
        most = subset.per_class if subset and split == "train" else None
        pairs = [(f, label) for label, wnid in enumerate(ids) for f in sorted(held[wnid])[:most]]
        splits[split] = Pictures([f for f, _ in pairs], [label for _, label in pairs])
    return splits


def _by_folder(folder: Path, ids: list[str]) -> dict[str, list[Path]]:
    return {
        wnid: [folder / wnid / f for f in os.listdir(folder / wnid) if _is_jpeg(f)]
        for wnid in ids
        if (folder / wnid).is_dir()
    }


def _flat(folder: Path) -> dict[str, list[Path]]:
    """Finds val/ILSVRC2012_val_*.JPEG, of which a *synset_labels.txt has a WordNet id per line."""
    files = sorted(f for f in (folder / "val").iterdir() if _is_jpeg(f.name))
    lists = [*folder.glob("*synset_labels.txt"), *folder.glob("val/*synset_labels.txt")]
    lines = inputs.read(lists[0], _LIST).decode().split() if lists else []
    held: dict[str, list[Path]] = {}
    for file in files:
        number = re.fullmatch(r"ILSVRC2012_val_(\d{8})", file.stem)
        if number and int(number[1]) <= len(lines):
            held.setdefault(lines[int(number[1]) - 1], []).append(file)
    return held


def _is_jpeg(name: str) -> bool:
    return name.lower().endswith((".jpeg", ".jpg"))


def fingerprint(found: dict[str, Pictures]) -> str:
    """Returns sixteen characters that change when other pictures are found."""
    names = "\n".join(str(f) for split in found.values() for f in split.files)
    return hashlib.sha256(names.encode()).hexdigest()[:16]


def decode(name: str, found: dict[str, Pictures], *, side: int, folder: Path) -> None:
    """Writes both splits as arrays, in memory that does not grow with the number of pictures.

    Args:
      name: of the subset, for the progress bar.
      found: the pictures.
      side: of the decoded pictures.
      folder: where the arrays are written.
    """
    for split, (files, labels) in found.items():
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), side, side, 3)}
        with (folder / f"{split}_x.npy").open("wb") as out:
            np.lib.format.write_array_header_1_0(out, header)
            bulks = track(
                _decoded(files, side),
                -(-len(files) // _AT_ONCE),
                label=f"decoding {name} {split} ({_AT_ONCE} pictures)",
            )
            for bulk in bulks:
                out.write(bulk)
        np.save(folder / f"{split}_y.npy", np.asarray(labels, np.int32))


def _decoded(files: list[Path], side: int) -> Iterator[bytes]:
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # Pillow decodes without the interpreter
        for i in range(0, len(files), _AT_ONCE):
            pictures = threads.map(lambda f: picture(f, side), files[i : i + _AT_ONCE])
            yield np.stack(list(pictures)).tobytes()


def picture(file: Path, side: int) -> np.ndarray:
    """Decodes the centre of a picture: of 256 pixels 224, as is usual."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            opened.draft("RGB", (2 * side, 2 * side))  # a jpeg much larger is decoded smaller
            image = opened.convert("RGB")
    except Exception as error:  # Pillow raises anything, such as SyntaxError for a broken png
        raise ValueError(f"{file} is damaged") from error
    return centre(image, side)


def centre(image: Any, side: int) -> np.ndarray:
    """Resizes a picture so that its shorter side is 8/7 of `side`, and cuts out the centre."""
    from PIL import Image

    scale = round(side * 8 / 7) / min(image.size)
    wide, high = (max(side, round(n * scale)) for n in image.size)
    left, top = (wide - side) // 2, (high - side) // 2
    resized = image.resize((wide, high), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + side, top + side)))
