"""Partitions in files: which client holds which example."""

import hashlib
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedjax_nc import inputs
from fedjax_nc.config import Order
from fedjax_nc.data import npz
from fedjax_nc.data.partition import MOST_CLIENTS, Partition
from fedjax_nc.errors import UserError, quoted, reason

# Bytes of a partition file, whatever and for each training example: an index takes 8 or so, also
# of clients' test sets, which may overlap. Unpacked or parsed, a file may take several times more.
_FILE, _FILE_EACH = 16 * inputs.MEGABYTE, 16
_UNPACKED_TIMES = 8
_POOLS = ("train", "test")
_KINDS = ("client", "test")
# Clients from which on a file has one array of all their indices. An entry of an archive takes 200
# bytes there and 500 in memory: 100,000 clients would make a file larger than is read back.
_MANY = 10_000
_ALLOWED = ("repeated", "missing")


def save(
    file: str | Path | BinaryIO,
    train: Partition,
    *,
    test: Partition | None = None,
    meta: dict | None = None,
) -> None:
    """Writes a partition, which `load` reads back.

    Args:
      file: the .npz file, by its path or open.
      train: indices of each client's training examples.
      test: indices of each client's test examples.
      meta: any JSON. `load` uses meta["pool"], "train" if the test sets are held-out training data,
        and meta["allow"], a list of "repeated" and "missing": what examples may be; `check` uses
        meta["labels"], the fingerprint of the training labels, and names "dataset", "split" and
        "order" where it does not fit.
    """
    arrays = {}
    for kind, parts in zip(_KINDS, (train, test or []), strict=True):
        if len(parts) > _MANY:
            arrays |= {kind: np.concatenate(parts), _sizes(kind): np.array([*map(len, parts)])}
        else:
            arrays |= {f"{kind}{i}": part for i, part in enumerate(parts)}
    np.savez_compressed(file, allow_pickle=False, meta=np.array(json.dumps(meta or {})), **arrays)


def load(path: str | Path, num_train: int) -> tuple[Partition, Partition | None, dict]:
    """Reads a partition file, and refuses one that does not fit the training set.

    It is what `save` wrote, or an .npz or .json file of {client: indices} with the keys 0, client0
    or client_0. An .npz file of many clients may have the indices of all, one client after another,
    as `client`, and how many each has as `client_sizes`; tests likewise. Every training example
    belongs to exactly one client.

    Args:
      path: of the file.
      num_train: the number of training examples.

    Returns:
      Indices of each client's training examples, of its test examples (None if the file has none),
      and what `save` was given as meta.
    """
    raw, meta = _read(Path(path), num_train)
    _check_meta(path, meta)
    in_train, allow = meta.get("pool") == "train", meta.get("allow", ())
    found: dict[str, dict[int, np.ndarray]] = {"client": {}, "test": {}}
    for key, values in raw.items():
        match = re.fullmatch(r"(?:(client|test)_?)?([0-9]{1,9})", key)
        if not match:
            raise UserError(
                f"{path}: key {quoted(key)} is no client: use 0, 1, ... or client0, ..."
            )
        kind, client = match[1] or "client", int(match[2])
        limit = num_train if kind == "client" or in_train else 2**63
        if client in found[kind]:
            raise UserError(f"{path}: {kind} {client} is given twice: give each client once")
        found[kind][client] = _indices(values, limit, where=f"{path}: {kind} {client}")
    for kind, ids in found.items():
        lost = set(range(len(found["client"]) or 1)) ^ set(ids)
        if lost and (ids or kind == "client"):
            raise UserError(f"{path}: {kind} {min(lost)} is missing: number the clients 0, 1, ...")
    train, test = ([ids[i] for i in sorted(ids)] for ids in found.values())
    used = list(map(np.append, train, test)) if test and in_train else train
    count = np.bincount(np.concatenate(used), minlength=num_train)
    if count.max() > 1 and "repeated" not in allow:
        index = int(np.argmax(count > 1))
        holders = " and ".join(str(i) for i, own in enumerate(used) if index in own)
        raise UserError(f"{path}: client {holders}: index {index} is repeated")
    if count.min() < 1 and "missing" not in allow:
        lost, first = np.sum(count < 1), int(np.argmin(count))
        raise UserError(f"{path}: {lost} of {num_train} samples belong to no client, first {first}")
    return train, test or None, meta


def _indices(values: Any, limit: int, where: str) -> np.ndarray:
    """Returns a client's indices, or refuses what is no list of whole numbers below the limit."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
        ends = [values.min().item(), values.max().item()] if values.size else []
    else:
        values = ends = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(ends, list):
        raise UserError(f"{where}: {quoted(values)} is not a list of indices")
    for value in ends:
        if type(value) is not int:  # isinstance would let True through
            raise UserError(f"{where}: index {quoted(value)} is not an integer")
        if not 0 <= value < limit:
            raise UserError(f"{where}: index {quoted(value)} is not in 0..{limit - 1}")
    return np.array(values, np.int64)


def _check_meta(path: str | Path, meta: dict) -> None:
    """Refuses facts of a partition that mean nothing, or something else than they say."""
    if meta.get("pool", "train") not in _POOLS:
        raise UserError(f"{path}: pool is {quoted(meta['pool'])}: choose from {', '.join(_POOLS)}")
    allow = meta.get("allow", [])
    if not isinstance(allow, list) or not all(word in _ALLOWED for word in allow):
        raise UserError(f"{path}: allow is {quoted(allow)}: list some of {', '.join(_ALLOWED)}")
    if not isinstance(meta.get("labels", ""), str):
        raise UserError(f"{path}: labels is {quoted(meta['labels'])}: give their fingerprint")


def fingerprint(labels: np.ndarray) -> str:
    """Returns sixteen hexadecimal characters that change with the labels or their order."""
    return hashlib.sha256(np.asarray(labels, "<i4").tobytes()).hexdigest()[:16]


def check(
    path: str | Path,
    meta: dict,
    *,
    labels: str,
    order: Order,
    told: Order | None = None,
    shuffled: bool = False,
) -> None:
    """Refuses a partition that was made for other examples, or for another order of them.

    Args:
      path: of the file.
      meta: what `load` found in it.
      labels: the fingerprint of the training labels that its indices are used on.
      order: which order these are in.
      told: the order that the person who gives the file says its indices mean.
      shuffled: whether the examples also have another order, so that it must be told.
    """
    if told and told != order:
        raise UserError(
            f"--data.partition_order={told}: the run numbers its examples in {order} order: "
            f"pass --data.order={told} too, or give a file of indices in {order} order"
        )
    if "labels" in meta:
        if meta["labels"] != labels:
            made = ", ".join(quoted(meta.get(key)) for key in ("dataset", "split", "order"))
            raise UserError(
                f"{path} was made for other training labels ({made}) than the run's ({order} "
                "order): give the --dataset, --data.order and --data.limit it was made with"
            )
    elif shuffled and not told:
        raise UserError(
            f"{path} does not say which order its indices mean: pass --data.partition_order="
            "official (torchvision, Flower, PFLlib), or stored (TFDS, older runs of this command)"
        )


def _sizes(kind: str) -> str:
    return f"{kind}_sizes"


def _apart(raw: dict[str, np.ndarray], most: int) -> dict[str, np.ndarray]:
    """Gives each client its part of an array that has the indices of all.

    Args:
      raw: the arrays of a file.
      most: clients, where that is more than there may be anyway.
    """
    for kind in _KINDS:
        sizes = raw.pop(_sizes(kind), None)
        if sizes is None:
            continue
        indices = raw.pop(kind, np.zeros(0, np.int64))
        for array in (sizes, indices):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise ValueError(f"{kind} and {_sizes(kind)} are not lists of whole numbers")
        total = len(indices)
        if not 0 < len(sizes) <= max(most, MOST_CLIENTS) or sizes.min() < 0 or sizes.max() > total:
            raise ValueError(f"{_sizes(kind)} are not sizes of parts of {kind}")
        if sizes.sum(dtype=np.int64) != total:
            raise ValueError(f"{_sizes(kind)} do not add up to {kind}")
        parts = np.split(indices, np.cumsum(sizes, dtype=np.int64)[:-1])
        own = {f"{kind}{i}": part for i, part in enumerate(parts)}
        if own.keys() & raw.keys():
            raise ValueError(f"it has {kind} both as one array and as one of each client")
        raw |= own
    return raw


def _read(path: Path, num_train: int) -> tuple[dict, dict]:
    """Reads the table {key: indices} of a file, and the meta that `save` put beside it."""
    most = _FILE + _FILE_EACH * num_train
    try:
        if path.suffix == ".json":
            raw, meta = inputs.read_json(path, most), {}
        else:
            packed = io.BytesIO(inputs.read(path, most))
            with zipfile.ZipFile(packed) as file:
                npz.check_unpacked(file, _UNPACKED_TIMES * most)
                npz.check_arrays(file)
            packed.seek(0)
            with np.load(packed, allow_pickle=False) as arrays:
                raw = {key: arrays[key] for key in arrays.files}
            meta = inputs.parse_json(raw.pop("meta", np.array("{}")).item())
            raw = _apart(raw, num_train)
        if not isinstance(raw, dict) or not isinstance(meta, dict):
            raise ValueError("it is not a table {client: indices}")
    except FileNotFoundError:
        raise UserError(f"partition file '{path}' does not exist: give another") from None
    except npz.DAMAGE as error:
        raise UserError(
            f"cannot read '{path}' as npz or json ({reason(error)}): write it again, as a table "
            "{client: indices}"
        ) from None
    return raw, meta
