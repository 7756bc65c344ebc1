"""The data of a run: one flat pool of examples on the device, and tables of example numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_nc import config
from fedjax_nc.data import augment, datasets, partition
from fedjax_nc.data.catalogue import DatasetSpec
from fedjax_nc.errors import UserError
from fedjax_nc.types import Batch, FederatedData, Pool, Table


class Split(NamedTuple):
    """A partition on the host: numbers of each client's training and test examples."""

    train: list[np.ndarray]
    test: list[np.ndarray]
    pool: str  # the official split the tests are numbered in: train or test


def split_clients(
    cfg: config.Data, clients: int, seed: int, train_y: np.ndarray, test_y: np.ndarray
) -> Split:
    """Deal the examples as the configuration says."""
    tests, pool = None, "test"
    if cfg.partition_file:
        parts, tests, meta = partition.load_file(cfg.partition_file, len(train_y))
        pool = meta.get("pool", pool)
        known = len(train_y) if pool == "train" else len(test_y)
        if tests is not None and max((max(t, default=0) for t in tests), default=0) >= known:
            raise UserError(f"{cfg.partition_file}: a test index is above {known - 1}")
        if len(parts) != clients:
            raise UserError(
                f"{cfg.partition_file} has {len(parts)} clients, the run {clients}: "
                f"pass --federation.clients={len(parts)}"
            )
    elif cfg.partition == "iid":
        parts = partition.iid(train_y, clients, seed=seed)
    elif cfg.partition == "shards":
        parts, tests = partition.shards(
            train_y, test_y, clients=clients, per_client=cfg.per_client, seed=seed
        )
        if cfg.client_test == "split":
            tests = None
    elif cfg.partition == "dirichlet":
        parts = partition.dirichlet(train_y, clients, alpha=cfg.alpha, rule=cfg.rule, seed=seed)
    elif cfg.partition == "classes":
        parts = partition.classes_per_client(train_y, clients, k=cfg.per_client, seed=seed)
    else:
        parts = partition.quantity_skew(train_y, clients, alpha=cfg.alpha, seed=seed)
    if tests is None:
        parts, tests, pool = partition.client_tests(
            parts,
            train_y,
            test_labels=test_y,
            how=cfg.client_test,
            seed=seed,
            fraction=cfg.test_fraction,
        )
    return Split(parts, tests, pool=pool)


def save_split(path: Path, cfg: config.Data, split: Split) -> None:
    """Write the partition so that --data.partition_file reads it back."""
    # FedDW's rule may repeat a sample, few clients with few classes may leave some out
    allow = ["repeated"] if cfg.rule == "feddw" else []
    allow += ["missing"] if cfg.partition == "classes" else []
    partition.save(path, split.train, test=split.test, meta={"pool": split.pool, "allow": allow})


def limit_examples(y: np.ndarray, limit: int) -> np.ndarray:
    """Numbers of every class's first examples, `limit` in all as equally as can be; 0 keeps all."""
    if not limit or limit >= len(y):
        return np.arange(len(y))
    rank = np.empty(len(y), int)  # position of each example among those of its class
    for label in np.unique(y):
        where = np.flatnonzero(y == label)
        rank[where] = np.arange(len(where))
    return np.sort(np.argsort(rank, kind="stable")[:limit])


def assemble(
    arrays: datasets.Arrays, split: Split, classes: int, lanes: int = 1, pool: Any = None
) -> FederatedData:
    """A dataset and its partition, on the device unless a `pool` stands for the examples.

    The official test examples are in as many rows as clients run at once.
    """
    y = np.concatenate([arrays.train_y, arrays.test_y]).astype(np.int32)
    counts = partition.summary(split.train, y, classes=classes)
    offset = len(arrays.train_y) if split.pool == "test" else 0
    longest = -(-len(arrays.test_y) // lanes)
    if pool is None:
        pool = Pool(jnp.asarray(np.concatenate([arrays.train_x, arrays.test_x])), jnp.asarray(y))
    test = np.arange(len(arrays.train_y), len(y))
    return FederatedData(
        pool,
        make_table(split.train),
        client_test=make_table([part + offset for part in split.test]),
        test=make_table([test[i * longest : (i + 1) * longest] for i in range(lanes)]),
        class_counts=jnp.asarray(counts, jnp.result_type(float)),
    )


def make_table(rows: list[np.ndarray]) -> Table:
    """Pad rows of example numbers to the longest."""
    index = np.zeros((len(rows), max([1, *(len(r) for r in rows)])), np.int32)
    for i, row in enumerate(rows):
        index[i, : len(row)] = row
    return Table(jnp.asarray(index), jnp.asarray([len(r) for r in rows], jnp.int32))


def make_batches(
    spec: DatasetSpec, names: tuple[str, ...] = (), normalise: str = "dataset"
) -> Callable[..., Batch]:
    """The function (pool, numbers, mask, key) -> Batch, augmented unless the key is None."""
    channels = spec.shape[-1]
    half = (0.5,) * channels
    mean, std = (half, half) if normalise == "half" else (spec.mean, spec.std)
    augmentation: Any = augment.build(names)

    def batches(pool: Pool, numbers: jax.Array, mask: jax.Array, key: Any) -> Batch:
        x = pool.x[numbers]
        if not spec.is_text:
            if key is not None:
                x = augmentation(key, x.astype(jnp.float32))
            x = augment.normalise(x, mean, std=std)
        return Batch(x, pool.y[numbers], mask=mask)

    return batches
