"""Comparison of table rows: paired differences, mean ranks and their critical difference."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedbolic.core import check

PairedScores = Mapping[str, Mapping[Hashable, float]]
"""Scores by row and by block; a block, such as a seed in a setting, is common to the rows."""


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference between a row and the reference over their common blocks.

    Args:
        row: Name of the row.
        mean: Mean of the row's score minus the reference's.
        interval: Ends of its confidence interval; ``None`` for a single block, or if a score is not
            finite.
        num_pairs: Number of common blocks.
    """

    row: str
    mean: float
    interval: tuple[float, float] | None
    num_pairs: int


def paired_differences(
    scores: PairedScores, reference: str, *, level: float = 0.95
) -> list[PairedDifference]:
    """Paired differences of all other rows to a reference row, in the order of the rows.

    The intervals are bias-corrected and accelerated (BCa) bootstrap intervals over blocks, with a
    fixed random stream. They are too narrow for few blocks. A row without a common block is left
    out.

    Args:
        scores: Scores of every row.
        reference: Name of the reference row.
        level: Confidence level of the intervals, in (0, 1).

    Raises:
        ValueError: If there is no such row.

    References:
        Efron (1987), Better bootstrap confidence intervals, JASA 82.

    Example:
        >>> scores = {"a": {0: 1.0, 1: 3.0}, "b": {0: 2.0, 1: 4.0, 2: 9.0}}
        >>> paired_differences(scores, "a")
        [PairedDifference(row='b', mean=1.0, interval=(1.0, 1.0), num_pairs=2)]
    """
    check.rate(below_one=True, level=level)
    if reference not in scores:
        raise ValueError(f"there is no row {reference!r}, only {', '.join(scores)}")
    found = []
    for row in scores:
        blocks = [block for block in scores[row] if block in scores[reference]]
        if row != reference and blocks:
            gaps = np.array([scores[row][b] - scores[reference][b] for b in blocks])
            mean = float(gaps.mean()) if np.isfinite(gaps).all() else math.nan
            found.append(PairedDifference(row, mean, _bca(gaps, level), len(blocks)))
    return found


def _bca(gaps: np.ndarray, level: float) -> tuple[float, float] | None:
    if len(gaps) == 1 or not np.isfinite(gaps).all():
        return None
    if np.ptp(gaps) == 0:  # the bootstrap distribution is a point, on which BCa is not defined
        return float(gaps[0]), float(gaps[0])
    from fedbolic.core.rng import Rng  # it needs torch, and a table without a reference does not

    rng = Rng().at("bootstrap").numpy()
    found = scipy.stats.bootstrap((gaps,), np.mean, confidence_level=level, method="BCa", rng=rng)
    low, high = found.confidence_interval
    return float(low), float(high)


def mean_ranks(scores: PairedScores) -> tuple[dict[str, float], int]:
    """Mean rank of every row, and the number of blocks; 1 is the row with the largest score.

    Only blocks that all rows have count. Rows of equal score share the mean of their ranks. NaN
    is the worst score. Without a common block there are no ranks.

    Args:
        scores: Scores of every row.

    Example:
        >>> mean_ranks({"a": {0: 1.0, 1: 3.0}, "b": {0: 2.0, 1: 3.0}})
        ({'a': 1.75, 'b': 1.25}, 2)
    """
    rows = list(scores)
    blocks = [b for b in scores[rows[0]] if all(b in scores[row] for row in rows)] if rows else []
    if not blocks:
        return {}, 0
    values = np.array([[scores[row][block] for row in rows] for block in blocks])
    values[np.isnan(values)] = -np.inf
    ranks = scipy.stats.rankdata(-values, axis=1).mean(axis=0)
    return dict(zip(rows, ranks.tolist(), strict=True)), len(blocks)


def critical_difference(num_rows: int, num_blocks: int, *, alpha: float = 0.05) -> float:
    r"""Least difference of two mean ranks that is significant by Nemenyi's test.

    .. math:: q_\alpha \sqrt{\frac{k (k + 1)}{6 N}}

    for k rows and N blocks, with the quantile q of the studentized range over the square root of 2.
    The test takes blocks as independent; seeds of one setting are less than that.

    Args:
        num_rows: Number of rows, at least 2.
        num_blocks: Number of blocks, at least 1.
        alpha: Level of the test, in (0, 1).

    Raises:
        ValueError: If a value is out of range.

    References:
        Demsar (2006), Sec. 3.2.2, JMLR 7.

    Example:
        >>> round(critical_difference(4, 14), 2)
        1.25
    """
    check.at_least(2, num_rows=num_rows)
    check.at_least(1, num_blocks=num_blocks)
    check.rate(below_one=True, alpha=alpha)
    quantile = scipy.stats.studentized_range.ppf(1 - alpha, num_rows, np.inf) / 2**0.5
    return float(quantile * (num_rows * (num_rows + 1) / (6 * num_blocks)) ** 0.5)


def indistinct_groups(ranks: Sequence[float], critical: float) -> list[tuple[int, int]]:
    """Largest groups of at least two rows whose mean ranks differ by less than ``critical``.

    Args:
        ranks: Mean ranks, ascending.
        critical: Critical difference.

    Returns:
        Positions of the first and the last row of every group.

    Example:
        >>> indistinct_groups([1.0, 1.5, 2.2, 4.0], critical=1.0)
        [(0, 1), (1, 2)]
    """
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(i for i, other in enumerate(ranks) if other - rank < critical)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
