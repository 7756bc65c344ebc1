"""Partitions: the published splits index for index, cover, determinism, files, error lines."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_nc.data import partition
from fedjax_nc.errors import UserError

# Produced by the papers' own functions (etri-edgeai/nn-dist-train, FedDW, FedETF) on 600 labels.
GOLDEN = np.load(Path(__file__).parent / "golden" / "partitions.npz")
LABELS = GOLDEN["labels"]
TEST_LABELS = np.tile(np.arange(10), 20)

RULES = {
    "iid": lambda y, clients, seed: partition.iid(y, clients, seed),
    "lda": lambda y, clients, seed: partition.dirichlet(y, clients, 0.5, "lda", seed),
    "fedetf": lambda y, clients, seed: partition.dirichlet(y, clients, 0.1, "fedetf", seed),
    "feddw": lambda y, clients, seed: partition.dirichlet(y, clients, 2, "feddw", seed),
    "classes": lambda y, clients, seed: partition.classes_per_client(y, clients, 5, seed),
    "quantity": lambda y, clients, seed: partition.quantity_skew(y, clients, 0.2, seed),
    "shards": lambda y, clients, seed: partition.shards(y, y, clients, 10, seed)[0],
}


def same(parts, others):
    return len(parts) == len(others) and all(map(np.array_equal, parts, others))


def assert_cover(parts, samples):
    assert all(part.dtype == np.int64 and part.ndim == 1 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@pytest.mark.parametrize(
    ("name", "clients", "make"),
    [
        ("etri_lda", 6, lambda: partition.dirichlet(LABELS, 6, 0.3, "lda", 19940817)),
        ("etri_shard", 10, lambda: partition.shards(LABELS, LABELS, 10, 2, 19940817)[0]),
        ("feddw_dir", 5, lambda: partition.dirichlet(LABELS, 5, 0.5, "feddw", 5)),
        ("fedetf_dir", 5, lambda: partition.dirichlet(LABELS, 5, 0.1, "fedetf", 8)),
    ],
)
def test_equals_published_code(name, clients, make):
    assert same(make(), [GOLDEN[f"{name}_client{i}"] for i in range(clients)])


def test_shard_labels_equal_published_code():
    train, test = partition.shards(LABELS, TEST_LABELS, 10, 2, 19940817)
    deal = GOLDEN["etri_shard_rand_set_all"]
    for own, ours, theirs in zip(deal, train, test, strict=True):
        assert list(LABELS[ours]) == list(np.repeat(own, 30))
        assert list(TEST_LABELS[theirs]) == list(np.repeat(own, 10))
    assert_cover(test, 200)


def test_summary_equals_published_counts():
    parts = [GOLDEN[f"fedetf_dir_client{i}"] for i in range(5)]
    counts = partition.summary(parts, LABELS, 10)
    np.testing.assert_array_equal(counts, GOLDEN["fedetf_dir_counts"])


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(2, 8),
    extra=st.lists(st.integers(0, 9), max_size=40),
)
def test_every_rule_is_exact_and_deterministic(rule, seed, clients, extra):
    y = np.concatenate([LABELS, np.array(extra, np.int64)])  # classes of unequal size
    parts = RULES[rule](y, clients, seed)
    assert len(parts) == clients
    assert_cover(parts, len(y))
    assert same(parts, RULES[rule](y, clients, seed))


@pytest.mark.parametrize("rule", RULES)
def test_other_seed_other_split_and_global_generators_untouched(rule):
    before = np.random.get_state()[1].copy()
    splits = [RULES[rule](LABELS, 5, seed) for seed in (0, 1)]
    assert not same(*splits)
    np.testing.assert_array_equal(before, np.random.get_state()[1])


def test_sizes_and_skew():
    assert [len(p) for p in partition.iid(LABELS[:11], 3, 0)] == [4, 4, 3]
    assert min(len(p) for p in partition.dirichlet(LABELS, 20, 0.3, "lda", 0)) >= 10
    spread = [
        np.std([len(p) for p in partition.quantity_skew(LABELS, 10, a, 0)]) for a in (0.1, 1000)
    ]
    assert spread[0] > 10 * spread[1]
    skew = [
        (partition.summary(partition.dirichlet(LABELS, 10, a, "fedetf", 0), LABELS, 10) == 0).sum()
        for a in (0.05, 1000)
    ]
    assert skew[0] > 40 and skew[1] == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.floats(0.01, 100), st.integers(0, 1000))
def test_quantity_leaves_nobody_empty(clients, alpha, seed):
    parts = partition.quantity_skew(LABELS[:40], clients, alpha, seed)
    assert min(map(len, parts)) >= 1
    assert_cover(parts, 40)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 10), st.integers(0, 1000))
def test_classes_per_client(clients, k, seed):
    parts = partition.classes_per_client(LABELS, clients, k, seed)
    counts = partition.summary(parts, LABELS, 10)
    assert ((counts > 0).sum(1) == k).all()
    held = (counts > 0).sum(0)
    assert held.max() - held.min() <= 1
    for column in counts.T[held > 0]:
        shares = column[column > 0]
        assert shares.sum() == 60 and shares.max() - shares.min() <= 1
    if k * clients >= 10:
        assert_cover(parts, 600)


def test_feddw_gives_sample_zero_to_an_empty_client():
    parts = partition.dirichlet(LABELS, 40, 0.01, "feddw", 0)
    alone = [part for part in parts if list(part) == [0]]
    assert alone
    samples, times = np.unique(np.concatenate(parts), return_counts=True)
    np.testing.assert_array_equal(samples, np.arange(600))
    assert times[0] >= len(alone) and (times[1:] == 1).all()


def test_fedetf_may_leave_a_client_empty():
    assert min(map(len, partition.dirichlet(LABELS, 40, 0.01, "fedetf", 0))) == 0


def test_uneven_shards_differ_by_one():
    y = np.repeat([0, 1], [7, 10])
    train, test = partition.shards(y, y[::-1], 4, 1, 0)
    assert_cover(train, 17)
    assert_cover(test, 17)
    assert sorted(map(len, train)) == [3, 4, 5, 5]
    assert [y[p][0] for p in train] == [y[::-1][p][0] for p in test]


# ---- per-client test sets


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0.05, 0.95))
def test_split_holds_out_own_data(seed, fraction):
    parts = partition.dirichlet(LABELS, 8, 0.3, "fedetf", seed)
    train, test, pool = partition.client_tests(
        parts, LABELS, TEST_LABELS, "split", seed, fraction=fraction
    )
    assert pool == "train"
    for old, new, held in zip(parts, train, test, strict=True):
        assert len(held) == int(fraction * len(old))
        np.testing.assert_array_equal(np.sort(np.append(new, held)), np.sort(old))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_matched_follows_train_frequencies(seed):
    parts = partition.dirichlet(LABELS, 8, 0.3, "fedetf", seed)
    train, test, pool = partition.client_tests(parts, LABELS, TEST_LABELS, "matched", seed)
    assert pool == "test" and train is parts
    wanted = partition.summary(parts, LABELS, 10) / 3  # 200 test for 600 training samples
    for part, own, row in zip(parts, test, wanted, strict=True):
        assert len(np.unique(own)) == len(own)
        assert len(own) == (max(1, round(len(part) / 3)) if len(part) else 0)
        got = np.bincount(TEST_LABELS[own], minlength=10)
        assert (np.abs(got - row) <= 1.01).all() and (got[row == 0] == 0).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_dealt_is_disjoint_and_proportional(seed):
    parts = partition.dirichlet(LABELS, 8, 0.3, "fedetf", seed)
    _, test, pool = partition.client_tests(parts, LABELS, TEST_LABELS, "dealt", seed)
    assert pool == "test"
    assert_cover(test, 200)
    wanted = partition.summary(parts, LABELS, 10) / 3
    assert (np.abs(partition.summary(test, TEST_LABELS, 10) - wanted) < 1).all()
    assert same(test, partition.client_tests(parts, LABELS, TEST_LABELS, "dealt", seed)[1])


def test_dealt_and_matched_with_classes_missing_on_one_side():
    parts = [np.array([0, 1]), np.array([2, 3])]
    labels, test_labels = np.array([0, 0, 1, 1]), np.array([1, 1, 2])
    for how in ("matched", "dealt"):
        _, test, _ = partition.client_tests(parts, labels, test_labels, how, 0)
        assert len(test[0]) == 0 and sorted(test[1]) == [0, 1]


# ---- files


@pytest.mark.parametrize("how", ["split", "dealt"])
def test_save_round_trip(tmp_path, how):
    parts = partition.dirichlet(LABELS, 12, 0.1, "fedetf", 0)
    train, test, pool = partition.client_tests(parts, LABELS, TEST_LABELS, how, 0)
    meta = {"pool": pool, "rule": "fedetf", "alpha": 0.1}
    partition.save(tmp_path / "p.npz", train, test, meta)
    again, test_again, meta_again = partition.load_file(tmp_path / "p.npz", 600)
    assert same(train, again) and same(test, test_again) and meta == meta_again
    assert all(part.dtype == np.int64 for part in again)


def test_save_round_trip_of_incomplete_and_repeating_rules(tmp_path):
    path = tmp_path / "p.npz"
    for allow, parts in (
        ("missing", partition.classes_per_client(LABELS, 2, 2, 0)),
        ("repeated", partition.dirichlet(LABELS, 40, 0.01, "feddw", 0)),
    ):
        partition.save(path, parts, None, {"allow": [allow]})
        train, test, _ = partition.load_file(path, 600)
        assert same(train, parts) and test is None
        partition.save(path, parts, None, {})
        with pytest.raises(UserError):
            partition.load_file(path, 600)


@pytest.mark.parametrize("key", ["{}", "client{}", "client_{}"])
@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_import(tmp_path, key, suffix):
    path = tmp_path / f"p{suffix}"
    parts = [*partition.iid(LABELS, 11, 0), np.zeros(0, np.int64)]
    order = [10, 3, 0, *range(4, 10), 1, 2, 11]  # "10" sorts before "2" as a string
    table = {key.format(i): parts[i] for i in order}
    if suffix == ".json":
        path.write_text(json.dumps({k: v.tolist() for k, v in table.items()}))
    else:
        np.savez(path, **table)
    train, test, meta = partition.load_file(path, 600)
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
    '{"0": [0,': "as npz or json: Expecting value",
}


@pytest.mark.parametrize("text", BAD_JSON)
def test_bad_json(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(BAD_JSON[text])) as caught:
        partition.load_file(path, 4)
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
        partition.load_file(tmp_path / "bad.npz", 4)
    assert "bad.npz" in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(UserError, match=r"partition file '.*none.npz' does not exist"):
        partition.load_file(tmp_path / "none.npz", 4)
    with pytest.raises(UserError, match="cannot read"):
        partition.load_file(tmp_path, 4)
    good = tmp_path / "good.npz"
    np.savez_compressed(good, client0=np.arange(4000))
    whole = good.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:300] + b"x" * 9 + whole[309:]):
        good.write_bytes(content)
        with pytest.raises(UserError, match="cannot read") as caught:
            partition.load_file(good, 4000)
        assert "\n" not in str(caught.value)


# ---- bad values


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("clients", [0, -1, 601])
def test_bad_clients(rule, clients):
    line = f"{clients} clients for 600 samples: choose 1 to 600"
    with pytest.raises(UserError, match=line):
        RULES[rule](LABELS, clients, 0)


@pytest.mark.parametrize("alpha", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_bad_alpha(alpha):
    line = f"alpha {alpha}: choose a number above 0"
    with pytest.raises(UserError, match=line):
        partition.quantity_skew(LABELS, 5, alpha, 0)
    for rule in partition.RULES:
        with pytest.raises(UserError, match=line):
            partition.dirichlet(LABELS, 5, alpha, rule, 0)


def test_other_bad_values(monkeypatch):
    def fails(line, function, *args):
        with pytest.raises(UserError, match=re.escape(line)):
            function(*args)

    fails("seed -1: choose from 0 to 4294967295", partition.iid, LABELS, 5, -1)
    fails("did you mean 'fedetf'?", partition.dirichlet, LABELS, 5, 0.1, "fedtf", 0)
    fails("use at most 60", partition.dirichlet, LABELS, 61, 0.1, "lda", 0)
    fails("so small that every share", partition.dirichlet, LABELS, 5, 1e-9, "fedetf", 0)
    for k in (0, 11):
        line = f"{k} classes per client: choose from 1 to 10"
        fails(line, partition.classes_per_client, LABELS, 5, k, 0)
    few = np.array([0, 0, 0, 0, 0, 1])
    fails("class 1 has 1 samples for 2", partition.classes_per_client, few, 4, 1, 0)
    for per_client in (0, 3):
        line = f"{per_client} shards per client x 5 clients do not divide among 10 classes: "
        line += "use a multiple of 2 shards per client"
        fails(line, partition.shards, LABELS, LABELS, 5, per_client, 0)
    line = "class 9 has 19 test samples for 20 shards: use fewer clients or fewer shards per client"
    fails(line, partition.shards, LABELS, TEST_LABELS[:-1], 100, 2, 0)
    parts = partition.iid(LABELS, 5, 0)
    fails("did you mean 'split'?", partition.client_tests, parts, LABELS, LABELS, "splt", 0)
    for fraction in (0.0, 1.0):
        line = f"test fraction {fraction}: choose a number between 0 and 1"
        fails(line, partition.client_tests, parts, LABELS, LABELS, "split", 0, fraction)
    monkeypatch.setattr(partition, "LDA_MAX_TRIES", 5)
    line = "use a larger alpha, fewer clients, or rule fedetf or feddw"
    for alpha in (0.01, 1e-9):
        fails(line, partition.dirichlet, LABELS, 50, alpha, "lda", 0)
