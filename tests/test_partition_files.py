"""Partition files, partitioners of one's own, and what is told of a partition."""

import functools
import json
import re

import numpy as np
import pytest
from splits import LABELS, RULES, TEST_LABELS, same

from fedjax_nc import protocols
from fedjax_nc.config import Data
from fedjax_nc.data import federated, partition, partition_file
from fedjax_nc.errors import UserError

# ---- files


@pytest.mark.parametrize("how", ["split", "dealt"])
def test_save_round_trip(tmp_path, how):
    parts = partition.dirichlet(LABELS, 12, alpha=0.1, rule="fedetf", seed=0)
    train, test, pool = partition.client_tests(
        parts, LABELS, test_labels=TEST_LABELS, how=how, seed=0
    )
    meta = {"pool": pool, "rule": "fedetf", "alpha": 0.1}
    partition_file.save(tmp_path / "p.npz", train, test=test, meta=meta)
    again, test_again, meta_again = partition_file.load(tmp_path / "p.npz", 600)
    assert same(train, again) and same(test, test_again) and meta == meta_again
    assert all(part.dtype == np.int64 for part in again)


def test_save_round_trip_of_incomplete_and_repeating_rules(tmp_path):
    path = tmp_path / "p.npz"
    for allow, parts in (
        ("missing", partition.classes_per_client(LABELS, 2, per_client=2, seed=0)),
        ("repeated", partition.dirichlet(LABELS, 40, alpha=0.01, rule="feddw", seed=0)),
    ):
        partition_file.save(path, parts, meta={"allow": [allow]})
        train, test, _ = partition_file.load(path, 600)
        assert same(train, parts) and test is None
        partition_file.save(path, parts)
        with pytest.raises(UserError):
            partition_file.load(path, 600)


@pytest.mark.parametrize("key", ["{}", "client{}", "client_{}"])
@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_import(tmp_path, key, suffix):
    path = tmp_path / f"p{suffix}"
    parts = [*partition.iid(LABELS, 11, seed=0), np.zeros(0, np.int64)]
    order = [10, 3, 0, *range(4, 10), 1, 2, 11]  # "10" sorts before "2" as a string
    table = {key.format(i): parts[i] for i in order}
    if suffix == ".json":
        path.write_text(json.dumps({k: v.tolist() for k, v in table.items()}))
    else:
        np.savez(path, **table)
    train, test, meta = partition_file.load(path, 600)
    assert same(train, parts) and test is None and meta == {}


BAD_JSON = {
    '{"0": [0, 1], "1": [1, 2, 3]}': "client 0 and 1: index 1 is repeated",
    '{"0": [0, 1, 1], "1": [2, 3]}': "client 0: index 1 is repeated",
    '{"0": [0, 1], "1": [2, 4, 3]}': "client 1: index 4 is not in 0..3",
    '{"0": [0, 1], "1": [2, -3]}': "client 1: index -3 is not in 0..3",
    '{"0": [0, 1], "1": [2, 99999999999999999999]}': "index 99999999999999999999 is not in 0..3",
    '{"0": [1], "1": [2]}': "2 of 4 samples belong to no client, first 0",
    '{"0": [0, 1], "2": [2, 3]}': "client 1 is missing: number the clients 0, 1, ...",
    '{"1": [0, 1, 2, 3]}': "client 0 is missing: number the clients 0, 1, ...",
    "{}": "client 0 is missing: number the clients 0, 1, ...",
    '{"0": [0, 1.0], "1": [2, 3]}': "client 0: index 1.0 is not an integer",
    '{"0": [0, true], "1": [2, 3]}': "client 0: index True is not an integer",
    '{"0": [0, "x\\ny"], "1": [2, 3]}': r"client 0: index 'x\ny' is not an integer",
    '{"0": 7}': "client 0: 7 is not a list of indices",
    '{"anna": [0]}': "key 'anna' is no client: use 0, 1, ... or client0, ...",
    "[1, 2]": "it is not a table {client: indices}",
    '{"0": [0,': "as npz or json (Expecting value",
}


@pytest.mark.parametrize("text", BAD_JSON)
def test_bad_json(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(BAD_JSON[text])) as caught:
        partition_file.load(path, 4)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"0": np.array([0.0, 1, 2, 3])}, "client 0: index 0.0 is not an integer"),
        ({"0": np.array([[0, 1], [2, 3]])}, "client 0: index [0, 1] is not an integer"),
        ({"0": np.array([None, 1])}, "cannot read"),
        ({"0": np.arange(4), "meta": np.array("[]")}, "it is not a table"),
        ({"0": np.arange(4), "meta": np.arange(3)}, "cannot read"),
        ({"0": np.arange(4), "test1": np.arange(2)}, "test 0 is missing"),
        ({"0": np.arange(4), "test0": np.array([-1])}, "test 0: index -1 is not in 0.."),
        (
            {"0": np.arange(4), "test0": np.array([2]), "meta": np.array('{"pool": "train"}')},
            "client 0: index 2 is repeated",
        ),
    ],
)
def test_bad_npz(tmp_path, arrays, line):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(UserError, match=re.escape(line)) as caught:
        partition_file.load(tmp_path / "bad.npz", 4)
    assert "bad.npz" in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(UserError, match=r"partition file '.*none.npz' does not exist"):
        partition_file.load(tmp_path / "none.npz", 4)
    with pytest.raises(UserError, match="cannot read"):
        partition_file.load(tmp_path, 4)
    good = tmp_path / "good.npz"
    np.savez_compressed(good, client0=np.arange(4000))
    whole = good.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:300] + b"x" * 9 + whole[309:]):
        good.write_bytes(content)
        with pytest.raises(UserError, match="cannot read") as caught:
            partition_file.load(good, 4000)
        assert "\n" not in str(caught.value)


# ---- partitioners of one's own


def deal(partitioner, clients=3, labels=LABELS, **options):
    data = Data(client_test="matched", **options)
    return federated.split_clients(
        data, clients, seed=7, train_y=labels, test_y=TEST_LABELS, partitioner=partitioner
    )


def by_turns(labels, clients, seed):
    return [range(seed + i, len(labels), clients) for i in range(clients)]


class ByTurns:
    def __call__(self, labels, clients, *, seed):
        return by_turns(labels, clients, seed)


OWN = {
    "all three": by_turns,
    "by name": lambda y, clients, *, seed: by_turns(y, clients, seed),
    "with defaults": lambda y, n, step=1, seed=0: by_turns(y, n, seed * step),
    "any": lambda *args: by_turns(*args),
    "two": lambda y, n: by_turns(y, n, 7),
    "labels alone": lambda labels: by_turns(labels, 3, 7),
    "an object": ByTurns(),
    "lists": lambda y, n, s: [list(part) for part in by_turns(y, n, s)],
}


@pytest.mark.parametrize("form", OWN)
def test_own_partitioner(form):
    split = deal(OWN[form])
    assert same(split.train, [np.arange(7 + i, 600, 3) for i in range(3)])
    assert all(part.dtype == np.int64 for part in split.train)
    assert split.pool == "test" and len(split.test) == 3


def test_own_partitioner_may_be_one_of_ours():
    ours = functools.partial(partition.dirichlet, alpha=0.3, rule="lda")
    assert same(deal(ours).train, partition.dirichlet(LABELS, 3, alpha=0.3, rule="lda", seed=7))
    assert same(deal(partition.shards, 5).train, partition.shards(LABELS, 5, seed=7))


def test_own_partitioner_may_leave_clients_and_examples_out(tmp_path):
    split = deal(lambda y: [[3, 1], [], np.array([5], np.uint8)])
    assert same(split.train, [np.array([3, 1]), np.zeros(0), np.array([5])])
    cfg = Data()
    object.__setattr__(cfg, "partition", "by_turns@1a2b3c4d")
    federated.save_split(tmp_path / "p.npz", cfg, split=split, dataset="digits")
    assert same(partition_file.load(tmp_path / "p.npz", 600)[0], split.train)


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ([[0], [1], [600]], "partition 'own': client 2 has the indices 600 to 600: give 0 to 599"),
        ([[0], [-1, 4], []], "client 1 has the indices -1 to 4: give 0 to 599"),
        ([[0, 0], [1], [2]], "client 0: index 0 is repeated"),
        ([[4], [1], [2, 4]], "client 0 and 2: index 4 is repeated: give each example to one"),
        ([[0], [1]], "returns 2 clients, the run has 3: pass --federation.clients=2"),
        ([[0.5], [1], [2]], "returns list: return a list with a list of indices for each client"),
        ([[True], [1], [2]], "returns list: return a list with a list of indices"),
        ([[[0]], [1], [2]], "returns list: return a list with a list of indices"),
        ({0: [0], 1: [1], 2: [2]}, "returns dict: return a list with a list of indices"),
        (None, "returns NoneType: return a list with a list of indices"),
        ([], "returns list: return a list with a list of indices"),
    ],
)
def test_own_partitioner_that_returns_no_partition(made, line):
    def own(labels):
        return made

    with pytest.raises(UserError, match=re.escape(line)):
        deal(own)


@pytest.mark.parametrize("own", [lambda: [], lambda a, b, c, d: [], lambda y, *, alpha: []])
def test_own_partitioner_that_takes_something_else(own):
    with pytest.raises(UserError, match=r"let it take \(labels, clients, seed\), or labels alone"):
        deal(own)


def test_own_partitioner_cannot_change_the_labels():
    labels = LABELS.copy()

    def careless(y):
        y[:] = 0
        return [[0], [1], [2]]

    deal(careless, labels=labels)
    np.testing.assert_array_equal(labels, LABELS)


# ---- warnings


def test_classes_that_belong_to_nobody_are_told():
    """The quick protocol on CIFAR-100: 20 clients of 2 classes hold 40 of 100."""
    cfg = protocols.resolve("quick", "cifar100", "fedavg")
    labels = np.repeat(np.arange(100), 20)
    split = federated.split_clients(
        cfg.data, cfg.federation.clients, seed=0, train_y=labels, test_y=labels
    )
    lost, unused = federated.warnings_of(split, labels, classes=100)
    held = {*labels[np.concatenate(split.train)]}
    first = ", ".join(str(c) for c in sorted({*range(100)} - held)[:10])
    assert f"60 of 100 classes belong to no client ({first}...)" in lost
    assert unused == "1,200 of 2,000 training examples are not used by any client"


def test_partitions_without_surprise_are_not_warned_of():
    for rule in RULES:
        parts = RULES[rule](LABELS, 5, 0)
        for how in partition.TESTS:
            train, test, pool = partition.client_tests(
                parts, LABELS, test_labels=TEST_LABELS, how=how
            )
            split = federated.Split(train, test, pool=pool)
            assert federated.warnings_of(split, LABELS, classes=10) == []


def test_clients_without_data_and_classes_without_examples_are_told():
    split = federated.Split([np.arange(600), np.zeros(0, int)], [np.zeros(0, int)] * 2, "test")
    told = federated.warnings_of(split, LABELS, classes=12)
    assert told == [
        "1 of 2 clients have no training data (1): they are skipped",
        "2 of 12 classes have no training examples (10, 11): nobody can learn them",
    ]
    with pytest.raises(UserError, match=r"1 of 2 clients have no training data .*--strict"):
        federated.warnings_of(split, LABELS, classes=12, strict=True)
    nobody = federated.Split([np.zeros(0, int)], [np.zeros(0, int)], "test")
    with pytest.raises(UserError, match="1 of 1 clients have no training data"):
        federated.warnings_of(nobody, LABELS, classes=10)
