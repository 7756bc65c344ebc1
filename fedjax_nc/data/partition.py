"""Which client holds which sample: label-skew partitions, per-client test sets, partition files.

A partition is a list with one int64 array of training indices per client. The published rules draw
from NumPy's legacy generator in the same order as the papers' code, so that a seed gives the same
clients, index for index. Every rule uses every sample exactly once, unless its docstring says not.
"""

import json
import math
import random
import re
from pathlib import Path

import numpy as np
from numpy.random import RandomState

from fedjax_nc.errors import UserError, unknown

Ints = np.ndarray
Partition = list[Ints]
Number = float | int

RULES = ("lda", "fedetf", "feddw")
TESTS = ("split", "matched", "dealt")
LDA_MIN_SIZE = 10
LDA_MAX_TRIES = 100_000  # CIFAR-10, 100 clients, alpha 0.05 needs about 20,000 (20 s)


def iid(labels: Ints, clients: int, seed: int) -> Partition:
    """Equal shares (sizes differ by at most one) of a shuffled training set."""
    return np.array_split(_start(labels, clients, seed=seed).permutation(len(labels)), clients)


def shards(
    labels: Ints, test_labels: Ints, clients: int, per_client: int, seed: int
) -> tuple[Partition, Partition]:
    """Sharding of FedDr+, FedBABU and FedNTD: `per_client` shards, each of a single class.

    Every class is cut into per_client * clients / classes shards; a shuffled list of labels deals
    them. The test set is dealt with the same label list, so train and test classes agree. A client
    may be dealt the same class twice. Class sizes that do not divide give some shards one more.
    """
    rng, classes = _start(labels, clients, seed=seed), int(labels.max()) + 1
    per_class, rest = divmod(per_client * clients, classes)
    if per_client < 1 or rest:
        raise UserError(
            f"{per_client} shards per client x {clients} clients do not divide among {classes} "
            f"classes: use a multiple of {classes // math.gcd(classes, clients)} shards per client"
        )
    deal = list(range(classes)) * per_class
    random.Random(seed).shuffle(deal)

    def hand_out(name: str, y: Ints) -> Partition:
        piles = []
        for c in range(classes):
            index = np.flatnonzero(y == c)
            if len(index) < per_class:
                raise UserError(
                    f"class {c} has {len(index)} {name} samples for {per_class} shards: "
                    "use fewer clients or fewer shards per client"
                )
            body, extra = np.split(index, [len(index) // per_class * per_class])
            tails = np.split(extra, np.arange(1, per_class))  # one more for the first shards
            piles.append(list(map(np.append, body.reshape(per_class, -1), tails)))
        drawn = [piles[c].pop(rng.choice(len(piles[c]), replace=False)) for c in deal]
        return [np.concatenate(drawn[i : i + per_client]) for i in range(0, len(deal), per_client)]

    return hand_out("train", labels), hand_out("test", test_labels)


def dirichlet(labels: Ints, clients: int, alpha: Number, rule: str, seed: int) -> Partition:
    """Shares of every class ~ Dir(alpha) over clients; the papers turn shares into samples by rule.

    lda:    FedDr+, FedAlign, MOON, FedDecorr, FedRCL: a client that already holds the mean number
            of samples gets no more; all is redrawn until everybody holds at least 10.
    fedetf: rounded counts, the last client takes what remains; clients may be empty.
    feddw:  cumulative cut, classes not shuffled; an empty client is given sample 0, which somebody
            else holds too: the one case where a sample is used more than once.
    """
    if rule not in RULES:
        raise unknown("Dirichlet rule", rule, allowed=RULES)
    rng = _start(labels, clients, seed=seed, alpha=alpha)
    by_class = [np.flatnonzero(labels == c) for c in range(int(labels.max()) + 1)]
    if rule == "lda":
        return _lda(by_class, clients, alpha=alpha, rng=rng)
    sizes = np.array([[len(index)] for index in by_class])
    if rule == "fedetf":
        by_class = [rng.permutation(index) for index in by_class]
        ends = np.cumsum(
            np.rint(_shares(rng, alpha, clients=clients, rows=len(sizes)) * sizes), axis=1
        )
        return [rng.permutation(part) for part in _cut(by_class, ends)]
    ends = np.cumsum(_shares(rng, alpha, clients=clients, rows=len(sizes)), axis=1) * sizes
    return [part if len(part) else np.zeros(1, np.int64) for part in _cut(by_class, ends)]


def _cut(by_class: Partition, ends: np.ndarray) -> Partition:
    """Each client's samples of all classes; ends[c, i]: client i's last in class c, plus one."""
    pieces = map(np.split, by_class, ends[:, :-1].astype(int))
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def _lda(by_class: Partition, clients: int, alpha: Number, rng: RandomState) -> Partition:
    samples = sum(map(len, by_class))
    if clients * LDA_MIN_SIZE > samples:
        raise UserError(
            f"the lda rule gives every client {LDA_MIN_SIZE} samples or more: {clients} clients "
            f"are too many for {samples} samples, use at most {samples // LDA_MIN_SIZE}"
        )
    for _ in range(LDA_MAX_TRIES):
        mixed, ends, held = [], [], np.zeros(clients, int)
        for index in by_class:
            mixed.append(rng.permutation(index))
            share = rng.dirichlet(np.repeat(alpha, clients)) * (held < samples / clients)
            if not share.sum() > 0:  # only full clients drew a share: the attempt is lost
                break
            ends.append((np.cumsum(share / share.sum()) * len(index)).astype(int))
            held += np.diff(ends[-1][:-1], prepend=0, append=len(index))
        if len(ends) == len(by_class) and held.min() >= LDA_MIN_SIZE:
            return [rng.permutation(part) for part in _cut(mixed, np.stack(ends))]
    raise UserError(
        f"alpha {alpha} left one of {clients} clients fewer than {LDA_MIN_SIZE} samples in all of "
        f"{LDA_MAX_TRIES} lda splits: use a larger alpha, fewer clients, or rule fedetf or feddw"
    )


def classes_per_client(labels: Ints, clients: int, k: int, seed: int) -> Partition:
    """Pathological skew: exactly k classes per client, each class split evenly among its holders.

    Every client takes the k classes held least so far (ties at random), so holders of two classes
    differ by at most one in number. If k * clients < classes, samples of the rest stay unused.
    """
    rng, names = _start(labels, clients, seed=seed), np.unique(labels)
    if not 1 <= k <= len(names):
        raise UserError(f"{k} classes per client: choose from 1 to {len(names)}")
    held, holds = np.zeros(len(names), int), np.zeros((clients, len(names)), bool)
    for own in holds:
        own[np.lexsort((rng.random_sample(len(names)), held))[:k]] = True
        held += own
    parts: list[Partition] = [[] for _ in range(clients)]
    for c, name in enumerate(names):
        index = rng.permutation(np.flatnonzero(labels == name))
        if len(index) < held[c]:
            raise UserError(
                f"class {name} has {len(index)} samples for {held[c]} clients that hold it: "
                "use fewer clients or fewer classes per client"
            )
        owners = rng.permutation(np.flatnonzero(holds[:, c]))  # who gets the odd sample
        for i, client in enumerate(owners):
            parts[client].append(np.array_split(index, len(owners))[i])
    return [np.concatenate(own) for own in parts]


def quantity_skew(labels: Ints, clients: int, alpha: Number, seed: int) -> Partition:
    """Sizes ~ Dir(alpha), labels iid; an empty client takes one sample from the largest."""
    rng = _start(labels, clients, seed=seed, alpha=alpha)
    sizes = _round_to(_shares(rng, alpha, clients=clients, rows=1)[0], len(labels))
    while sizes.min() == 0:
        sizes[sizes.argmax()] -= 1
        sizes[sizes.argmin()] += 1
    return np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])


def client_tests(
    parts: Partition, labels: Ints, test_labels: Ints, how: str, seed: int, fraction: float = 0.3
) -> tuple[Partition, Partition, str]:
    """Training indices, test indices and the pool ("train" or "test") the latter point into.

    split:   FedETF: a `fraction` of each client's own training data, rounded down.
    matched: FedDr+ with lda: drawn from the test set to follow the client's class frequencies;
             size n_k * test/train, at least 1; test sets of two clients may overlap.
    dealt:   the test set divided without overlap, each class in proportion to the training split.
    """
    if how not in TESTS:
        raise unknown("client test split", how, allowed=TESTS)
    rng = _start(labels, len(parts), seed=seed)
    if how == "split":
        if not 0 < fraction < 1:
            raise UserError(f"test fraction {fraction}: choose a number between 0 and 1")
        mixed = [rng.permutation(part) for part in parts]
        halves = [np.split(part, [int(fraction * len(part))]) for part in mixed]
        return [train for _, train in halves], [test for test, _ in halves], "train"
    classes = int(max(labels.max(), test_labels.max())) + 1
    counts = summary(parts, labels, classes=classes)
    by_class = [np.flatnonzero(test_labels == c) for c in range(classes)]
    sizes = np.array([len(index) for index in by_class])
    tests = [[] for _ in parts]
    if how == "matched":
        for own, wanted in zip(tests, counts, strict=True):
            total = max(1, round(wanted.sum() * len(test_labels) / len(labels)))
            take = np.minimum(_round_to(wanted * (sizes > 0), total), sizes)
            own += [rng.permutation(index)[:n] for index, n in zip(by_class, take, strict=True)]
    else:
        for index, wanted in zip(by_class, counts.T, strict=True):
            cuts = np.cumsum(_round_to(wanted, len(index)))
            for own, piece in zip(tests, np.split(rng.permutation(index), cuts), strict=False):
                own.append(piece)
    return parts, [np.concatenate(own) for own in tests], "test"


def summary(parts: Partition, labels: Ints, classes: int) -> np.ndarray:
    """Class counts n_{k,c}, int64[clients, classes]."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def save(path: str | Path, train: Partition, test: Partition | None, meta: dict) -> None:
    """Write an npz of client0.., test0.. and meta, which `load_file` reads back.

    meta is any JSON. `load_file` uses meta["pool"] ("train" if the test sets are held-out training
    data) and meta["allow"], a list of "repeated" (feddw) and "missing" (classes_per_client).
    """
    arrays = {f"client{i}": part for i, part in enumerate(train)}
    arrays |= {f"test{i}": part for i, part in enumerate(test or [])}
    with open(path, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, meta=np.array(json.dumps(meta)), **arrays)


def load_file(path: str | Path, num_train: int) -> tuple[Partition, Partition | None, dict]:
    """Training indices, test indices (None if the file has none) and meta of a partition file.

    Reads what `save` wrote, and an npz or json of {client: indices} with the keys 0, client0 or
    client_0. Every training sample must belong to exactly one client.
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


def _read(path: Path) -> tuple[dict, dict]:
    """The table {key: list} of a file and the meta that `save` put beside it."""
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


def _start(labels: Ints, clients: int, seed: int, alpha: Number = 1) -> RandomState:
    """Refuse impossible values, which name what is allowed; otherwise the rule's generator."""
    if not 1 <= clients <= len(labels):
        raise UserError(f"{clients} clients for {len(labels)} samples: choose 1 to {len(labels)}")
    if not 0 < alpha < np.inf:
        raise UserError(f"alpha {alpha}: choose a number above 0 (small is skewed, large is iid)")
    if not 0 <= seed < 2**32:
        raise UserError(f"seed {seed}: choose from 0 to {2**32 - 1}")
    return RandomState(seed)


def _shares(rng, alpha: Number, clients: int, rows: int) -> np.ndarray:
    shares = rng.dirichlet(np.repeat(alpha, clients), rows)
    if not np.isfinite(shares).all():
        raise UserError(f"alpha {alpha} is so small that every share rounds to 0: use a larger one")
    return shares


def _round_to(weights: np.ndarray, total: int) -> np.ndarray:
    """Integers proportional to the weights that sum to total, by largest remainder."""
    if weights.sum() == 0:
        return np.zeros(len(weights), np.int64)
    exact = weights * total / weights.sum()
    whole = exact.astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - whole.sum()]] += 1
    return whole
