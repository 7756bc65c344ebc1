"""The data of a run: one flat pool of examples on the device, and tables of example indices."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import config
from fedjax_nc.data import arrays, augment, partition, partition_file, partition_own
from fedjax_nc.data.catalogue import DATASETS
from fedjax_nc.data.spec import DatasetSpec
from fedjax_nc.errors import UserError
from fedjax_nc.types import Batch, FederatedData, Pool, Table

UNUSED = 0.1  # the share of the training examples that may belong to nobody without a warning


class Split(NamedTuple):
    """A partition on the host: indices of each client's training and test examples."""

    train: list[np.ndarray]
    test: list[np.ndarray]
    pool: str  # the official split that test indices are of: train or test
    labels: str = ""  # the fingerprint of the training labels that it is a partition of


def split_clients(
    cfg: config.Data,
    clients: int,
    *,
    seed: int,
    train_y: np.ndarray,
    test_y: np.ndarray,
    partitioner: Callable[..., Any] | None = None,
    shuffled: bool = False,
) -> Split:
    """Deals the examples to clients, as the configuration or an own partitioner says.

    Args:
      cfg: the partition and the kind of client test sets.
      clients: the number of clients.
      seed: of the partition.
      train_y: labels of the training examples.
      test_y: labels of the official test examples.
      partitioner: takes (labels, clients, seed), or fewer of them, and returns a list of indices
        for each client.
      shuffled: whether the dataset is stored in another order than its official one.
    """
    tests, pool, labels = None, "test", partition_file.fingerprint(train_y)
    if partitioner is not None:
        parts = partition_own.deal(partitioner, train_y, clients=clients, seed=seed)
    elif cfg.partition_file:
        parts, tests, meta = partition_file.load(cfg.partition_file, len(train_y))
        partition_file.check(
            cfg.partition_file,
            meta,
            labels=labels,
            order=cfg.order,
            told=cfg.partition_order,
            shuffled=shuffled,
        )
        pool = meta.get("pool", pool)
        known = len(train_y) if pool == "train" else len(test_y)
        if tests is not None and max((max(t, default=0) for t in tests), default=0) >= known:
            raise UserError(f"{cfg.partition_file}: a test index is above {known - 1}")
        if len(parts) != clients:
            raise UserError(
                f"{cfg.partition_file} has {len(parts)} clients, the run {clients}: "
                f"pass --federation.clients={len(parts)}"
            )
    elif cfg.partition == "shards":
        parts, tests = partition.shards_with_tests(
            train_y, clients, test_labels=test_y, per_client=cfg.per_client, seed=seed
        )
        if cfg.client_test == "split":
            tests = None
    elif cfg.partition == "iid":
        parts = partition.iid(train_y, clients, seed=seed)
    elif cfg.partition == "dirichlet":
        parts = partition.dirichlet(train_y, clients, alpha=cfg.alpha, rule=cfg.rule, seed=seed)
    elif cfg.partition == "classes":
        parts = partition.classes_per_client(train_y, clients, per_client=cfg.per_client, seed=seed)
    else:
        parts = partition.quantity_skew(train_y, clients, alpha=cfg.alpha, seed=seed)
    if tests is None:
        parts, tests, pool = partition.client_tests(
            parts,
            train_y,
            test_labels=test_y,
            how=cfg.client_test,
            fraction=cfg.test_fraction,
            seed=seed,
        )
    return Split(parts, tests, pool=pool, labels=labels)


def warnings_of(
    split: Split, labels: np.ndarray, *, classes: int, strict: bool = False
) -> list[str]:
    """Says what of a partition a person may not have meant.

    Args:
      split: the partition.
      labels: of the training examples.
      classes: the number of classes.
      strict: refuse clients without training examples.

    Returns:
      A line each on clients without training examples, on classes that no client holds, and on
      examples that are not used.
    """
    told = []
    if empty := [k for k, part in enumerate(split.train) if not len(part)]:
        message = f"{len(empty)} of {len(split.train)} clients have no training data"
        message += f" ({_listed(empty)})"
        if strict or len(empty) == len(split.train):
            skips = ", or leave out --strict" if len(empty) < len(split.train) else ""
            raise UserError(f"{message}: choose another partition or seed{skips}")
        told.append(f"{message}: they are skipped")
    absent = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
    if len(absent):
        told.append(
            f"{len(absent)} of {classes} classes have no training examples ({_listed(absent)}): "
            "nobody can learn them"
        )
    held = np.bincount(labels[np.concatenate(split.train)], minlength=classes)
    if lost := sorted({*np.flatnonzero(held == 0)} - {*absent}):
        told.append(
            f"{len(lost)} of {classes} classes belong to no client ({_listed(lost)}), and the "
            "global test set has them: use more clients or more classes per client"
        )
    parts = [*split.train, *(split.test if split.pool == "train" else [])]
    unused = len(labels) - len(np.unique(np.concatenate(parts)))
    if unused > UNUSED * len(labels):
        told.append(f"{unused:,} of {len(labels):,} training examples are not used by any client")
    return told


def _listed(indices: Any) -> str:
    return ", ".join(str(int(i)) for i in indices[:10]) + ("..." if len(indices) > 10 else "")


def save_split(
    file: str | Path | BinaryIO, cfg: config.Data, *, split: Split, dataset: str
) -> None:
    """Writes the partition so that --data.partition_file reads it back, for the same examples."""
    # FedDW's rule may repeat an example; few clients with few classes, or a partitioner from
    # outside (whose name has a fingerprint), may leave some out.
    allow = ["repeated"] if cfg.rule == "feddw" else []
    allow += ["missing"] if cfg.partition == "classes" or "@" in cfg.partition else []
    meta = {
        "pool": split.pool,
        "allow": allow,
        "dataset": dataset,
        "split": "train",
        "order": cfg.order,
        "labels": split.labels,
    }
    partition_file.save(file, split.train, test=split.test, meta=meta)


def fingerprint(split: Split) -> str:
    """Returns sixteen hexadecimal characters that change with what any client holds."""
    digest = hashlib.sha256(split.pool.encode())
    for part in (*split.train, *split.test):
        digest.update(len(part).to_bytes(8, "little") + np.asarray(part, "<i8").tobytes())
    return digest.hexdigest()[:16]


def limit_examples(y: np.ndarray, limit: int) -> np.ndarray:
    """Chooses the first examples of every class, as equally many as can be.

    Args:
      y: labels.
      limit: the number of examples to keep; 0 keeps all.

    Returns:
      The indices of the chosen examples, in order.
    """
    if not limit or limit >= len(y):
        return np.arange(len(y))
    rank = np.empty(len(y), int)  # position of each example among those of its class
    for label in np.unique(y):
        where = np.flatnonzero(y == label)
        rank[where] = np.arange(len(where))
    return np.sort(np.argsort(rank, kind="stable")[:limit])


def assemble(
    examples: arrays.Arrays,
    split: Split,
    *,
    classes: int,
    lanes: int = 1,
    together: int = 1,
    pool: Any = None,
) -> FederatedData:
    """Puts a dataset and its partition together, as rounds read them.

    Args:
      examples: the dataset.
      split: its partition.
      classes: the number of classes.
      lanes: rows of the table of official test examples, as many as clients run at once.
      together: so many examples, from the first on, are never cut apart by rows.
      pool: what stands for the examples where they stay on the host; by default all of them are
        put on the device.
    """
    y = np.concatenate([examples.train_y, examples.test_y]).astype(np.int32)
    counts = partition.class_counts(split.train, y, classes=classes)
    offset = len(examples.train_y) if split.pool == "test" else 0
    longest = -(-len(examples.test_y) // (lanes * together)) * together
    if pool is None:
        x = np.concatenate([examples.train_x, examples.test_x])
        pool = Pool(jnp.asarray(x), jnp.asarray(y))
    test = np.arange(len(examples.train_y), len(y))
    return FederatedData(
        pool,
        make_table(split.train),
        client_test=make_table(split.test, offset=offset),
        test=make_table([test[i * longest : (i + 1) * longest] for i in range(lanes)]),
        class_counts=jnp.asarray(counts, jnp.result_type(float)),
    )


def make_table(rows: list[np.ndarray], *, offset: int = 0) -> Table:
    """Makes a table of rows of example indices plus `offset`, padded to the longest."""
    size = np.array([len(row) for row in rows], np.int32)
    index = np.zeros((len(rows), max(1, size.max(initial=0))), np.int32)
    if len(rows):
        index[np.arange(index.shape[1]) < size[:, None]] = np.concatenate(rows) + offset
    return Table(jnp.asarray(index), jnp.asarray(size))


def make_batch(
    spec: DatasetSpec, names: tuple[str, ...] = (), *, normalise: str = "dataset"
) -> Callable[..., Batch]:
    """Returns the function (pool, indices, mask, key) -> Batch.

    It gathers examples from a pool and normalises images: uint8 ones by the record's mean and
    standard deviation or by other ones, floats always by the record's, which are of the floats as
    they are. Images are augmented unless the key is None.

    Args:
      spec: the record of the dataset.
      names: of augmentations, in order.
      normalise: "dataset", "half" for mean and standard deviation 0.5, or "cinic10".
    """
    half, cinic = (0.5,) * spec.shape[-1], DATASETS["cinic10"]
    if normalise == "cinic10" and not spec.is_text and spec.shape[-1] != len(cinic.mean):
        raise UserError(
            f"--data.normalise=cinic10 is for colour images, and those of {spec.name} have "
            f"{spec.shape[-1]} channel(s): choose dataset or half"
        )
    own = spec.mean, spec.std
    chosen = {"half": (half, half), "cinic10": (cinic.mean, cinic.std)}.get(normalise, own)
    augmentation: Any = augment.build(names)

    def batch(pool: Pool, indices: jax.Array, mask: jax.Array, key: Any) -> Batch:
        x = pool.x[indices]
        if not spec.is_text:
            pixels = jnp.issubdtype(x.dtype, jnp.integer)
            mean, std = chosen if pixels else own
            if key is not None:
                x = augmentation(key, x.astype(jnp.float32))
            x = augment.normalise(x, mean, std=std, scale=255 if pixels else 1)
        return Batch(x, pool.y[indices], mask=mask)

    return batch
