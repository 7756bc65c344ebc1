"""The published splits, the rules that make them, and their labels: what several tests share."""

from pathlib import Path

import numpy as np

from fedjax_nc.data import partition

# Produced by the papers' own functions (etri-edgeai/nn-dist-train, FedDW, FedETF) on 600 labels.
GOLDEN = np.load(Path(__file__).parent / "golden" / "partitions.npz")
LABELS = GOLDEN["labels"]
TEST_LABELS = np.tile(np.arange(10), 20)

RULES = {
    "iid": lambda y, clients, seed: partition.iid(y, clients, seed=seed),
    "lda": lambda y, clients, seed: partition.dirichlet(
        y, clients, alpha=0.5, rule="lda", seed=seed
    ),
    "fedetf": lambda y, clients, seed: partition.dirichlet(
        y, clients, alpha=0.1, rule="fedetf", seed=seed
    ),
    "feddw": lambda y, clients, seed: partition.dirichlet(
        y, clients, alpha=2, rule="feddw", seed=seed
    ),
    "classes": lambda y, clients, seed: partition.classes_per_client(
        y, clients, per_client=5, seed=seed
    ),
    "quantity": lambda y, clients, seed: partition.quantity_skew(y, clients, alpha=0.2, seed=seed),
    "shards": lambda y, clients, seed: partition.shards(y, clients, per_client=10, seed=seed),
}


def same(parts, others):
    return len(parts) == len(others) and all(map(np.array_equal, parts, others))
