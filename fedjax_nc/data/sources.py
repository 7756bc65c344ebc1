"""The official releases: read from their archives or extracted folders, with every file checked."""

import gzip
import hashlib
import pickle
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.errors import UserError

Files = dict[str, Callable[[], bytes]]  # path inside the release -> its content

ARCHIVES = {  # file name -> md5
    "mnist": {},
    "cifar10": {
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    },
    "cifar100": {
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    },
    "tiny_imagenet": {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    "imdb_reviews": {"aclImdb_v1.tar.gz": "7c2ac02c03563afcf9b574c7e56c153a"},
}
MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
LAYOUTS = {  # kind of release -> the paths that show it is one
    "mnist": {"idx": [name for name in MD5 if name.endswith("ubyte")]},
    "cifar10": {
        "binary": [f"{name}.bin" for name in (*_BATCHES, "test_batch")],
        "python": [*_BATCHES, "test_batch"],
    },
    "cifar100": {"binary": ["train.bin", "test.bin"], "python": ["train", "test", "meta"]},
    "tiny_imagenet": {"folder": ["wnids.txt", "val/val_annotations.txt", "train"]},
    "imdb_reviews": {"folder": ["train/neg", "train/pos", "test/neg", "test/pos"]},
}
_CIFAR10: list[str] = [
    *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
]


class Split(NamedTuple):
    """One split: its labels, and its examples as (key TFDS shuffles by, features)."""

    labels: np.ndarray
    examples: Callable[[], Iterator[tuple[int | str, dict[str, Any]]]]


class Source(NamedTuple):
    """A release: the class names of each label feature (None where unknown) and the splits."""

    names: dict[str, list[str] | None]
    splits: dict[str, Split]


def read(name: str, path: Path, official: bool = True) -> Source:
    """Open a release; `official=False` skips checksums and counts (small sources in tests)."""
    kind, files = _open(name, path, official=official)

    def content(file: str) -> bytes:
        data = files[file]()
        if official and file in MD5:
            _compare(f"{path}: {file}", hashlib.md5(data).hexdigest(), wanted=[MD5[file]])
        return data

    try:
        if name == "mnist":
            source = _mnist(content)
        elif name.startswith("cifar"):
            source = _cifar(name, kind, content=content, present=set(files))
        else:
            source = (_tiny_imagenet if name == "tiny_imagenet" else _imdb)(files)
    except (ValueError, KeyError, EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path} is not the {name} release ({error}): download it again") from error
    if official:
        _check_counts(name, path, source=source)
    return source


def _compare(what: str, got: str, wanted: list[str]) -> None:
    if got not in wanted:
        raise UserError(f"{what} has md5 {got}, not {' or '.join(wanted)}: download it again")


def _check_counts(name: str, path: Path, source: Source) -> None:
    # Every class of these releases but MNIST's has the same number of examples.
    spec, sizes = DATASETS[name], (DATASETS[name].train, DATASETS[name].test)
    for (split, (labels, _)), size in zip(source.splits.items(), sizes, strict=True):
        per_class = np.bincount(labels, minlength=spec.classes)
        even = name == "mnist" or (per_class == size // spec.classes).all()
        if len(labels) != size or len(per_class) != spec.classes or not even:
            raise UserError(
                f"{path}: the {split} split has {len(labels)} examples, {per_class.min()} to "
                f"{per_class.max()} per class, not {size} evenly: download {name} again"
            )


def _open(name: str, path: Path, official: bool) -> tuple[str, Files]:
    if not path.exists():
        raise UserError(f"--from {path} does not exist: give the official {name} files")
    if path.is_file():
        if name == "mnist":  # one of four files was meant to stand for all
            return _open(name, path.parent, official=official)
        if official:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "md5").hexdigest()
            _compare(str(path), digest, wanted=list(ARCHIVES[name].values()))
        files = _archive(path)
        for prefix in {"", *(f"{file.split('/')[0]}/" for file in files)}:
            inner = {f[len(prefix) :]: get for f, get in files.items() if f.startswith(prefix)}
            if kind := _kind(name, inner):
                return kind, inner
        raise UserError(f"{path} holds no {name} release: {_wanted(name)}")
    for folder in [path, *sorted(p for p in path.iterdir() if p.is_dir())]:
        for kind, needed in LAYOUTS[name].items():
            if all((folder / f).exists() or (folder / f"{f}.gz").exists() for f in needed):
                return kind, _folder(folder, deep=kind == "folder")
    for archive in ARCHIVES[name]:
        if (path / archive).is_file():
            return _open(name, path / archive, official=official)
    raise UserError(f"no {name} release in {path}: {_wanted(name)}")


def _wanted(name: str) -> str:
    forms = [f"a folder with {', '.join(needed)}" for needed in LAYOUTS[name].values()]
    return f"give {' or '.join([*ARCHIVES[name], *forms])}"


def _kind(name: str, files: Files) -> str | None:
    folders = {str(Path(f).parent) for f in files} | {f.split("/")[0] for f in files}
    for kind, needed in LAYOUTS[name].items():
        if all(f in files or f in folders for f in needed):
            return kind
    return None


def _folder(folder: Path, deep: bool) -> Files:
    files: Files = {}
    for path in folder.glob("**/*" if deep else "*"):
        if path.is_file():
            file = path.relative_to(folder).as_posix()
            files[file] = path.read_bytes
            if path.suffix == ".gz" and not path.with_suffix("").exists():
                files[file[:-3]] = lambda path=path: gzip.decompress(path.read_bytes())
    return files


def _archive(path: Path) -> Files:
    if zipfile.is_zipfile(path):
        opened = zipfile.ZipFile(path)  # kept open: the files are read one at a time later
        names = [n for n in opened.namelist() if not n.endswith("/")]
        return {name: lambda name=name: opened.read(name) for name in names}
    try:
        with tarfile.open(path) as tar:  # a compressed tar has no random access: read it all
            wanted = (m for m in tar if m.isfile() and "/unsup/" not in m.name)
            pairs = ((m.name.removeprefix("./"), tar.extractfile(m)) for m in wanted)
            held = {name: stream.read() for name, stream in pairs if stream}
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{path} is not a readable archive ({error}): download it again") from error
    return {name: lambda data=data: data for name, data in held.items()}


def _mnist(content: Callable[[str], bytes]) -> Source:
    splits = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        # Headers of 16 and 8 bytes; the sizes in them are implied by the checksum.
        pixels = np.frombuffer(content(f"{prefix}-images-idx3-ubyte"), np.uint8, offset=16)
        labels = np.frombuffer(content(f"{prefix}-labels-idx1-ubyte"), np.uint8, offset=8)
        images = pixels.reshape(len(labels), 28, 28, 1)
        splits[split] = _arrays(images, {"label": labels}, ids=None)
    return Source({"label": [str(digit) for digit in range(10)]}, splits)


def _cifar(name: str, kind: str, content: Callable[[str], bytes], present: set[str]) -> Source:
    keys = ["label"] if name == "cifar10" else ["coarse_label", "label"]
    names: dict[str, list[str] | None] = {key: None for key in keys}
    if name == "cifar10":
        names["label"] = _CIFAR10
    elif kind == "python":
        meta = pickle.loads(content("meta"))  # its checksum has been compared by now
        names = {"coarse_label": meta["coarse_label_names"], "label": meta["fine_label_names"]}
    elif {"fine_label_names.txt", "coarse_label_names.txt"} <= present:
        for key, file in (("coarse_label", "coarse"), ("label", "fine")):
            names[key] = content(f"{file}_label_names.txt").decode().split()
    splits = {}
    files = [_BATCHES, ["test_batch"]] if name == "cifar10" else [["train"], ["test"]]
    for split, parts in zip(("train", "test"), files, strict=True):
        rows = [_cifar_rows(part, kind, labels=len(keys), content=content) for part in parts]
        table = np.concatenate(rows)
        images = table[:, len(keys) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = {key: table[:, i] for i, key in enumerate(keys)}
        splits[split] = _arrays(images, labels, ids=split)
    return Source(names, splits)


def _cifar_rows(part: str, kind: str, labels: int, content: Callable[[str], bytes]) -> np.ndarray:
    """One row per image: its labels (coarse first), then 3072 pixels by channel."""
    if kind == "binary":
        return np.frombuffer(content(f"{part}.bin"), np.uint8).reshape(-1, labels + 3072)
    batch = pickle.loads(content(part), encoding="latin1")  # likewise compared
    columns = [batch["labels"]] if labels == 1 else [batch["coarse_labels"], batch["fine_labels"]]
    return np.concatenate([np.array(columns, np.uint8).T, batch["data"]], axis=1)


def _arrays(images: np.ndarray, labels: dict[str, np.ndarray], ids: str | None) -> Split:
    def examples() -> Iterator[tuple[int | str, dict[str, Any]]]:
        for i, image in enumerate(images):
            known = {"id": f"{ids}_{i:05d}"} if ids else {}
            yield i, {"image": image, **{k: int(v[i]) for k, v in labels.items()}, **known}

    return Split(labels["label"], examples)


def _tiny_imagenet(files: Files) -> Source:
    classes = files["wnids.txt"]().decode().split()
    index = {wnid: i for i, wnid in enumerate(classes)}
    train = [f for f in files if re.fullmatch(r"train/n\d+/images/\w+\.JPEG", f)]
    notes = [n.split("\t")[:2] for n in files["val/val_annotations.txt"]().decode().splitlines()]
    pairs = {
        "train": [(file, index[file.split("/")[1]]) for file in sorted(train)],
        "validation": [(f"val/images/{file}", index[wnid]) for file, wnid in notes],
    }
    return Source({"label": classes}, {s: _stored(files, "image", pairs=pairs[s]) for s in pairs})


def _imdb(files: Files) -> Source:
    pairs: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for file in sorted(files):
        if found := re.fullmatch(r"(train|test)/(neg|pos)/\w+\.txt", file):
            pairs[found[1]].append((file, int(found[2] == "pos")))
    return Source(
        {"label": ["neg", "pos"]}, {s: _stored(files, "text", pairs=pairs[s]) for s in pairs}
    )


def _stored(files: Files, feature: str, pairs: list[tuple[str, int]]) -> Split:
    def examples() -> Iterator[tuple[int | str, dict[str, Any]]]:
        for file, label in pairs:
            if feature == "text":
                yield f"aclImdb/{file}", {"text": files[file]().strip(), "label": label}
            else:
                known = file.rsplit("/", 1)[1]
                yield known, {"image": files[file](), "label": label, "id": known}

    return Split(np.array([label for _, label in pairs], np.int64), examples)
