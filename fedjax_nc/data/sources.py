"""The official releases: read from their archives or extracted folders, with every file checked."""

import gzip
import hashlib
import io
import math
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_nc import inputs
from fedjax_nc.data import npz
from fedjax_nc.data.catalogue import find, release_of
from fedjax_nc.data.spec import DatasetSpec, Release
from fedjax_nc.errors import UserError, reason

Files = dict[str, Callable[[], bytes]]  # path inside the release -> its content
# What a release holds is at most twice its pixels (CINIC-10 has a third split, and files have
# headers), or so many letters a text, and a little more of small ones.
_TIMES, _LETTERS, _LEAST = 2, 4000, 16 * inputs.MEGABYTE
_PIECE = inputs.MEGABYTE  # bytes that are unpacked at once
_UNUSED = re.compile(r"(^|/)(unsup|valid)/")  # folders of archives that no reader reads


class Split(NamedTuple):
    """One split: its labels, and its examples as (key TFDS shuffles by, features)."""

    labels: np.ndarray
    examples: Callable[[], Iterator[tuple[int | str, dict[str, Any]]]]


class Source(NamedTuple):
    """A release: the class names of each label feature (None where unknown) and the splits."""

    names: dict[str, list[str] | None]
    splits: dict[str, Split]
    ids: bool = False  # whether every example has an `id` beside its label


class Opened(NamedTuple):
    """A release whose files were found, as its reader takes it."""

    spec: DatasetSpec
    release: Release
    kind: str  # the form it is in, of `release.kinds`
    files: Files


def read(name: str, path: Path, official: bool = True) -> Source:
    """Reads a release from its archive or extracted folder and checks every file.

    Args:
      name: of a dataset with a release.
      path: the archive, a directory that holds it, or a directory with the extracted files.
      official: False leaves out checksums and counts, for small releases in tests.

    Returns:
      The labels and examples of both splits.
    """
    spec, release = find(name), release_of(name)
    try:
        kind, found = _open(spec, release, path=path, official=official)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read {path} ({reason(error)}): give {spec.name}'s files"
        ) from error

    def content(file: str) -> bytes:
        packed = f"{file}.gz"
        if file not in release.md5 and packed in release.md5 and packed in found:
            return _gunzip(content(packed), _most(spec))  # the form whose checksum is known
        data = found[file]()
        if official and file in release.md5:
            _compare(f"{path}: {file}", hashlib.md5(data).hexdigest(), wanted=[release.md5[file]])
        return data

    opened = Opened(spec, release, kind=kind, files={f: partial(content, f) for f in found})
    try:
        source = READERS[release.reader](opened)
    except (*npz.DAMAGE, AttributeError) as error:
        raise UserError(
            f"{path} is not the {name} release ({reason(error)}): download it again"
        ) from error
    if official:
        _check_counts(spec, release, path=path, source=source)
    return source


def _most(spec: DatasetSpec) -> int:
    """Returns how many bytes a release unpacks to at most."""
    each = _LETTERS if spec.is_text else math.prod(spec.shape)
    return _LEAST + _TIMES * each * (spec.train + spec.test)


def _compare(what: str, got: str, wanted: list[str]) -> None:
    if got not in wanted:
        raise UserError(f"{what} has md5 {got}, not {' or '.join(wanted)}: download it again")


def _check_counts(spec: DatasetSpec, release: Release, path: Path, source: Source) -> None:
    sizes = (spec.train, spec.test)
    for (split, (labels, _)), size in zip(source.splits.items(), sizes, strict=True):
        per_class = np.bincount(labels, minlength=spec.classes)
        even = not release.even or (per_class == size // spec.classes).all()
        if len(labels) != size or len(per_class) != spec.classes or not even:
            raise UserError(
                f"{path}: the {split} split has {len(labels)} examples, {per_class.min()} to "
                f"{per_class.max()} per class, not {size} evenly: download {spec.name} again"
            )


def _open(spec: DatasetSpec, release: Release, path: Path, official: bool) -> tuple[str, Files]:
    """Finds a release at a path: the form it is in, and its files by their paths inside it."""
    if not path.exists():
        raise UserError(f"--from {path} does not exist: give the official {spec.name} files")
    if not path.is_dir():
        inputs.check_file(path)
        if not release.archives:  # one of several files was meant to stand for all
            return _open(spec, release, path=path.parent, official=official)
        if official:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "md5").hexdigest()
            _compare(str(path), digest, wanted=list(release.archives.values()))
        files = _archive(path, _most(spec))
        for prefix in {"", *(f"{file.split('/')[0]}/" for file in files)}:
            inner = {f[len(prefix) :]: get for f, get in files.items() if f.startswith(prefix)}
            if kind := _kind(release, inner):
                return kind, inner
        raise UserError(f"{path} holds no {spec.name} release: {_wanted(release)}")
    archive = next((path / name for name in release.archives if (path / name).is_file()), None)
    for folder in [path, *sorted(p for p in path.iterdir() if p.is_dir())]:
        for kind, needed in release.kinds.items():
            if all((folder / f).exists() or (folder / f"{f}.gz").exists() for f in needed):
                known = all(f in release.md5 or f"{f}.gz" in release.md5 for f in needed)
                if official and archive and not known:
                    break  # an archive has a checksum, and these files have none
                deep = any("/" in f or (folder / f).is_dir() for f in needed)
                return kind, _folder(folder, deep, most=_most(spec))
    if archive:
        return _open(spec, release, path=archive, official=official)
    raise UserError(f"no {spec.name} release in {path}: {_wanted(release)}")


def _wanted(release: Release) -> str:
    forms = [f"a folder with {', '.join(needed)}" for needed in release.kinds.values()]
    return f"give {' or '.join([*release.archives, *forms])}"


def _kind(release: Release, files: Files) -> str | None:
    folders = {str(parent) for f in files for parent in Path(f).parents}
    for kind, needed in release.kinds.items():
        if all(f in files or f in folders for f in needed):
            return kind
    return None


def _folder(folder: Path, deep: bool, most: int) -> Files:
    paths = (path for path in folder.glob("**/*" if deep else "*") if path.is_file())
    files = {p.relative_to(folder).as_posix(): partial(inputs.read, p, most) for p in paths}
    return _unpacked(files, most)


def _unpacked(files: Files, most: int) -> Files:
    """Adds what compressed files hold, where it is not beside them already."""
    packed = {f[:-3]: get for f, get in files.items() if f.endswith(".gz")}
    new = {f: get for f, get in packed.items() if f not in files}
    return files | {f: lambda get=get: _gunzip(get(), most) for f, get in new.items()}


def _gunzip(packed: bytes, most: int) -> bytes:
    """Unpacks in pieces, and stops where there is more than any release has."""
    content = bytearray()
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
        while piece := stream.read(_PIECE):
            content += piece
            if len(content) > most:
                raise ValueError(f"it unpacks to more than {most // inputs.MEGABYTE} MB")
    return bytes(content)


def _archive(path: Path, most: int) -> Files:
    try:
        if zipfile.is_zipfile(path):
            opened = zipfile.ZipFile(path)  # kept open: the files are read one at a time later
            npz.check_unpacked(opened, most)
            names = [n for n in opened.namelist() if not n.endswith("/")]
            return _unpacked({name: partial(opened.read, name) for name in names}, most)
        held, left = {}, most
        with tarfile.open(path) as tar:  # a compressed tar has no random access: read it all
            for member in tar:
                left -= member.size
                if left < 0:
                    raise ValueError(f"it unpacks to more than {most // inputs.MEGABYTE} MB")
                wanted = member.isfile() and not _UNUSED.search(member.name)
                stream = tar.extractfile(member) if wanted else None
                if stream:
                    held[member.name.removeprefix("./")] = stream.read()
    except (tarfile.TarError, *npz.DAMAGE) as error:
        raise UserError(
            f"{path} is not a readable archive ({reason(error)}): download it again"
        ) from error
    return _unpacked({name: lambda data=data: data for name, data in held.items()}, most)


def idx(opened: Opened) -> Source:
    """Reads MNIST's format: images behind a header of 16 bytes, labels behind one of 8."""
    splits, paths = {}, iter(opened.release.kinds["idx"])  # images, labels; training split first
    for split in opened.release.splits:
        # The sizes in the headers are implied by the checksum, or by the counts.
        pixels = np.frombuffer(opened.files[next(paths)](), np.uint8, offset=16)
        labels = np.frombuffer(opened.files[next(paths)](), np.uint8, offset=8)
        images = pixels.reshape(len(labels), *opened.spec.shape)
        splits[split] = _arrays(images, {"label": labels}, ids=None)
    return Source({"label": list(opened.release.names) or None}, splits)


def cifar10(opened: Opened) -> Source:
    """Reads the binary or the python form of CIFAR-10."""
    *batches, test = (f.removesuffix(".bin") for f in opened.release.kinds[opened.kind])
    splits = _cifar(opened, {"train": batches, "test": [test]}, keys=["label"])
    return Source({"label": list(opened.release.names)}, splits, ids=True)


def cifar100(opened: Opened) -> Source:
    """Reads the binary or the python form of CIFAR-100, with its twenty coarse labels."""
    names: dict[str, list[str] | None] = {"coarse_label": None, "label": None}
    if opened.kind == "python":
        meta = pickle.loads(opened.files["meta"]())  # its checksum has been compared by now
        names = {"coarse_label": meta["coarse_label_names"], "label": meta["fine_label_names"]}
    elif {"fine_label_names.txt", "coarse_label_names.txt"} <= opened.files.keys():
        for key, file in (("coarse_label", "coarse"), ("label", "fine")):
            names[key] = opened.files[f"{file}_label_names.txt"]().decode().split()
    splits = _cifar(opened, {"train": ["train"], "test": ["test"]}, keys=list(names))
    return Source(names, splits, ids=True)


def _check_coarse(table: np.ndarray) -> None:
    """Refuses rows in which a fine label stands beside several coarse ones.

    No checksums of CIFAR-100's binary files are published, only that of their archive.
    """
    pairs = np.unique(table[:, :2], axis=0)
    if pairs[:, 0].max(initial=0) >= 20 or len(np.unique(pairs[:, 1])) < len(pairs):
        raise ValueError("a fine label has several coarse ones")


def _cifar(opened: Opened, files: dict[str, list[str]], keys: list[str]) -> dict[str, Split]:
    splits = {}
    for split, parts in files.items():
        table = np.concatenate([_cifar_rows(opened, part, labels=len(keys)) for part in parts])
        if len(keys) == 2:
            _check_coarse(table)
        images = table[:, len(keys) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = {key: table[:, i] for i, key in enumerate(keys)}
        splits[split] = _arrays(images, labels, ids=f"{split}_{{:05d}}")
    return splits


def _cifar_rows(opened: Opened, part: str, labels: int) -> np.ndarray:
    """Reads one row per image: its labels (coarse first), then 3072 pixels by channel."""
    if opened.kind == "binary":
        rows = np.frombuffer(opened.files[f"{part}.bin"](), np.uint8)
        return rows.reshape(-1, labels + 3072)
    batch = pickle.loads(opened.files[part](), encoding="latin1")  # likewise compared
    columns = [batch["labels"]] if labels == 1 else [batch["coarse_labels"], batch["fine_labels"]]
    return np.concatenate([np.array(columns, np.uint8).T, batch["data"]], axis=1)


def svhn(opened: Opened) -> Source:
    """Reads the MATLAB files of SVHN's cropped digits, whose label 10 is the digit 0."""
    from scipy.io import loadmat  # scikit-learn needs scipy, so it is there
    from scipy.io.matlab import MatReadError

    splits = {}
    for split, file in zip(opened.release.splits, opened.release.kinds["mat"], strict=True):
        try:
            table = loadmat(io.BytesIO(opened.files[file]()), variable_names=("X", "y"))
        except (MatReadError, TypeError, NotImplementedError) as error:
            raise ValueError(f"{file}: {error}") from error
        images, labels = np.moveaxis(table["X"], -1, 0), table["y"].ravel()
        wrong = labels.size and not 1 <= labels.min() <= labels.max() <= 10
        if images.shape != (len(labels), *opened.spec.shape) or images.dtype != np.uint8 or wrong:
            raise ValueError(f"{file}: {images.dtype} {images.shape}, {len(labels)} labels")
        digits = labels.astype(np.int64) % 10
        splits[split] = _arrays(images, {"label": digits}, ids=f"{split}_{{:06d}}")
    return Source({"label": list(opened.release.names)}, splits, ids=True)


def _arrays(images: np.ndarray, labels: dict[str, np.ndarray], ids: str | None) -> Split:
    def examples() -> Iterator[tuple[int | str, dict[str, Any]]]:
        for i, image in enumerate(images):
            known = {"id": ids.format(i)} if ids else {}
            yield i, {"image": image, **{k: int(v[i]) for k, v in labels.items()}, **known}

    return Split(labels["label"], examples)


def tiny_imagenet(opened: Opened) -> Source:
    """Reads Tiny-ImageNet, whose labelled test pictures are its validation split."""
    files = opened.files
    classes = files["wnids.txt"]().decode().split()
    index = {wnid: i for i, wnid in enumerate(classes)}
    train = [f for f in files if re.fullmatch(r"train/n\d+/images/\w+\.JPEG", f)]
    notes = [n.split("\t")[:2] for n in files["val/val_annotations.txt"]().decode().splitlines()]
    pairs = {
        "train": [(file, index[file.split("/")[1]]) for file in sorted(train)],
        "validation": [(f"val/images/{file}", index[wnid]) for file, wnid in notes],
    }
    splits = {
        s: _stored(files, "image", pairs=pairs[s], key=lambda file: file.rsplit("/", 1)[1])
        for s in pairs
    }
    return Source({"label": classes}, splits, ids=True)


def cinic10(opened: Opened) -> Source:
    """Reads CINIC-10's folders of classes, in the order of their paths, `valid` left out."""
    return _by_folder(opened, r"(train|test)/(\w+)/[\w-]+\.png", feature="image")


def imdb_reviews(opened: Opened) -> Source:
    """Reads the labelled reviews, one file each."""
    return _by_folder(opened, r"(train|test)/(neg|pos)/\w+\.txt", feature="text")


def _by_folder(opened: Opened, pattern: str, feature: str) -> Source:
    """Reads examples that are a file each, in a folder that is named by their class."""
    names = list(opened.release.names)
    pairs: dict[str, list[tuple[str, int]]] = {split: [] for split in opened.release.splits}
    for file in sorted(opened.files):
        if found := re.fullmatch(pattern, file):
            pairs[found[1]].append((file, names.index(found[2])))
    text = feature == "text"

    def key(file: str) -> str:
        return f"aclImdb/{file}" if text else file.split("/", 1)[1]

    splits = {s: _stored(opened.files, feature, pairs=pairs[s], key=key) for s in pairs}
    return Source({"label": names}, splits, ids=not text)


def _stored(
    files: Files, feature: str, pairs: list[tuple[str, int]], key: Callable[[str], str]
) -> Split:
    def examples() -> Iterator[tuple[int | str, dict[str, Any]]]:
        for file, label in pairs:
            known = key(file)
            if feature == "text":
                yield known, {"text": files[file]().strip(), "label": label}
            else:
                yield known, {"image": files[file](), "label": label, "id": known}

    return Split(np.array([label for _, label in pairs], np.int64), examples)


READERS: dict[str, Callable[[Opened], Source]] = {
    reader.__name__: reader
    for reader in (idx, svhn, cifar10, cifar100, cinic10, tiny_imagenet, imdb_reviews)
}
