"""Writes prepared TFDS directories from the official releases, without TensorFlow."""

import fcntl
import hashlib
import http.client
import io
import json
import os
import shutil
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedjax_nc.data import prepared
from fedjax_nc.data.catalogue import DATASETS, find, release_of
from fedjax_nc.data.progress import track
from fedjax_nc.errors import UserError, command
from fedjax_nc.io import files

_TIMEOUT = 5  # seconds without an answer or without a byte


def prepare(
    name: str,
    source: str | None = None,
    *,
    directory: str | None = None,
    official: bool = True,
    side: int = 224,
) -> str:
    """Prepares a dataset, unless that is done or not needed.

    Args:
      name: of the dataset.
      source: the official archive, a directory with it or with its files, or ImageNet's directory;
        by default the release is downloaded.
      directory: where prepared data is kept; by default TFDS_DATA_DIR, then ~/tensorflow_datasets.
      official: False leaves out checksums and counts, for small releases in tests.
      side: of ImageNet's pictures.

    Returns:
      What was done, in a sentence.
    """
    spec = find(name)
    if spec.subset:
        return _prepare_pictures(name, source, root=prepared.data_dir(directory), side=side)
    if spec.release is None:
        return f"{name} needs no preparation: it is {spec.source}"
    root = prepared.data_dir(directory)
    target = root / spec.release.layout
    if target.exists():
        prepared.check_shards(name, root, prepared=prepared.inspect(name, root))
        return f"{name} is already prepared in {target}"
    from fedjax_nc.data import official as places
    from fedjax_nc.data import sources

    with _workplace(name, root / spec.release.tfds_name) as folder:
        if source is None:
            origin = folder / "download"
            _download(name, origin)
        else:
            origin = Path(source).expanduser().absolute()
        release = sources.read(name, origin, official=official)
        out = folder / "out"
        out.mkdir()
        try:
            write(name, release, folder=out)
            places.write(out, read_back(name, release, folder=out))
        except (OSError, ValueError, IndexError) as error:
            raise UserError(
                f"cannot prepare {name} in {root} ({error}): check the disk, or download it again"
            ) from error
        target.parent.mkdir(parents=True, exist_ok=True)
        if default := spec.release.tfds_config:  # how TFDS finds a configuration by itself
            config = target.parents[1] / ".config"
            config.mkdir(exist_ok=True)
            content = json.dumps({"default_config_name": default})
            files.write_atomically(config / "metadata.json", content)
        files.move_folder(out, target)
    counts = ", ".join(f"{len(split.labels)} {key}" for key, split in release.splits.items())
    return f"{name} is prepared in {target} ({counts})"


def _prepare_pictures(name: str, source: str | None, root: Path, side: int) -> str:
    """Decodes a subset of a local ImageNet, which nobody may download without an account."""
    from fedjax_nc.data import imagenet

    target = root / name / str(side)
    if target.exists():
        return f"{name} is already prepared in {target}"
    if source is None:
        raise UserError(
            f"{name} cannot be downloaded: give ImageNet's directory (with train and val), as "
            f"{command('prepare')} {name} --from PATH"
        )
    if side < 1:
        raise UserError(f"--data.side={side}: give a number above zero")
    found = imagenet.find(name, Path(source).expanduser().absolute())
    with _workplace(name, root / name) as folder:
        out = folder / "out"
        out.mkdir()
        try:
            imagenet.decode(name, found, side=side, folder=out)
        except (OSError, ValueError) as error:
            raise UserError(
                f"cannot prepare {name} in {root} ({error}): check the disk and the picture"
            ) from error
        files.move_folder(out, target)
    counts = ", ".join(f"{len(split.files)} {key}" for key, split in found.items())
    return f"{name} is prepared in {target} ({counts})"


@contextmanager
def _workplace(name: str, parent: Path) -> Iterator[Path]:
    """Gives a locked directory beside the target, and removes it and those of killed runs."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for old in parent.glob(f"{prepared.INCOMPLETE}*"):
            handle = _lock(old)
            if handle is None:
                raise UserError(
                    f"another process is preparing {name} in {parent.parent}: wait for it to end"
                )
            shutil.rmtree(old)
            os.close(handle)
        folder = Path(tempfile.mkdtemp(prefix=prepared.INCOMPLETE, dir=parent))
    except OSError as error:
        raise UserError(f"cannot write {parent} ({error}): choose another --data.dir") from error
    handle = _lock(folder)  # the system lets go of it however this process ends
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)
        with suppress(OSError):  # a failed run leaves no trace
            parent.rmdir()


def _lock(folder: Path) -> int | None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _download(name: str, folder: Path) -> None:
    folder.mkdir()
    for url in release_of(name).urls:
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
                size = int(answer.headers.get("Content-Length") or 0)
                blocks = iter(lambda: answer.read(1 << 20), b"")
                with (folder / url.rsplit("/", 1)[1]).open("wb") as file:
                    for block in track(blocks, -(-size >> 20), label=f"downloading {url} (MiB)"):
                        file.write(block)
        except (OSError, http.client.HTTPException) as error:
            raise UserError(
                f"cannot download {url} ({getattr(error, 'reason', error)}): fetch it elsewhere, "
                f"then run: {command('prepare')} {name} --from PATH"
            ) from error


def write(name: str, source: Any, *, folder: Path) -> None:
    """Writes a `sources.Source` as TFDS would, in its own order and under its file names.

    TFDS encodes images through TensorFlow only when it is given arrays, so it is given png bytes.
    """
    import tensorflow_datasets as tfds
    from etils import epath
    from tensorflow_datasets.core import (
        dataset_info,
        example_serializer,
        file_adapters,
        naming,
        splits,
        writer,
    )

    tfds.disable_progress_bar()
    record, features = release_of(name), _features(name, source)
    info = tfds.core.DatasetInfo(
        builder=dataset_info.DatasetIdentity(
            name=record.tfds_name,
            version=tfds.core.Version(record.layout.split("/")[-1]),
            data_dir=str(folder),
            module_name=__name__,
            config_name=record.tfds_config,
        ),
        description=f"{name}, from the official release, written by fedjax_nc.",
        features=features,
        supervised_keys=("text" if DATASETS[name].is_text else "image", "label"),
        homepage=record.urls[0],
    )
    kind = file_adapters.FileFormat.ARRAY_RECORD
    info.set_file_format(kind)
    serializer = example_serializer.ExampleSerializer(features.get_serialized_info())
    written = []
    for split, (labels, examples) in source.splits.items():
        template = naming.ShardedFileTemplate(
            data_dir=epath.Path(folder),
            dataset_name=record.tfds_name,
            split=split,
            filetype_suffix=kind.file_suffix,
        )
        out = writer.Writer(
            serializer,
            template,
            hash_salt=split,
            disable_shuffling=False,
            example_writer=writer.ExampleWriter(file_format=kind),
        )
        for key, example in track(examples(), len(labels), label=f"writing {name} {split}"):
            if not isinstance(example.get("image", b""), bytes):
                example["image"] = encode_png(example["image"])
            out.write(key, features.encode_example(example))
        lengths, size = out.finalize()
        written.append(tfds.core.SplitInfo(split, lengths, size, template))
    info.set_splits(splits.SplitDict(written))
    info.write_to_directory(folder)


def _features(name: str, source: Any) -> Any:
    import tensorflow_datasets as tfds

    spec, features = DATASETS[name], {}
    for key, names in source.names.items():
        count = None if names else 20 if key == "coarse_label" else spec.classes
        features[key] = tfds.features.ClassLabel(num_classes=count, names=names)
    if spec.is_text:
        features["text"] = tfds.features.Text()
    else:
        features["image"] = tfds.features.Image(shape=spec.shape)
        if source.ids:
            features["id"] = tfds.features.Text()
    return tfds.features.FeaturesDict(features)


def encode_png(pixels: Any) -> bytes:
    """Encodes a picture as png, at a level 2 % larger than the smallest and a tenth faster."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(stream, "png", compress_level=1)
    return stream.getvalue()


def read_back(name: str, source: Any, *, folder: Path) -> dict[str, list[int]]:
    """Reads every written example and compares pixels, text and labels with the release.

    Returns:
      For each split the place in the release of each example as written.
    """
    from fedjax_nc.data.decode import decode_image, records

    def digest(example: dict[str, Any], content: bytes) -> bytes:
        labels = [example[key] for key in source.names]
        return hashlib.blake2b(repr(labels).encode() + content, digest_size=16).digest()

    feature, shape = "text" if DATASETS[name].is_text else "image", DATASETS[name].shape
    places = {}
    for split, (_, examples) in source.splits.items():
        given, arrays = defaultdict(list), False  # which examples of the release are alike
        for place, (_, example) in enumerate(examples()):
            arrays = not isinstance(example[feature], bytes)
            data = example[feature].tobytes() if arrays else example[feature]
            given[digest(example, data)].append(place)
        written: list[int] = []
        for example in records(folder, split, label=f"checking {name} {split}"):
            data = example[feature]
            if feature == "image":
                pixels = decode_image(data, shape)  # also shows that a stored jpeg can be decoded
                data = pixels.tobytes() if arrays else data
            alike = given[digest(example, data)]
            written.append(alike.pop(0) if alike else -1)
        lost = sum(map(len, given.values()))
        if lost or -1 in written:  # the order differs, the content may not
            raise UserError(
                f"{lost} examples of {name} {split} came back different: check the disk"
            )
        places[split] = written
    return places
