"""Prepared TFDS directories: where they are, and whether they are whole."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_nc import inputs
from fedjax_nc.data.catalogue import DATASETS, release_of
from fedjax_nc.errors import UserError, command, quoted

_FACTS = 4 * inputs.MEGABYTE  # bytes of TFDS's json files, of which thousands of classes make 0.1
INCOMPLETE = "incomplete."  # how the directory of a preparation under way begins


class Prepared(NamedTuple):
    """A directory that looks whole: its path, the shard files with their lengths, an identity."""

    path: Path
    shards: dict[str, dict[str, int]]  # split -> file name -> number of examples
    fingerprint: str


def data_dir(directory: str | None) -> Path:
    """Returns the data directory: as given, else $TFDS_DATA_DIR, else ~/tensorflow_datasets."""
    chosen = directory or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(chosen).expanduser().absolute()


def remedy(name: str, root: Path) -> str:
    """Returns the command that prepares a dataset, as an advice."""
    return f"run: {command('prepare')} {name} --data.dir {root}"


def held(root: Path) -> list[str]:
    """Returns the names of the prepared datasets below a data directory."""
    found = [*root.glob("*/*/dataset_info.json"), *root.glob("*/*/*/dataset_info.json")]
    return sorted({path.relative_to(root).parts[0] for path in found})


def _inside(root: Path) -> tuple[str, Path] | None:
    """The dataset whose own directory was given, with the data directory above it."""
    layouts = {spec.name: spec.release.layout for spec in DATASETS.values() if spec.release}
    for name, below in layouts.items():
        for above in list(root.parents)[: below.count("/") + 1]:
            path = above / below
            if (path / "dataset_info.json").exists() and root in (path, *path.parents):
                return name, above
    return None


def _json(path: Path, broken: str) -> dict:
    try:
        content = inputs.read_json(path, _FACTS)
    except (OSError, ValueError) as error:
        raise UserError(broken.replace("{}", f"{path.name} is missing or damaged")) from error
    if not isinstance(content, dict):
        raise UserError(broken.replace("{}", f"{path.name} is damaged"))
    return content


def _within(content: Any, *keys: str) -> Any:
    """Returns what nested tables hold under these keys, None where one of them is no table."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _whole(value: Any) -> int:
    """Returns a whole number as protobuf writes it, in quotes or not; -1 for anything else."""
    text = str(value) if type(value) is int and abs(value) < 1e18 else value
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,18}", text) else -1


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []


def locate(name: str, root: Path) -> Path:
    """Returns the directory of a dataset, or says what the data directory holds instead."""
    release = release_of(name)
    if not root.is_dir():
        raise UserError(f"data directory {root} does not exist: {remedy(name, root)}")
    path = root / release.layout
    if path.is_dir():
        return path
    if inside := _inside(root):
        key, above = inside
        advice = f"use --data.dir {above}" if key == name else remedy(name, above)
        raise UserError(f"{root} is the directory of {key}, not a data directory: {advice}")
    if any(
        (root / release.tfds_name).glob("**/*incomplete*")
    ):  # ours, or the kind TFDS itself leaves
        raise UserError(
            f"{name} in {root} is half-prepared (the preparation was interrupted, or still "
            f"runs): {remedy(name, root)}"
        )
    others = held(root)
    holds = f"it holds {', '.join(others)}" if others else "it holds no prepared dataset"
    raise UserError(f"no {name} in data directory {root} ({holds}): {remedy(name, root)}")


def _same_dataset(name: str, info: dict, features: dict) -> str | None:
    """What shows that the directory belongs to another dataset, if anything does."""
    if info.get("name") != release_of(name).tfds_name:
        return f"dataset_info.json says {quoted(info.get('name'))}"
    spec, named = DATASETS[name], _within(features, "featuresDict", "features")
    classes = _whole(_within(named, "label", "classLabel", "numClasses"))
    if classes != spec.classes:
        return f"features.json says {classes} classes, {name} has {spec.classes}"
    if spec.is_text:
        return None if _within(named, "text") else "features.json has no 'text'"
    dims = _list(_within(named, "image", "image", "shape", "dimensions"))
    shape = tuple(_whole(d) for d in dims[: len(spec.shape) + 1])
    return None if shape == spec.shape else f"images are {shape}, {name} has {spec.shape}"


def _format(info: dict) -> str:
    kind = info.get("fileFormat", "tfrecord")
    return kind if isinstance(kind, str) else quoted(kind)


def inspect(name: str, root: Path) -> Prepared:
    """Finds a dataset and checks it from its file list alone: cheap enough for every start."""
    path, release = locate(name, root), release_of(name)
    again = f"delete {path}, then {remedy(name, root)}"
    broken = f"{path} is half-prepared ({{}}): {again}"
    info = _json(path / "dataset_info.json", broken)
    features = _json(path / "features.json", broken)
    if other := _same_dataset(name, info, features=features):
        raise UserError(f"{path} is not {name} ({other}): {again}")
    if info.get("fileFormat") != "array_record":
        raise UserError(
            f"{path} is stored as {_format(info)}, which needs TensorFlow "
            f"(only array_record is read): choose another directory, {remedy(name, Path('DIR'))}"
        )
    splits = {str(_within(split, "name")): split for split in _list(info.get("splits"))}
    lengths = {
        key: [_whole(n) for n in _list(_within(split, "shardLengths"))]
        for key, split in splits.items()
    }
    shards, identity = {}, [name, str(path), json.dumps(lengths)]
    for split in release.splits:
        if not sum(lengths.get(split, [])) or min(lengths[split]) < 0:
            raise UserError(broken.replace("{}", f"no examples in split '{split}'"))
        shards[split] = {}
        for index, length in enumerate(lengths[split]):
            of = f"{index:05d}-of-{len(lengths[split]):05d}"
            template = _within(splits[split], "filepathTemplate")
            ending = f"{index:05d}" if "SHARD_INDEX" in str(template) else of
            file = path / f"{release.tfds_name}-{split}.array_record-{ending}"
            if not file.is_file() or not file.stat().st_size:
                raise UserError(broken.replace("{}", f"{file.name} is missing or empty"))
            shards[split][file.name] = length
            identity.append(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}")
    return Prepared(
        path, shards, fingerprint=hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    )


def check_shards(name: str, root: Path, *, prepared: Prepared) -> None:
    """Asks every shard file how many examples it holds; one that was cut says fewer."""
    from array_record.python.array_record_module import ArrayRecordReader

    for files in prepared.shards.values():
        for file, length in files.items():
            try:
                reader = ArrayRecordReader(str(prepared.path / file))
                count = reader.num_records()
                reader.close()  # where it reports what it found wrong
            except (RuntimeError, ValueError):
                count = 0
            if count != length:
                raise UserError(
                    f"{prepared.path} is half-prepared ({file} holds {count} of {length} "
                    f"examples): delete {prepared.path}, then {remedy(name, root)}"
                )
