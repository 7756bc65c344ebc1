"""From prepared TFDS directories to arrays."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_nc.data.catalogue import release_of
from fedjax_nc.data.prepared import Prepared
from fedjax_nc.data.progress import track
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import reason

Places = dict[str, np.ndarray]  # of each split, as `official.find` returns it

_WORD = re.compile(r"\w+(?:'\w+)*")


def records(path: Path, split: str, label: str) -> Iterator[dict]:
    """Yields the examples of a prepared split, their features as stored: encoded bytes and ints.

    Read in bulk and parsed here, 50,000 take 1 s; TFDS's own decoding, one by one, takes 13 s, and
    imports whatever modules features.json names.
    """
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    parse = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    files = sorted(path.glob(f"*-{split}.array_record-*"))
    readers = [_reader(file) for file in files]
    count = sum(reader.num_records() for reader in readers)
    all_bytes = (record for reader in readers for record in _stored(reader, split))
    for record in track(all_bytes, count, label=label):
        try:
            example = parse(record)
            yield {key: _feature(value) for key, value in example.features.feature.items()}
        except (DecodeError, IndexError) as error:
            raise ValueError(f"a record of split '{split}' is damaged") from error


def _reader(file: Path) -> Any:
    """Opens a shard for reading in any order, without reading ahead."""
    from array_record.python.array_record_module import ArrayRecordReader

    try:
        return ArrayRecordReader(
            str(file), options="readahead_buffer_size:0", file_reader_buffer_size=32768
        )
    except RuntimeError as error:
        raise ValueError(f"{file.name} is damaged") from error


def _stored(reader: Any, split: str) -> Iterator[bytes]:
    """Yields the records of a shard, a thousand read at once."""
    count = reader.num_records()
    for i in range(0, count, 1000):
        try:
            read = reader.read(list(range(i, min(i + 1000, count))))
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"a record of split '{split}' is damaged") from error
        yield from read


def _feature(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    return getattr(value, kind).value[0] if kind else None


def decode_image(encoded: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Decodes a png or jpeg to uint8 of this shape; grey among coloured ones becomes coloured."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            if (picture.height, picture.width) != tuple(shape[:2]):  # before it is unpacked
                raise ValueError(f"{picture.height}x{picture.width} pixels")
            pixels = np.asarray(picture.convert("L" if shape[-1] == 1 else "RGB"))
    except Exception as error:  # Pillow raises anything, such as SyntaxError for a broken png
        raise ValueError(f"an image is damaged: {reason(error)}") from error
    return pixels.reshape(shape)


def _labels(classes: int, values: Any) -> np.ndarray:
    labels = np.asarray(values, np.int64)
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels {labels.min()} to {labels.max()}, {classes} classes")
    return labels.astype(np.int32)


def _label(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("a label is no number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        raise ValueError("a text is no text")
    return value.decode()


def decode_images(
    spec: DatasetSpec, found: Prepared, *, folder: Path, places: Places | None = None
) -> None:
    """Writes the images and labels of a prepared directory into a folder, as arrays.

    Args:
      spec: the record of the dataset.
      found: its directory.
      folder: where the arrays are written.
      places: where in the arrays each stored example goes; by default they stay in stored order.
    """
    name, shape = spec.name, spec.shape
    for part, split in zip(("train", "test"), release_of(name).splits, strict=True):
        size = (sum(found.shards[split].values()), *shape)
        # Straight to the file: the largest of them would fill the memory of a small machine.
        images = np.lib.format.open_memmap(folder / f"{part}_x.npy", "w+", np.uint8, size)
        labels = np.zeros(size[0], np.int64)
        order: Iterable[int] = places[split] if places else range(size[0])
        examples = records(found.path, split, label=f"decoding {name} {split}")
        for place, example in zip(order, examples, strict=True):
            images[place] = decode_image(example["image"], shape)
            labels[place] = _label(example["label"])
        images.flush()
        np.save(folder / f"{part}_y.npy", _labels(spec.classes, labels))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("<br />", " "))


def tokenise(
    train: Iterable[str], test: Iterable[str], length: int, words: int = 10_000
) -> list[np.ndarray]:
    """Turns texts into rows of word ids, cut and padded at the end to one length.

    Id 0 is padding, 1 an unknown word; then come the most frequent words of the training split.

    Returns:
      The rows of both splits, int32 [n, length].
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


def decode_text(
    spec: DatasetSpec, found: Prepared, *, folder: Path, places: Places | None = None
) -> None:
    """Writes the word ids and labels of a prepared directory into a folder, as arrays.

    Args:
      spec: the record of the dataset, with the number of words and the length of a row.
      found: its directory.
      folder: where the arrays are written.
      places: where in the arrays each stored example goes; by default they stay in stored order.
    """
    texts = []
    for part, split in zip(("train", "test"), release_of(spec.name).splits, strict=True):
        read = list(records(found.path, split, label=f"reading {spec.name} {split}"))
        if places:
            read = [read[i] for i in np.argsort(places[split])]
        texts.append([_text(example["text"]) for example in read])
        labels = [_label(example["label"]) for example in read]
        np.save(folder / f"{part}_y.npy", _labels(spec.classes, labels))
    train, test = tokenise(texts[0], texts[1], length=spec.shape[0], words=spec.words)
    np.save(folder / "train_x.npy", train)
    np.save(folder / "test_x.npy", test)
