"""Partitions in files: which client holds which example."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np

from fedjax_nc.config import Order
from fedjax_nc.data.partition import Partition
from fedjax_nc.errors import UserError


def save(
    path: str | Path, train: Partition, *, test: Partition | None = None, meta: dict | None = None
) -> None:
    """Writes a partition, which `load` reads back.

    Args:
      path: of the .npz file.
      train: indices of each client's training examples.
      test: indices of each client's test examples.
      meta: any JSON. `load` uses meta["pool"], "train" if the test sets are held-out training data,
        and meta["allow"], a list of "repeated" and "missing": what examples may be; `check` uses
        meta["labels"], the fingerprint of the training labels, and names "dataset", "split" and
        "order" where it does not fit.
    """
    arrays = {f"client{i}": part for i, part in enumerate(train)}
    arrays |= {f"test{i}": part for i, part in enumerate(test or [])}
    with open(path, "wb") as file:
        np.savez_compressed(
            file, allow_pickle=False, meta=np.array(json.dumps(meta or {})), **arrays
        )


def load(path: str | Path, num_train: int) -> tuple[Partition, Partition | None, dict]:
    """Reads a partition file, and refuses one that does not fit the training set.

    It is what `save` wrote, or an .npz or .json file of {client: indices} with the keys 0, client0
    or client_0. Every training example belongs to exactly one client.

    Args:
      path: of the file.
      num_train: the number of training examples.

    Returns:
      Indices of each client's training examples, of its test examples (None if the file has none),
      and what `save` was given as meta.
    """
    raw, meta = _read(Path(path))
    in_train, allow = meta.get("pool") == "train", meta.get("allow", ())
    found: dict[str, dict[int, np.ndarray]] = {"client": {}, "test": {}}
    for key, values in raw.items():
        match = re.fullmatch(r"(?:(client|test)_?)?([0-9]{1,9})", key)
        if not match:
            raise UserError(f"{path}: key {key!r:.40} is no client: use 0, 1, ... or client0, ...")
        kind, client = match[1] or "client", int(match[2])
        limit = num_train if kind == "client" or in_train else 2**63
        if not isinstance(values, list):
            raise UserError(f"{path}: {kind} {client}: {values!r:.40} is not a list of indices")
        for value in values:
            if type(value) is not int:  # isinstance would let True through
                raise UserError(f"{path}: {kind} {client}: index {value!r:.40} is not an integer")
            if not 0 <= value < limit:
                raise UserError(f"{path}: {kind} {client}: index {value} is not in 0..{limit - 1}")
        found[kind][client] = np.array(values, np.int64)
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


def fingerprint(labels: np.ndarray) -> str:
    """Returns sixteen hexadecimal characters that change with the labels or their order."""
    return hashlib.sha256(np.asarray(labels, "<i4").tobytes()).hexdigest()[:16]


def check(
    path: str | Path, meta: dict, *, labels: str, order: Order, told: Order | None = None
) -> None:
    """Refuses a partition that was made for other examples, or for another order of them.

    Args:
      path: of the file.
      meta: what `load` found in it.
      labels: the fingerprint of the training labels that its indices are used on.
      order: which order these are in.
      told: the order that the person who gives the file says its indices mean.
    """
    if told and told != order:
        raise UserError(
            f"--data.partition_order={told}: the run numbers its examples in {order} order: "
            f"pass --data.order={told} too, or give a file of indices in {order} order"
        )
    if "labels" in meta:
        if meta["labels"] != labels:
            made = ", ".join(f"{meta.get(key)!r:.60}" for key in ("dataset", "split", "order"))
            raise UserError(
                f"{path} was made for other training labels ({made}) than the run's ({order} "
                "order): give the --dataset, --data.order and --data.limit it was made with"
            )
    elif order == "official" and not told:
        raise UserError(
            f"{path} does not say which order its indices mean: pass --data.partition_order="
            "official (torchvision, Flower, PFLlib), or stored (TFDS, older runs of this command)"
        )


def _read(path: Path) -> tuple[dict, dict]:
    """Reads the table {key: list} of a file, and the meta that `save` put beside it."""
    try:
        if path.suffix == ".json":
            raw, meta = json.loads(path.read_text()), {}
        else:
            with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                raw = {key: file[key].tolist() for key in file.files}
            meta = json.loads(raw.pop("meta", "{}"))
        if not isinstance(raw, dict) or not isinstance(meta, dict):
            raise ValueError("it is not a table {client: indices}")
    except FileNotFoundError:
        raise UserError(f"partition file '{path}' does not exist") from None
    except Exception as error:  # a damaged file makes zipfile, zlib, numpy and json raise anything
        reason = " ".join(str(error).split())  # on one line
        raise UserError(f"cannot read '{path}' as npz or json: {reason}") from None
    return raw, meta
