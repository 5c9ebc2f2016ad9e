"""Paired differences, ranks and critical differences against textbook numbers and brute force."""

import itertools
import math
import statistics

import pytest
from scipy.stats import norm

from fedbolic.core.rng import Rng
from fedbolic.report.comparison import (
    critical_difference,
    indistinct_groups,
    mean_ranks,
    paired_differences,
)

Q05 = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}
Q10 = {2: 1.645, 3: 2.052, 4: 2.291, 5: 2.459, 6: 2.589, 7: 2.693, 8: 2.780, 9: 2.855, 10: 2.920}
"""Critical values of the two-tailed Nemenyi test, Table 5 (a) of Demsar (2006)."""


@pytest.mark.parametrize(("alpha", "table"), [(0.05, Q05), (0.10, Q10)])
def test_critical_differences_are_those_of_the_textbook(alpha, table):
    for k, q in table.items():
        expected = q * math.sqrt(k * (k + 1) / (6 * 11))
        found = critical_difference(k, 11, alpha=alpha)
        assert found == pytest.approx(expected, rel=1e-3)


def block_scores(gaps):
    return {"reference": dict.fromkeys(range(len(gaps)), 10.0), "row": {
        i: 10 + gap for i, gap in enumerate(gaps)
    }}  # fmt: skip


def exact_bca(gaps, level):
    """BCa from all n^n resamples, written after Efron (1987); no random numbers."""
    means = sorted(statistics.fmean(x) for x in itertools.product(gaps, repeat=len(gaps)))
    mean = statistics.fmean(gaps)
    below = sum(m < mean - 1e-12 for m in means) + sum(abs(m - mean) <= 1e-12 for m in means) / 2
    bias = norm.ppf(below / len(means))
    left_out = [(sum(gaps) - gap) / (len(gaps) - 1) for gap in gaps]
    centred = [statistics.fmean(left_out) - value for value in left_out]
    skew = sum(d**3 for d in centred) / (6 * sum(d**2 for d in centred) ** 1.5)
    ends = []
    for z in (norm.ppf((1 - level) / 2), norm.ppf((1 + level) / 2)):
        share = norm.cdf(bias + (bias + z) / (1 - skew * (bias + z)))
        ends.append(means[min(int(share * len(means)), len(means) - 1)])
    return ends


@pytest.mark.parametrize("gaps", [[1.0, 2.5, -0.5, 3.0, 0.2], [0.1, 0.15, 0.9, 0.3, 0.35, 0.2]])
def test_an_interval_is_that_of_all_resamples(gaps):
    (found,) = paired_differences(block_scores(gaps), "reference", level=0.9)
    assert found.mean == pytest.approx(statistics.fmean(gaps))
    width = max(gaps) - min(gaps)
    # 9,999 random resamples stand for all of them: an end moves by a few steps of their grid
    assert found.interval == pytest.approx(exact_bca(gaps, 0.9), abs=0.06 * width)


def test_only_common_blocks_are_paired():
    scores = {"a": {1: 5.0, 2: 7.0}, "b": {2: 6.0, 3: 1.0}, "c": {4: 0.0}, "d": {1: 6.0, 2: 8.5}}
    b, d = paired_differences(scores, "a")
    assert (b.row, b.mean, b.interval, b.num_pairs) == ("b", -1.0, None, 1)
    assert (d.row, d.mean, d.num_pairs) == ("d", 1.25, 2)


def test_a_shift_of_all_scores_changes_no_difference():
    scores = block_scores([0.5, 1.0, 3.0])
    shifted = {row: {i: value + 4 for i, value in of.items()} for row, of in scores.items()}
    (one,), (two,) = (paired_differences(s, "reference") for s in (scores, shifted))
    assert one.interval == pytest.approx(two.interval)


def test_mean_ranks_are_counts_of_better_rows():
    values = Rng(0).numpy().integers(0, 4, (4, 7)).astype(float)  # with ties
    scores = {str(r): dict(enumerate(row)) for r, row in enumerate(values.tolist())}
    ranks, num_blocks = mean_ranks({**scores, "0": {**scores["0"], "alone": 1.0}})
    assert num_blocks == 7
    for r, row in enumerate(values):
        better = (values > row).sum(axis=0) + ((values == row).sum(axis=0) - 1) / 2
        assert ranks[str(r)] == pytest.approx(float(1 + better.mean()))
    assert sum(ranks.values()) == pytest.approx(4 * 5 / 2)
    assert mean_ranks({"a": {1: 0.0}, "b": {2: 0.0}}) == mean_ranks({}) == ({}, 0)


def test_groups_are_the_maximal_windows():
    ranks = sorted(Rng(1).numpy().uniform(1, 9, 12).tolist())
    pairs = {(i, j) for i, j in itertools.combinations(range(12), 2) if ranks[j] - ranks[i] < 1.5}
    maximal = {
        (i, j)
        for i, j in pairs
        if not any(a <= i and j <= b and (a, b) != (i, j) for a, b in pairs)
    }
    assert set(indistinct_groups(ranks, 1.5)) == maximal
    assert indistinct_groups([1.0, 3.0], 2.0) == []


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="there is no row 'FedAvg', only a, b"):
        paired_differences({"a": {}, "b": {}}, "FedAvg")
    with pytest.raises(ValueError, match="num_rows must be at least 2, got 1"):
        critical_difference(1, 3)
