"""Quantised hulls of a client, and the information that they reveal about its points."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from fedbolic.core import check
from fedhull.geometry.distance import median_point, poincare_distance
from fedhull.geometry.extreme import extreme_points
from fedhull.geometry.hull import BallPoints, PointLabels, PointMask
from fedhull.quantise import PolarGrid


def quantised_hull(
    points: BallPoints, grid: PolarGrid, *, min_count: int = 1, core: PointMask | None = None
) -> Int[np.ndarray, " m"]:
    """Bins of the quantised hull, ascending: the hull of the bin centres of the points' hull.

    Its size is the convex hull complexity of the paper.

    Args:
        points: Points of one class at one client; may be empty.
        grid: Polar grid of bins.
        min_count: Points that a bin must hold to be revealed, at least 1; points in bins with fewer
            are left out before the first hull.
        core: Mask of the points whose hull is taken; all points count for ``min_count``. ``None``
            for all points.

    Raises:
        ValueError: If the grid rejects a point, or ``min_count`` is below 1.

    References:
        Prakash et al. (2024), Def. 3 and 4, arXiv:2308.06895.

    Example:
        >>> quantised_hull(np.array([[0.1, 0.0], [0.5, 0.0], [0.3, 0.0]]), PolarGrid(1.0)).tolist()
        [1, 491]
    """
    check.at_least(1, min_count=min_count)
    bins = grid.encode(points)
    _, of_bin, counts = np.unique(bins, return_inverse=True, return_counts=True)
    used = counts[of_bin] >= min_count
    if core is not None:
        used &= core
    points, bins = points[used], bins[used]
    found = np.unique(bins[extreme_points(points, c=grid.c)])
    return np.sort(found[extreme_points(grid.decode(found), c=grid.c)])


def quantised_hulls(
    points: BallPoints,
    labels: PointLabels,
    grid: PolarGrid,
    *,
    min_count: int = 1,
    core: PointMask | None = None,
) -> dict[int, Int[np.ndarray, " _"]]:
    """Quantised hulls of a client's classes, without classes that reveal no bin.

    Args:
        points: Training points of the client.
        labels: Their classes.
        grid: Polar grid of bins.
        min_count: Points that a bin must hold to be revealed, as in :func:`quantised_hull`.
        core: Mask of the cores of all classes, as in :func:`quantised_hull`.
    """
    found = {}
    for label in np.unique(labels):
        own = labels == label
        found[int(label)] = quantised_hull(
            points[own], grid, min_count=min_count, core=None if core is None else core[own]
        )
    return {label: bins for label, bins in found.items() if len(bins)}


@dataclass(frozen=True)
class Leakage:
    """Information that one client's hulls reveal about its training points.

    Args:
        num_points: Number of training points of the client.
        num_bins: Number of revealed bins, over all classes.
        num_revealed: Number of points in those bins that have the bin's class.
        num_single: Revealed bins with only one point of the class, which locate that point to
            within half of epsilon.
        least_count: Least number of points in a revealed bin.
        neighbour: Median hyperbolic distance from a point to its nearest neighbour in the client's
            data; bins much smaller than this identify points.
        outlying: Mean over the revealed points of the share of their class at the client that is no
            farther from the class's median: near 1 if outliers are revealed, near 0.5 if anyone is.
        most_of_class: Largest share of the points of one class that is revealed.
    """

    num_points: int
    num_bins: int
    num_revealed: int
    num_single: int
    least_count: int
    neighbour: float
    outlying: float
    most_of_class: float

    @property
    def share(self) -> float:
        """Fraction of the client's points in revealed bins."""
        return self.num_revealed / max(self.num_points, 1)

    @property
    def crowd(self) -> float:
        """Mean number of points per revealed bin."""
        return self.num_revealed / max(self.num_bins, 1)

    @property
    def single(self) -> float:
        """Fraction of the revealed bins that hold only one point."""
        return self.num_single / max(self.num_bins, 1)


def leakage(
    points: BallPoints,
    labels: PointLabels,
    grid: PolarGrid,
    *,
    revealed: Mapping[int, Int[np.ndarray, " _"]],
) -> Leakage:
    """Leakage report of one client.

    Args:
        points: Training points of the client.
        labels: Their classes.
        grid: Polar grid of bins.
        revealed: Bins that the client would send, by class, from :func:`quantised_hulls`.

    Example:
        >>> points, labels = np.array([[0.1, 0.0], [0.5, 0.0], [0.3, 0.0]]), np.zeros(3, dtype=int)
        >>> grid = PolarGrid(1.0)
        >>> report = leakage(points, labels, grid, revealed=quantised_hulls(points, labels, grid))
        >>> report.num_bins, report.share, report.single
        (2, 0.6666666666666666, 1.0)
    """
    counts: list[int] = []
    ranks, shares = [np.empty(0)], [0.0]
    inside = grid.encode(points)
    for label, bins in revealed.items():
        own = inside[labels == label]
        ordered = np.sort(own)
        number = np.searchsorted(ordered, bins, "right") - np.searchsorted(ordered, bins)
        counts += number.tolist()
        ranks.append(_outlying(points[labels == label], c=grid.c)[np.isin(own, bins)])
        shares.append(number.sum() / len(own))
    outer = np.concatenate(ranks)
    return Leakage(
        num_points=len(points),
        num_bins=len(counts),
        num_revealed=sum(counts),
        num_single=sum(count == 1 for count in counts),
        least_count=min(counts, default=0),
        neighbour=nearest_neighbour(points, c=grid.c),
        outlying=float(outer.mean()) if len(outer) else 0.0,
        most_of_class=float(max(shares)),
    )


def _outlying(points: BallPoints, *, c: float) -> Float[np.ndarray, " n"]:
    """Share of the points that is no farther from their median than each of them."""
    away = poincare_distance(points, median_point(points, c=c)[None], c=c)
    return np.searchsorted(np.sort(away), away, side="right") / len(points)


def nearest_neighbour(points: BallPoints, *, c: float = 1.0) -> float:
    """Median hyperbolic distance from a point to its nearest neighbour; 0 for a single point.

    The search is limited to the eleven nearest points in coordinates.

    Args:
        points: Points of the Poincare ball.
        c: Minus the curvature, above 0.
    """
    if len(points) < 2:
        return 0.0
    # hyperbolic balls are Euclidean balls with other centres, so the nearest point may differ
    _, near = KDTree(points).query(points, k=min(len(points), 12))
    near = np.asarray(near)[:, 1:]
    return float(np.median(poincare_distance(points[:, None], points[near], c=c).min(axis=1)))
