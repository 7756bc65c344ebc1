"""Intervals, tests and ranks, beside SciPy's and numbers made by hand."""

import math

import numpy as np
import pytest
import scipy.stats

from fedjax_nc import statistics
from fedjax_nc.statistics import Outcome

A = [61.2, 59.8, 63.1, 60.4, 62.0, 58.7]
B = [62.9, 61.1, 63.0, 62.8, 63.9, 60.2]


def drawn(seed, *shape):
    return np.random.RandomState(seed).randn(*shape)


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_is_students(seed):
    values = (50 + 3 * drawn(seed, 2 + seed)).tolist()
    expected = scipy.stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=scipy.stats.sem(values)
    )
    assert statistics.interval(values) == pytest.approx(expected)
    assert statistics.deviation(values) == pytest.approx(np.std(values, ddof=1))


def test_one_seed_has_no_interval():
    assert statistics.interval([3.0]) is None and statistics.deviation([3.0]) is None
    assert statistics.welch([3.0], A) is None
    assert statistics.paired_t([3.0], [4.0]) == Outcome(None, None)


def test_an_interval_by_hand():
    """Three seeds: t of two degrees of freedom is 4.3027."""
    low, high = statistics.interval([1.0, 2.0, 3.0])
    assert high - 2.0 == pytest.approx(4.30265 / math.sqrt(3), abs=1e-5)
    assert 2.0 - low == pytest.approx(high - 2.0)


def test_the_interval_of_a_difference_is_welchs():
    expected = scipy.stats.ttest_ind(B[:4], A, equal_var=False).confidence_interval()
    found = statistics.welch(A, B[:4])
    assert found == pytest.approx((expected.low, expected.high))
    assert statistics.welch([1.0, 1.0], [2.0, 2.0]) == (1.0, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_paired_test_is_students(seed):
    a, b = (drawn(seed, 2, 3 + seed)).tolist()
    expected = scipy.stats.ttest_rel(b, a)
    assert statistics.paired_t(a, b) == pytest.approx((expected.statistic, expected.pvalue))


def test_pairs_without_spread_are_not_tested():
    assert statistics.paired_t(A, A) == Outcome(None, None)
    assert statistics.paired_t(A, [a + 0.1 for a in A]) == Outcome(None, None)
    assert statistics.wilcoxon(A, A) == Outcome(None, None)


@pytest.mark.parametrize("count", [3, 5, 9, 20, 40])
def test_wilcoxon_is_scipys(count):
    a, b = drawn(count, 2, count)
    b = b + 0.4
    method = "exact" if count <= 25 else "asymptotic"
    expected = scipy.stats.wilcoxon(a, b, method=method)
    found = statistics.wilcoxon(a.tolist(), b.tolist())
    assert found == pytest.approx((expected.statistic, expected.pvalue))


def test_wilcoxon_by_hand():
    """Three pairs that all rise: two of eight choices of signs are as far from even."""
    assert statistics.wilcoxon([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == (0.0, pytest.approx(2 / 8))
    # ranks 1.5, 1.5, 3, the last one falls: sums 3 and 3, which is the middle
    assert statistics.wilcoxon([0.0, 0.0, 2.0], [1.0, 1.0, 0.0]) == (3.0, 1.0)
    # the pair that does not change is left out
    assert statistics.wilcoxon([0.0, 0.0, 5.0], [1.0, 2.0, 5.0]) == (0.0, pytest.approx(2 / 4))


def test_holm_by_hand():
    """0.01 * 4, 0.02 * 3, and no later one below an earlier one."""
    found = statistics.holm([0.02, 0.01, 0.03, 0.9])
    assert found == pytest.approx([0.06, 0.04, 0.06, 0.9])
    assert statistics.holm([0.4, None, 0.6]) == [0.8, None, 0.8]
    assert statistics.holm([]) == [] and statistics.holm([None]) == [None]
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]


def test_ties_share_their_ranks():
    assert statistics.ranked([0.5, 0.9, 0.5, 0.1]) == [2.5, 1.0, 2.5, 4.0]
    assert statistics.ranked([0.5, 0.9, 0.5, 0.1], high=False) == [2.5, 4.0, 2.5, 1.0]
    values = np.random.RandomState(0).randint(0, 4, 12).tolist()
    assert statistics.ranked(values, high=False) == scipy.stats.rankdata(values).tolist()


def test_average_ranks_by_hand():
    assert statistics.average_ranks([[3, 2, 1], [3, 1, 2], [2, 2, 1]]) == pytest.approx(
        [(1 + 1 + 1.5) / 3, (2 + 3 + 1.5) / 3, (3 + 2 + 3) / 3]
    )


@pytest.mark.parametrize("seed", range(4))
def test_friedman_is_scipys(seed):
    values = np.random.RandomState(seed).randint(0, 6, (5, 4))  # with ties
    expected = scipy.stats.friedmanchisquare(*values.T)
    found = statistics.friedman(values.tolist())
    assert found == pytest.approx((expected.statistic, expected.pvalue))


def test_friedman_needs_something_to_rank():
    nothing = Outcome(None, None)
    assert statistics.friedman([[1, 2, 3]]) == nothing  # one setting
    assert statistics.friedman([[1, 2], [2, 1]]) == nothing  # two methods
    assert (
        statistics.friedman([[1, 1, 1], [2, 2, 2]]) == nothing
        and statistics.friedman([]) == nothing
    )


@pytest.mark.parametrize(
    "methods, q", [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)]
)
def test_the_critical_difference_is_demsars(methods, q):
    """Table 5 of his paper, and its example: four methods on 14 settings, 1.25."""
    expected = q * math.sqrt(methods * (methods + 1) / (6 * 14))
    assert statistics.critical_difference(methods, 14) == pytest.approx(expected, abs=1e-3)
    if methods == 4:
        assert statistics.critical_difference(methods, 14) == pytest.approx(1.25, abs=0.01)


def test_cliques_are_the_widest_spans():
    ranks = [1.0, 1.5, 2.4, 4.0]
    assert statistics.cliques(ranks, 1.0) == [(1.0, 1.5), (1.5, 2.4)]
    assert statistics.cliques(ranks, 1.4) == [(1.0, 2.4)]
    assert statistics.cliques(ranks, 0.1) == []
    assert statistics.cliques(ranks, 3.0) == [(1.0, 4.0)]
    assert statistics.cliques([2.0, 2.0], 0.5) == []  # one place is no span
