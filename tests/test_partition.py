"""Partitions: the published splits index for index, cover, determinism, files, error lines."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from splits import GOLDEN, LABELS, RULES, TEST_LABELS, same

from fedjax_nc.data import partition
from fedjax_nc.errors import UserError


def assert_cover(parts, samples):
    assert all(part.dtype == np.int64 and part.ndim == 1 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@pytest.mark.parametrize(
    ("name", "clients", "make"),
    [
        (
            "etri_lda",
            6,
            lambda: partition.dirichlet(LABELS, 6, alpha=0.3, rule="lda", seed=19940817),
        ),
        ("etri_shard", 10, lambda: partition.shards(LABELS, 10, seed=19940817)),
        ("feddw_dir", 5, lambda: partition.dirichlet(LABELS, 5, alpha=0.5, rule="feddw", seed=5)),
        ("fedetf_dir", 5, lambda: partition.dirichlet(LABELS, 5, alpha=0.1, rule="fedetf", seed=8)),
    ],
)
def test_equals_published_code(name, clients, make):
    assert same(make(), [GOLDEN[f"{name}_client{i}"] for i in range(clients)])


def test_shard_labels_equal_published_code():
    train, test = partition.shards_with_tests(LABELS, 10, test_labels=TEST_LABELS, seed=19940817)
    deal = GOLDEN["etri_shard_rand_set_all"]
    for own, ours, theirs in zip(deal, train, test, strict=True):
        assert list(LABELS[ours]) == list(np.repeat(own, 30))
        assert list(TEST_LABELS[theirs]) == list(np.repeat(own, 10))
    assert_cover(test, 200)


def test_summary_equals_published_counts():
    parts = [GOLDEN[f"fedetf_dir_client{i}"] for i in range(5)]
    counts = partition.class_counts(parts, LABELS, classes=10)
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
    assert [len(p) for p in partition.iid(LABELS[:11], 3, seed=0)] == [4, 4, 3]
    assert min(len(p) for p in partition.dirichlet(LABELS, 20, alpha=0.3, rule="lda", seed=0)) >= 10
    spread = [
        np.std([len(p) for p in partition.quantity_skew(LABELS, 10, alpha=a, seed=0)])
        for a in (0.1, 1000)
    ]
    assert spread[0] > 10 * spread[1]
    skew = [
        (
            partition.class_counts(
                partition.dirichlet(LABELS, 10, alpha=a, rule="fedetf", seed=0), LABELS, classes=10
            )
            == 0
        ).sum()
        for a in (0.05, 1000)
    ]
    assert skew[0] > 40 and skew[1] == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.floats(0.01, 100), st.integers(0, 1000))
def test_quantity_leaves_nobody_empty(clients, alpha, seed):
    parts = partition.quantity_skew(LABELS[:40], clients, alpha=alpha, seed=seed)
    assert min(map(len, parts)) >= 1
    assert_cover(parts, 40)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 10), st.integers(0, 1000))
def test_classes_per_client(clients, k, seed):
    parts = partition.classes_per_client(LABELS, clients, per_client=k, seed=seed)
    counts = partition.class_counts(parts, LABELS, classes=10)
    assert ((counts > 0).sum(1) == k).all()
    held = (counts > 0).sum(0)
    assert held.max() - held.min() <= 1
    for column in counts.T[held > 0]:
        shares = column[column > 0]
        assert shares.sum() == 60 and shares.max() - shares.min() <= 1
    if k * clients >= 10:
        assert_cover(parts, 600)


def test_feddw_gives_sample_zero_to_an_empty_client():
    parts = partition.dirichlet(LABELS, 40, alpha=0.01, rule="feddw", seed=0)
    alone = [part for part in parts if list(part) == [0]]
    assert alone
    samples, times = np.unique(np.concatenate(parts), return_counts=True)
    np.testing.assert_array_equal(samples, np.arange(600))
    assert times[0] >= len(alone) and (times[1:] == 1).all()


def test_fedetf_may_leave_a_client_empty():
    assert min(map(len, partition.dirichlet(LABELS, 40, alpha=0.01, rule="fedetf", seed=0))) == 0


def test_uneven_shards_differ_by_one():
    y = np.repeat([0, 1], [7, 10])
    train, test = partition.shards_with_tests(y, 4, test_labels=y[::-1], per_client=1)
    assert_cover(train, 17)
    assert_cover(test, 17)
    assert sorted(map(len, train)) == [3, 4, 5, 5]
    assert [y[p][0] for p in train] == [y[::-1][p][0] for p in test]


# ---- per-client test sets


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(0.05, 0.95))
def test_split_holds_out_own_data(seed, fraction):
    parts = partition.dirichlet(LABELS, 8, alpha=0.3, rule="fedetf", seed=seed)
    train, test, pool = partition.client_tests(
        parts, LABELS, test_labels=TEST_LABELS, how="split", seed=seed, fraction=fraction
    )
    assert pool == "train"
    for old, new, held in zip(parts, train, test, strict=True):
        assert len(held) == int(fraction * len(old))
        np.testing.assert_array_equal(np.sort(np.append(new, held)), np.sort(old))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_matched_follows_train_frequencies(seed):
    parts = partition.dirichlet(LABELS, 8, alpha=0.3, rule="fedetf", seed=seed)
    train, test, pool = partition.client_tests(
        parts, LABELS, test_labels=TEST_LABELS, how="matched", seed=seed
    )
    assert pool == "test" and train is parts
    wanted = (
        partition.class_counts(parts, LABELS, classes=10) / 3
    )  # 200 test for 600 training samples
    for part, own, row in zip(parts, test, wanted, strict=True):
        assert len(np.unique(own)) == len(own)
        assert len(own) == (max(1, round(len(part) / 3)) if len(part) else 0)
        got = np.bincount(TEST_LABELS[own], minlength=10)
        assert (np.abs(got - row) <= 1.01).all() and (got[row == 0] == 0).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_dealt_is_disjoint_and_proportional(seed):
    parts = partition.dirichlet(LABELS, 8, alpha=0.3, rule="fedetf", seed=seed)
    _, test, pool = partition.client_tests(
        parts, LABELS, test_labels=TEST_LABELS, how="dealt", seed=seed
    )
    assert pool == "test"
    assert_cover(test, 200)
    wanted = partition.class_counts(parts, LABELS, classes=10) / 3
    assert (np.abs(partition.class_counts(test, TEST_LABELS, classes=10) - wanted) < 1).all()
    assert same(
        test,
        partition.client_tests(parts, LABELS, test_labels=TEST_LABELS, how="dealt", seed=seed)[1],
    )


def test_dealt_and_matched_with_classes_missing_on_one_side():
    parts = [np.array([0, 1]), np.array([2, 3])]
    labels, test_labels = np.array([0, 0, 1, 1]), np.array([1, 1, 2])
    for how in ("matched", "dealt"):
        _, test, _ = partition.client_tests(parts, labels, test_labels=test_labels, how=how, seed=0)
        assert len(test[0]) == 0 and sorted(test[1]) == [0, 1]


# ---- bad values


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("clients", [0, -1, 20_001])
def test_bad_clients(rule, clients):
    line = f"{clients} clients for 600 samples: choose 1 to 20000"
    with pytest.raises(UserError, match=line):
        RULES[rule](LABELS, clients, 0)


@pytest.mark.parametrize("alpha", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_bad_alpha(alpha):
    line = f"alpha {alpha}: choose a number above 0"
    with pytest.raises(UserError, match=line):
        partition.quantity_skew(LABELS, 5, alpha=alpha, seed=0)
    for rule in partition.RULES:
        with pytest.raises(UserError, match=line):
            partition.dirichlet(LABELS, 5, alpha=alpha, rule=rule, seed=0)


def test_other_bad_values(monkeypatch):
    def fails(line, function, *args, **options):
        with pytest.raises(UserError, match=re.escape(line)):
            function(*args, **options)

    dirichlet, classes = partition.dirichlet, partition.classes_per_client
    fails("seed -1: choose from 0 to 4294967295", partition.iid, LABELS, 5, seed=-1)
    fails("labels are float64 [600]: give integers", partition.iid, LABELS / 2, 5)
    fails("did you mean 'fedetf'?", dirichlet, LABELS, 5, alpha=0.1, rule="fedtf")
    fails("use at most 60", dirichlet, LABELS, 61, alpha=0.1, rule="lda")
    fails("so small that every share", dirichlet, LABELS, 5, alpha=1e-9, rule="fedetf")
    for k in (0, 11):
        fails(f"{k} classes per client: choose from 1 to 10", classes, LABELS, 5, per_client=k)
    few = np.array([0, 0, 0, 0, 0, 1])
    fails("class 1 has 1 samples for 2", classes, few, 4, per_client=1)
    for per_client in (0, 3):
        line = f"{per_client} shards per client x 5 clients do not divide among 10 classes: "
        line += "use a multiple of 2 shards per client"
        fails(line, partition.shards, LABELS, 5, per_client=per_client)
    line = "class 9 has 19 test samples for 20 shards: use fewer clients or fewer shards per client"
    fails(line, partition.shards_with_tests, LABELS, 100, test_labels=TEST_LABELS[:-1])
    tests, parts = partition.client_tests, partition.iid(LABELS, 5)
    fails("did you mean 'split'?", tests, parts, LABELS, test_labels=LABELS, how="splt")
    for fraction in (0.0, 1.0):
        line = f"test fraction {fraction}: choose a number between 0 and 1"
        fails(line, tests, parts, LABELS, test_labels=LABELS, how="split", fraction=fraction)
    monkeypatch.setattr(partition, "LDA_MAX_TRIES", 5)
    line = "use a larger alpha, fewer clients, or rule fedetf or feddw"
    for alpha in (0.01, 1e-9):
        fails(line, dirichlet, LABELS, 50, alpha=alpha, rule="lda")
