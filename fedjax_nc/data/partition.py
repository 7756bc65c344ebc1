"""Partitioners: rules by which training examples are dealt to clients.

Every partitioner takes the labels of the training set and the number of clients, and returns a
partition: a list with one int64 array of example indices per client. The published rules draw from
NumPy's legacy generator in the same order as the papers' code, so that a seed gives the same
clients, index for index. A rule uses every example exactly once, unless its docstring says
otherwise, and leaves NumPy's global generator alone.

`client_tests` gives every client a test set that suits its training examples.
"""

import math
import random
from collections.abc import Callable

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike

from fedjax_nc.errors import UserError, unknown

Partition = list[np.ndarray]

RULES = ("lda", "fedetf", "feddw")
TESTS = ("split", "matched", "dealt")
LDA_MIN_SIZE = 10
MOST_CLIENTS = 20_000  # where there are fewer examples: the file of a partition has its bounds
LDA_MAX_TRIES = 100_000  # CIFAR-10, 100 clients, alpha 0.05 needs about 20,000 (20 s)


def iid(labels: ArrayLike, clients: int, *, seed: int = 0) -> Partition:
    """Deals equal shares of the shuffled training set; sizes differ by at most one.

    Of more clients than examples, some are empty.

    Args:
      labels: of the training examples, [n].
      clients: the number of clients.
      seed: of the shuffle.

    Returns:
      The indices of each client's examples.
    """
    y, rng = _start(labels, clients, seed=seed)
    return np.array_split(rng.permutation(len(y)), clients)


def shards(labels: ArrayLike, clients: int, *, per_client: int = 2, seed: int = 0) -> Partition:
    """Deals shards, each of a single class, as FedDr+, FedBABU and FedNTD do.

    Every class is cut into per_client * clients / classes shards, and a shuffled list of labels
    says who gets one of which class. A client may be dealt the same class twice. Class sizes that
    do not divide give some shards one example more.

    Args:
      labels: of the training examples, [n].
      clients: the number of clients.
      per_client: shards of each client; times `clients` a multiple of the number of classes.
      seed: of the deal.

    Returns:
      The indices of each client's examples.
    """
    y, rng = _start(labels, clients, seed=seed)
    return _shard_dealer(y, clients, per_client=per_client, seed=seed, rng=rng)("train", y)


def shards_with_tests(
    labels: ArrayLike, clients: int, *, test_labels: ArrayLike, per_client: int = 2, seed: int = 0
) -> tuple[Partition, Partition]:
    """Deals shards of the training set and of the test set by the same list of labels.

    So every client is tested on the classes it is trained on.

    Args:
      labels: of the training examples, [n].
      clients: the number of clients.
      test_labels: of the official test examples, [m].
      per_client: shards of each client; times `clients` a multiple of the number of classes.
      seed: of the deal.

    Returns:
      The indices of each client's training examples, those of `shards`, and of its test examples.
    """
    y, rng = _start(labels, clients, seed=seed)
    deal = _shard_dealer(y, clients, per_client=per_client, seed=seed, rng=rng)
    return deal("train", y), deal("test", np.asarray(test_labels))


def _shard_dealer(
    y: np.ndarray, clients: int, per_client: int, seed: int, rng: RandomState
) -> Callable[[str, np.ndarray], Partition]:
    """The function that deals a split, which names it in its errors."""
    classes = int(y.max()) + 1
    per_class, rest = divmod(per_client * clients, classes)
    if per_client < 1 or rest:
        raise UserError(
            f"{per_client} shards per client x {clients} clients do not divide among {classes} "
            f"classes: use a multiple of {classes // math.gcd(classes, clients)} shards per client"
        )
    order = list(range(classes)) * per_class
    random.Random(seed).shuffle(order)

    def deal(split: str, labels: np.ndarray) -> Partition:
        piles = []
        for c in range(classes):
            index = np.flatnonzero(labels == c)
            if len(index) < per_class:
                raise UserError(
                    f"class {c} has {len(index)} {split} samples for {per_class} shards: "
                    "use fewer clients or fewer shards per client"
                )
            body, extra = np.split(index, [len(index) // per_class * per_class])
            tails = np.split(extra, np.arange(1, per_class))  # one more for the first shards
            piles.append(list(map(np.append, body.reshape(per_class, -1), tails)))
        drawn = [piles[c].pop(rng.choice(len(piles[c]), replace=False)) for c in order]
        return [np.concatenate(drawn[i : i + per_client]) for i in range(0, len(order), per_client)]

    return deal


def dirichlet(
    labels: ArrayLike, clients: int, *, alpha: float | int, rule: str = "fedetf", seed: int = 0
) -> Partition:
    """Deals every class in shares drawn from Dir(alpha) over the clients.

    The papers turn shares into examples in three ways:

    lda:    FedDr+, FedAlign, MOON, FedDecorr, FedRCL: a client that already holds the mean number
            of examples gets no more; all is redrawn until everybody holds at least 10.
    fedetf: FedETF: rounded counts, the last client takes what remains; clients may be empty.
    feddw:  FedDW: cumulative cut, classes not shuffled; an empty client is given example 0, which
            somebody else holds too: the one case where an example is used more than once.

    Args:
      labels: of the training examples, [n].
      clients: the number of clients.
      alpha: the concentration, above 0; small is skewed, large is iid.
      rule: "lda", "fedetf" or "feddw".
      seed: of shares and shuffles.

    Returns:
      The indices of each client's examples.
    """
    if rule not in RULES:
        raise unknown("Dirichlet rule", rule, allowed=RULES)
    y, rng = _start(labels, clients, seed=seed, alpha=alpha)
    by_class = [np.flatnonzero(y == c) for c in range(int(y.max()) + 1)]
    if rule == "lda":
        return _lda(by_class, clients, alpha=alpha, rng=rng)
    sizes = np.array([[len(index)] for index in by_class])
    if rule == "fedetf":
        by_class = [rng.permutation(index) for index in by_class]
        shares = _shares(rng, alpha, clients=clients, rows=len(sizes))
        ends = np.cumsum(np.rint(shares * sizes), axis=1)
        return [rng.permutation(part) for part in _cut(by_class, ends)]
    ends = np.cumsum(_shares(rng, alpha, clients=clients, rows=len(sizes)), axis=1) * sizes
    return [part if len(part) else np.zeros(1, np.int64) for part in _cut(by_class, ends)]


def _cut(by_class: Partition, ends: np.ndarray) -> Partition:
    """Each client's examples of all classes; ends[c, i]: client i's last in class c, plus one."""
    pieces = map(np.split, by_class, ends[:, :-1].astype(int))
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def _lda(by_class: Partition, clients: int, alpha: float | int, rng: RandomState) -> Partition:
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


def classes_per_client(
    labels: ArrayLike, clients: int, *, per_client: int = 2, seed: int = 0
) -> Partition:
    """Deals exactly `per_client` classes to each client, each class evenly among its holders.

    Every client takes the classes held least so far (ties at random), so holders of two classes
    differ by at most one in number. If per_client * clients is below the number of classes, the
    examples of the other classes stay unused.

    Args:
      labels: of the training examples, [n].
      clients: the number of clients.
      per_client: classes of each client.
      seed: of ties and shuffles.

    Returns:
      The indices of each client's examples.
    """
    y, rng = _start(labels, clients, seed=seed)
    names = np.unique(y)
    if not 1 <= per_client <= len(names):
        raise UserError(f"{per_client} classes per client: choose from 1 to {len(names)}")
    held, holds = np.zeros(len(names), int), np.zeros((clients, len(names)), bool)
    for own in holds:
        own[np.lexsort((rng.random_sample(len(names)), held))[:per_client]] = True
        held += own
    parts: list[Partition] = [[] for _ in range(clients)]
    for c, name in enumerate(names):
        index = rng.permutation(np.flatnonzero(y == name))
        if len(index) < held[c]:
            raise UserError(
                f"class {name} has {len(index)} samples for {held[c]} clients that hold it: "
                "use fewer clients or fewer classes per client"
            )
        owners = rng.permutation(np.flatnonzero(holds[:, c]))  # who gets the odd example
        for i, client in enumerate(owners):
            parts[client].append(np.array_split(index, len(owners))[i])
    return [np.concatenate(own) for own in parts]


def quantity_skew(
    labels: ArrayLike, clients: int, *, alpha: float | int, seed: int = 0
) -> Partition:
    """Deals sizes drawn from Dir(alpha), whatever the labels.

    A client that would be empty takes one example from the largest.

    Args:
      labels: of the training examples, [n].
      clients: the number of clients.
      alpha: the concentration, above 0; small is skewed, large gives equal sizes.
      seed: of sizes and shuffles.

    Returns:
      The indices of each client's examples.
    """
    y, rng = _start(labels, clients, seed=seed, alpha=alpha)
    if clients > len(y):
        raise UserError(
            f"quantity gives every client an example: {clients} clients are too many for {len(y)} "
            f"samples, use at most {len(y)}"
        )
    sizes = _round_to(_shares(rng, alpha, clients=clients, rows=1)[0], len(y))
    while sizes.min() == 0:
        sizes[sizes.argmax()] -= 1
        sizes[sizes.argmin()] += 1
    return np.split(rng.permutation(len(y)), np.cumsum(sizes)[:-1])


def client_tests(
    parts: Partition,
    labels: ArrayLike,
    *,
    test_labels: ArrayLike,
    how: str,
    fraction: float = 0.3,
    seed: int = 0,
) -> tuple[Partition, Partition, str]:
    """Gives every client a test set that suits its training examples.

    split:   FedETF: a `fraction` of each client's own training examples, rounded down.
    matched: FedDr+ with lda: drawn from the test set to follow the client's class frequencies;
             size n_k * test/train, at least 1; test sets of two clients may overlap.
    dealt:   the test set divided without overlap, each class in proportion to the training split.

    Args:
      parts: a partition of the training set.
      labels: of the training examples, [n].
      test_labels: of the official test examples, [m].
      how: "split", "matched" or "dealt".
      fraction: held out under "split".
      seed: of the draws.

    Returns:
      The indices of each client's training examples, less what "split" holds out; of its test
      examples; and the split the latter are indices of, "train" or "test".
    """
    if how not in TESTS:
        raise unknown("client test split", how, allowed=TESTS)
    y, rng = _start(labels, len(parts), seed=seed)
    if how == "split":
        if not 0 < fraction < 1:
            raise UserError(f"test fraction {fraction}: choose a number between 0 and 1")
        # views of one array: an array for each client takes more than its indices do
        mixed, train, test = np.empty(sum(map(len, parts)), np.int64), [], []
        for part, end in zip(parts, np.cumsum([len(part) for part in parts]), strict=True):
            own = mixed[end - len(part) : end]
            own[:] = rng.permutation(part)
            held = int(fraction * len(part))
            test.append(own[:held])
            train.append(own[held:])
        return train, test, "train"
    test_y = np.asarray(test_labels)
    classes = int(max(y.max(), test_y.max())) + 1
    counts = class_counts(parts, y, classes=classes)
    by_class = [np.flatnonzero(test_y == c) for c in range(classes)]
    sizes = np.array([len(index) for index in by_class])
    tests = [[] for _ in parts]
    if how == "matched":
        for own, wanted in zip(tests, counts, strict=True):
            total = max(1, round(wanted.sum() * len(test_y) / len(y)))
            take = np.minimum(_round_to(wanted * (sizes > 0), total), sizes)
            own += [rng.permutation(index)[:n] for index, n in zip(by_class, take, strict=True)]
    else:
        for index, wanted in zip(by_class, counts.T, strict=True):
            cuts = np.cumsum(_round_to(wanted, len(index)))
            for own, piece in zip(tests, np.split(rng.permutation(index), cuts), strict=False):
                own.append(piece)
    return parts, [np.concatenate(own) for own in tests], "test"


def class_counts(parts: Partition, labels: ArrayLike, *, classes: int) -> np.ndarray:
    """Counts each client's examples of each class.

    Args:
      parts: a partition.
      labels: of the examples, [n].
      classes: the number of classes.

    Returns:
      The counts n_{k,c}, int64 [clients, classes].
    """
    y = np.asarray(labels)
    # of 100,000 clients an array each would take most of the assembly's memory
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    flat = np.bincount(owner * classes + y[np.concatenate(parts)], minlength=len(parts) * classes)
    return flat.reshape(len(parts), classes)


def _start(
    labels: ArrayLike, clients: int, seed: int, alpha: float | int = 1
) -> tuple[np.ndarray, RandomState]:
    """The labels as an array and the rule's generator; refuses values that no rule takes."""
    y = np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UserError(f"labels are {y.dtype} {list(y.shape)}: give integers [n]")
    if not len(y):
        raise UserError("0 samples: give a training set that has some")
    most = max(len(y), MOST_CLIENTS)
    if not 1 <= clients <= most:
        raise UserError(f"{clients} clients for {len(y)} samples: choose 1 to {most}")
    if not 0 < alpha < np.inf:
        raise UserError(f"alpha {alpha}: choose a number above 0 (small is skewed, large is iid)")
    if not 0 <= seed < 2**32:
        raise UserError(f"seed {seed}: choose from 0 to {2**32 - 1}")
    return y, RandomState(seed)


def _shares(rng: RandomState, alpha: float | int, clients: int, rows: int) -> np.ndarray:
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
