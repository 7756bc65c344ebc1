"""What several seeds and several settings say: intervals, paired tests, ranks over settings."""

import itertools
import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

LEVEL = 0.05  # of tests, and what intervals leave out
_EXACT = 25  # pairs up to which Wilcoxon's distribution is counted and not approximated


class Outcome(NamedTuple):
    """What a test comes to; the share is None where nothing can be tested."""

    statistic: float | None
    p: float | None


def deviation(values: Sequence[float]) -> float | None:
    """Returns the sample standard deviation (n - 1), None of fewer than two numbers."""
    return stdev(values) if len(values) > 1 else None


def interval(values: Sequence[float], level: float = 1 - LEVEL) -> tuple[float, float] | None:
    """Returns Student's interval of the mean, None of fewer than two numbers."""
    from scipy.special import stdtrit

    spread = deviation(values)
    if spread is None:
        return None
    count = len(values)
    half = float(stdtrit(count - 1, (1 + level) / 2)) * spread / math.sqrt(count)
    return fmean(values) - half, fmean(values) + half


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """Returns the 95 % interval of a difference of means, second less first, by Welch's rule."""
    from scipy.special import stdtrit

    spreads = deviation(first), deviation(second)
    if spreads[0] is None or spreads[1] is None:
        return None
    a, b = spreads[0] ** 2 / len(first), spreads[1] ** 2 / len(second)
    gap = fmean(second) - fmean(first)
    if a + b == 0:
        return gap, gap
    freedom = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    half = float(stdtrit(freedom, 1 - LEVEL / 2)) * math.sqrt(a + b)
    return gap - half, gap + half


def paired_t(first: Sequence[float], second: Sequence[float]) -> Outcome:
    """Tests whether the mean difference of pairs is zero (Student, two-sided).

    Pairs that all differ by the same amount have no spread to compare it with.
    """
    from scipy.special import stdtr

    gaps = [b - a for a, b in zip(first, second, strict=True)]
    spread = deviation(gaps)
    if spread is None or spread <= 1e-12 * max(map(abs, [*first, *second])):
        return Outcome(None, None)
    t = fmean(gaps) / (spread / math.sqrt(len(gaps)))
    return Outcome(t, 2 * float(stdtr(len(gaps) - 1, -abs(t))))


def wilcoxon(first: Sequence[float], second: Sequence[float]) -> Outcome:
    """Tests whether differences of pairs lie around zero, by their signed ranks (two-sided).

    Pairs without a difference are left out; ties share their ranks. The statistic is the smaller
    sum of ranks. Up to 25 pairs all signs are counted, beyond it is the normal approximation.
    """
    from scipy.special import ndtr

    gaps = [b - a for a, b in zip(first, second, strict=True)]
    gaps = [gap for gap in gaps if gap != 0]
    if not gaps:
        return Outcome(None, None)
    ranks = ranked([abs(gap) for gap in gaps], high=False)
    plus = sum(rank for rank, gap in zip(ranks, gaps, strict=True) if gap > 0)
    least = min(plus, sum(ranks) - plus)
    if len(gaps) <= _EXACT:
        return Outcome(least, min(1.0, 2 * _share_up_to(least, ranks)))
    deviates = (least - sum(ranks) / 2) / math.sqrt(sum(rank**2 for rank in ranks) / 4)
    return Outcome(least, min(1.0, 2 * float(ndtr(deviates))))


def _share_up_to(sum_of_ranks: float, ranks: Sequence[float]) -> float:
    """Returns the share of all choices of signs whose positive ranks sum to at most that much."""
    counts = {0: 1}  # twice a sum of ranks, which is whole even where ranks are shared -> choices
    for rank in ranks:
        for total, choices in list(counts.items()):
            moved = total + round(2 * rank)
            counts[moved] = counts.get(moved, 0) + choices
    return sum(n for total, n in counts.items() if total <= 2 * sum_of_ranks) / 2 ** len(ranks)


def holm(shares: Sequence[float | None]) -> list[float | None]:
    """Returns Holm's corrected p of a family of tests; those that could not be made stay None."""
    order = sorted((p, i) for i, p in enumerate(shares) if p is not None)
    corrected: list[float | None] = [None] * len(shares)
    highest = 0.0
    for place, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * p))
        corrected[i] = highest
    return corrected


def ranked(values: Sequence[float], *, high: bool = True) -> list[float]:
    """Returns the ranks of numbers, 1 the best; equal ones share the mean of theirs."""
    order = sorted(values, reverse=high)
    first = {value: order.index(value) + 1 for value in set(values)}
    return [first[value] + (order.count(value) - 1) / 2 for value in values]


def average_ranks(settings: Sequence[Sequence[float]], *, high: bool = True) -> list[float]:
    """Returns the mean rank of each method over settings, [settings methods]."""
    rows = [ranked(row, high=high) for row in settings]
    return [fmean(column) for column in zip(*rows, strict=True)]


def friedman(settings: Sequence[Sequence[float]], *, high: bool = True) -> Outcome:
    """Tests whether methods differ in their ranks over settings, ties corrected.

    It needs three methods and two settings.
    """
    from scipy.special import chdtrc

    count, methods = len(settings), len(settings[0]) if settings else 0
    if count < 2 or methods < 3:
        return Outcome(None, None)
    ranks = [ranked(row, high=high) for row in settings]
    sums = [sum(column) for column in zip(*ranks, strict=True)]
    groups = [row.count(value) for row in ranks for value in set(row)]
    tied = sum(size**3 - size for size in groups)
    correction = 1 - tied / (count * methods * (methods**2 - 1))
    if correction <= 0:  # all equal everywhere
        return Outcome(None, None)
    spread = 12 / (count * methods * (methods + 1)) * sum(total**2 for total in sums)
    statistic = (spread - 3 * count * (methods + 1)) / correction
    return Outcome(statistic, float(chdtrc(methods - 1, statistic)))


def critical_difference(methods: int, settings: int, level: float = LEVEL) -> float:
    """Returns Nemenyi's critical difference of average ranks (Demsar, JMLR 2006, section 3.2.2)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - level, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * settings))


def cliques(ranks: Sequence[float], difference: float) -> list[tuple[float, float]]:
    """Returns the widest spans of average ranks within which no two methods differ."""
    order = sorted(ranks)
    spans = [
        (low, max(rank for rank in order if rank - low <= difference))
        for low in dict.fromkeys(order)
    ]
    spans = [(low, high) for low, high in spans if high > low]
    covered = {
        inner
        for outer, inner in itertools.permutations(spans, 2)
        if outer[0] <= inner[0] and inner[1] <= outer[1]
    }
    return [span for span in spans if span not in covered]
