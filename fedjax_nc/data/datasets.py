"""Datasets as numpy arrays: from pip wheels, prepared TFDS directories, or ImageNet's own."""

import gzip
import importlib.util
import io
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_nc.data import imagenet, mnist5k, prepared
from fedjax_nc.data.catalogue import DATASETS, PICTURES, DatasetSpec
from fedjax_nc.data.progress import track
from fedjax_nc.errors import UserError, unknown

_WORD = re.compile(r"\w+(?:'\w+)*")
_DECODER = 1  # part of the cache's name: raise it when decoding or tokenising changes


class Arrays(NamedTuple):
    """Images uint8 [n, h, w, c] or tokens int32 [n, length]; labels int32 [n]."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load(name: str, directory: str | None = None, spec: DatasetSpec | None = None) -> Arrays:
    """All examples of a dataset, at the sizes of `spec`.

    `directory` is the TFDS data directory where one is needed, or ImageNet's own.
    """
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    spec = spec or DATASETS[name]
    if name == "mnist5k":
        images, labels = mnist5k.read()
        return _stratified(images, labels, 100)
    if name == "digits":
        table = _digits()
        pixels = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8)  # written as 0..16
        return _stratified(pixels.reshape(-1, 8, 8, 1), table[:, -1], 36)
    root = prepared.data_dir(directory)
    return _from_pictures(spec, root) if name in PICTURES else _from_tfds(spec, root)


def _digits() -> np.ndarray:
    # Only the file is wanted: importing scikit-learn costs a second and scipy.
    spec = importlib.util.find_spec("sklearn")
    path = spec and spec.origin and Path(spec.origin).parent / "datasets/data/digits.csv.gz"
    if not path or not path.is_file():
        raise UserError("digits.csv.gz of scikit-learn is missing: run: pip install scikit-learn")
    with gzip.open(path, "rt") as lines:
        return np.loadtxt(lines, delimiter=",", dtype=np.uint8)


def _stratified(x: np.ndarray, y: np.ndarray, test_per_class: int) -> Arrays:
    # RandomState and not default_rng: its stream is frozen, so the split never changes.
    order = np.random.RandomState(0).permutation(len(y))
    held_out = np.zeros(len(y), bool)
    for label in np.unique(y):
        held_out[order[y[order] == label][:test_per_class]] = True
    train, test = order[~held_out[order]], order[held_out[order]]
    return Arrays(x[train], y[train].astype(np.int32), x[test], y[test].astype(np.int32))


def _from_tfds(spec: DatasetSpec, root: Path) -> Arrays:
    name, found = spec.name, prepared.inspect(spec.name, root)
    sizes = f"-{spec.words}x{spec.shape[0]}" if spec.is_text else ""

    def decode(folder: Path) -> None:
        prepared.check_shards(name, root, found)
        (_decode_text if spec.is_text else _decode)(spec, found, folder)

    again = f"delete {found.path}, then {prepared.remedy(name, root)}"
    return _cached(f"{name}-{found.fingerprint}-{_DECODER}{sizes}", root, decode,
                   f"{found.path} cannot be decoded ({{}}): {again}")  # fmt: skip


def _from_pictures(spec: DatasetSpec, root: Path) -> Arrays:
    """As `prepare_data.py` left it, or from ImageNet's own directory by way of the cache."""
    side = spec.shape[0]
    ready = root / spec.name / str(side)
    if ready.is_dir():
        return _open(ready)
    if not imagenet.is_one(root):
        raise UserError(
            f"data directory {root} has neither {spec.name}/{side} nor ImageNet's train and val: "
            f"{prepared.remedy(spec.name, root)} --data.side {side} --from PATH"
        )
    found = imagenet.find(spec.name, root)
    key = f"{spec.name}-{imagenet.fingerprint(found)}-{_DECODER}-{side}"
    return _cached(key, root, lambda folder: imagenet.decode(spec.name, found, side, folder),
                   f"{root} cannot be decoded ({{}}): get that picture again")  # fmt: skip


def _cached(key: str, root: Path, decode: Callable[[Path], None], broken: str) -> Arrays:
    places = [place / key for place in _cache_places(root)]
    cached = next((place for place in places if place.is_dir()), None)
    return _open(cached or _write_cache(places[0], decode, broken))


def _open(folder: Path) -> Arrays:
    try:
        return Arrays(*(np.load(folder / f"{part}.npy", mmap_mode="r") for part in Arrays._fields))
    except (OSError, ValueError) as error:
        raise UserError(
            f"cache {folder} is damaged ({error}): delete it and start again"
        ) from error


def _cache_places(root: Path) -> list[Path]:
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    places = [home / "fedjax_nc" / "data"]
    # The mode is asked as well as the system: root may write anywhere, and should not.
    if os.access(root, os.W_OK) and root.stat().st_mode & 0o222:
        places.insert(0, root / ".fedjax_nc_cache")
    return places


def _write_cache(target: Path, decode: Callable[[Path], None], broken: str) -> Path:
    try:
        return _fill_cache(target, decode, broken)
    except OSError as error:
        hint = "free some space there, or set XDG_CACHE_HOME and make the data directory read-only"
        raise UserError(f"cannot write the cache {target.parent} ({error}): {hint}") from error


def _fill_cache(target: Path, decode: Callable[[Path], None], broken: str) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    for old in target.parent.glob("*.tmp-*"):  # left by a killed run; a live one is younger
        if time.time() - old.stat().st_mtime > 3600:
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
    try:
        decode(folder)
        folder.chmod(0o755)  # mkdtemp makes it private, but the data may be shared
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # where it is one, another process was quicker
                raise
    except (ValueError, KeyError, IndexError, RuntimeError) as error:
        raise UserError(broken.format(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def records(path: Path, split: str, label: str) -> Iterator[dict]:
    """The examples of a prepared split with their features as stored: encoded bytes and ints.

    Read in bulk and parsed here, 50,000 take 1 s; TFDS's own decoding, one by one, takes 13 s.
    """
    import tensorflow_datasets as tfds
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    parse = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    builder: Any = tfds.builder_from_directory(path)
    source = builder.as_data_source(split, deserialize_method=raw)
    chunks = (range(i, min(i + 1000, len(source))) for i in range(0, len(source), 1000))
    all_bytes = (record for chunk in chunks for record in source.__getitems__(list(chunk)))
    for record in track(all_bytes, len(source), label):
        try:
            example = parse(record)
        except DecodeError as error:
            raise ValueError(f"a record of split '{split}' is damaged") from error
        stored = {}
        for key, value in example.features.feature.items():
            kind = value.WhichOneof("kind")
            stored[key] = getattr(value, kind).value[0] if kind else None
        yield stored


def decode_image(encoded: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """A png or jpeg as uint8 [h, w, c]; grey pictures among coloured ones become coloured."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            pixels = np.asarray(picture.convert("L" if shape[-1] == 1 else "RGB"))
    except OSError as error:
        raise ValueError("an image is damaged") from error
    return pixels.reshape(shape)


def _labels(classes: int, values: list[int]) -> np.ndarray:
    labels = np.asarray(values, np.int32)
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels {labels.min()} to {labels.max()}, {classes} classes")
    return labels


def _decode(spec: DatasetSpec, found: prepared.Prepared, folder: Path) -> None:
    name, shape = spec.name, spec.shape
    for part, split in zip(("train", "test"), prepared.SPLITS[name], strict=True):
        size = (sum(found.shards[split].values()), *shape)
        # Straight to the file: the largest of them would fill the memory of a small machine.
        images = np.lib.format.open_memmap(folder / f"{part}_x.npy", "w+", np.uint8, size)
        labels = []
        for i, example in enumerate(records(found.path, split, f"decoding {name} {split}")):
            images[i] = decode_image(example["image"], shape)
            labels.append(example["label"])
        images.flush()
        np.save(folder / f"{part}_y.npy", _labels(spec.classes, labels))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("<br />", " "))


def tokenise(
    train: Iterable[str], test: Iterable[str], length: int, words: int = 10_000
) -> list[np.ndarray]:
    """Both splits as ids cut and padded at the end; the training split alone names the words.

    Id 0 is padding, 1 an unknown word, then come the words by frequency.
    """
    splits = [[_words(text) for text in split] for split in (train, test)]
    counts = Counter(word for words in splits[0] for word in words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:words]
    ids = {word: i for i, word in enumerate(frequent, 2)}
    tokens = [np.zeros((len(split), length), np.int32) for split in splits]
    for rows, split in zip(tokens, splits, strict=True):
        for row, text in zip(rows, split, strict=True):
            row[: len(text[:length])] = [ids.get(word, 1) for word in text[:length]]
    return tokens


def _decode_text(spec: DatasetSpec, found: prepared.Prepared, folder: Path) -> None:
    texts = []
    for part, split in zip(("train", "test"), prepared.SPLITS[spec.name], strict=True):
        read = list(records(found.path, split, f"reading {spec.name} {split}"))
        texts.append([example["text"].decode() for example in read])
        labels = [example["label"] for example in read]
        np.save(folder / f"{part}_y.npy", _labels(spec.classes, labels))
    train, test = tokenise(texts[0], texts[1], spec.shape[0], spec.words)
    np.save(folder / "train_x.npy", train)
    np.save(folder / "test_x.npy", test)
