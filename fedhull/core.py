"""Cores of classes: the points that are left once a client has cut off the outermost ones."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Poincare
from fedhull.boundary import Boundary
from fedhull.geometry.distance import median_point
from fedhull.geometry.extreme import extreme_points
from fedhull.geometry.hull import BallPoints, PointLabels, PointMask, require_ball
from fedhull.geometry.onion import onion_layers, require_layers

NUM_STEPS = 5
"""Steps of the trimmed mean from the median of tangents."""

_DIGITS = 9
"""Decimal digits of a share of a count; 0.1 * 30 must be 3 and not a bit more."""


class Core(ABC):
    """Rule by which a client cuts off the outer points of its classes before it takes their hulls.

    Hulls of overlapping classes are hulls of outliers; those of cores are not. A class keeps at
    least as many corners as a simplex (three in the plane) if its hull has them, and no class is
    lost. A core does not depend on the order of the points, and its hull lies in that of the class.
    """

    @abstractmethod
    def kept(
        self, points: BallPoints, labels: PointLabels, *, c: float, boundary: Boundary
    ) -> PointMask:
        """Mask of the points of all cores.

        Args:
            points: Points of the Poincare ball.
            labels: Their classes.
            c: Minus the curvature, above 0.
            boundary: Classifier that the hulls of the cores are for.

        Raises:
            ValueError: If a point does not lie in the open ball.
        """

    def require_dim(self, dim: int) -> None:
        """Check that the rule can cut points of a number of dimensions; by default it can.

        Args:
            dim: Number of dimensions.

        Raises:
            ValueError: If it cannot.
        """
        del dim


class ShareCore(Core):
    """Core of each class by a share of its points to cut off, which every subclass has."""

    share: float

    @abstractmethod
    def inside(self, points: BallPoints, *, c: float, share: float) -> PointMask:
        """Mask of the core of one class.

        Args:
            points: Points of one class, in the open ball.
            c: Minus the curvature, above 0.
            share: Share of the points to cut off, above 0 and below 1, instead of the rule's own.
        """

    @abstractmethod
    def with_share(self, share: float) -> "ShareCore":
        """The same rule with another share.

        Args:
            share: Share of each class to cut off, in [0, 1).
        """

    @override
    def kept(
        self, points: BallPoints, labels: PointLabels, *, c: float, boundary: Boundary
    ) -> PointMask:
        del boundary
        return self.kept_with(points, labels, c=c, share=self.share)

    def kept_with(
        self, points: BallPoints, labels: PointLabels, *, c: float, share: float
    ) -> PointMask:
        """Mask of the points of all cores for a given share.

        Args:
            points: Points of the Poincare ball.
            labels: Their classes.
            c: Minus the curvature, above 0.
            share: Share of each class to cut off, in [0, 1); 0 keeps all points.

        Raises:
            ValueError: If a value is outside its range.
        """
        check.rate(below_one=True, share=share)
        require_ball(points, c=c)
        inside = np.ones(len(points), dtype=bool)
        if share > 0:
            for label in np.unique(labels):
                of_class = np.flatnonzero(labels == label)
                inside[of_class] = self.inside(points[of_class], c=c, share=share)
        return inside


@dataclass(frozen=True)
class Farthest(ShareCore):
    r"""Cut of the points farthest from a trimmed mean of their class.

    .. math:: p_{i+1} = \exp_{p_i} \operatorname{mean}_{x \in \text{core}_i} \log_{p_i} x, \quad
        p_0 = \exp_0 \operatorname{median}_x \log_0 x

    where core_i has the share 1 - ``share`` of the points that is nearest to :math:`p_i`; the core
    is that around :math:`p_5`. Of equally far points, those with the largest coordinates go first.
    Where the hull of the rest has fewer corners than a simplex, the class is left whole.

    Args:
        share: Share of the points of a class to cut off, in [0, 1); rounded down to a number of
            points.

    Raises:
        ValueError: If the share is outside its range.

    Example:
        >>> x = np.array([[0.0, 0.1], [0.1, 0.0], [-0.1, 0.0], [0.0, -0.1], [0.9, 0.0]])
        >>> Farthest(0.2).inside(x, c=1.0, share=0.2)
        array([ True,  True,  True,  True, False])
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check.rate(below_one=True, share=self.share)

    @override
    def with_share(self, share: float) -> "Farthest":
        return Farthest(share)

    @override
    def inside(self, points: BallPoints, *, c: float, share: float) -> PointMask:
        num_cut = int(round(share * len(points), _DIGITS))
        order = np.lexsort(points.T[::-1])  # sums must not depend on the input's
        nearest = _from_centre(points[order], len(points) - num_cut, c)
        inside = np.ones(len(points), dtype=bool)
        inside[order[nearest[len(points) - num_cut :]]] = False
        if len(extreme_points(points[inside], c=c)) <= points.shape[1]:
            inside[:] = True
        return inside


def _from_centre(points: BallPoints, num_kept: int, c: float) -> Int[np.ndarray, " n"]:
    """Indices of points by distance from their trimmed mean, nearest first."""
    space, x = Poincare(c), torch.from_numpy(points)
    at = torch.from_numpy(median_point(points, c=c))
    for _ in range(NUM_STEPS):
        nearest = space.dist(at, x).argsort(stable=True)[:num_kept]
        at = space.expmap(at, space.logmap(at, x[nearest.sort().values]).mean(dim=0))
    return space.dist(at, x).argsort(stable=True).numpy()


@dataclass(frozen=True)
class HullPeeling(ShareCore):
    """Cut of the outermost onion layers: hulls are taken off until the share is gone.

    As layers are taken off whole, a little more than the share may go, and much more in a class of
    few points or in many dimensions, where most points are corners. The last layers stay on where
    fewer corners than those of a simplex (three in the plane) would be left. In the plane, layers
    are exact for the given doubles. Above six dimensions layers are not computed, and a run with
    such points is refused.

    Args:
        share: Least share of the points of a class to cut off, in [0, 1).

    Raises:
        ValueError: If the share is outside its range.

    References:
        Barnett (1976), The ordering of multivariate data; see
        :func:`fedhull.geometry.onion.onion_layers`.

    Example:
        >>> x = np.array([[0.6, 0.0], [-0.6, 0.0], [0.0, 0.6], [0.1, 0.2], [0.0, 0.1], [0.1, 0.1]])
        >>> HullPeeling(0.2).inside(x, c=1.0, share=0.2)
        array([False, False, False,  True,  True,  True])
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check.rate(below_one=True, share=self.share)

    @override
    def with_share(self, share: float) -> "HullPeeling":
        return HullPeeling(share)

    @override
    def require_dim(self, dim: int) -> None:
        require_layers(dim)

    @override
    def inside(self, points: BallPoints, *, c: float, share: float) -> PointMask:
        num_cut = round(share * len(points), _DIGITS)
        inside = np.ones(len(points), dtype=bool)
        outermost = np.empty(0, dtype=np.int64)
        for layer in onion_layers(points, c=c):
            if len(np.unique(points[layer], axis=0)) <= points.shape[1]:
                break
            inside[outermost] = False
            if len(points) - inside.sum() >= num_cut:
                break
            outermost = layer
        return inside


@dataclass(frozen=True)
class ValidatedCore(Core):
    """Cut with the share that each client finds best on its own points.

    The points of a class, in the order of their coordinates, are dealt to the folds one by one. For
    each fold, the boundary is trained on the corners of the cores of the other folds and applied to
    this one. The client takes the least share whose accuracy is at most one standard error (of the
    paired difference) below the best. A client whose points do not say which share is better thus
    cuts nothing. The share itself is not sent.

    Args:
        rule: Rule whose share is chosen; its own share is not used.
        shares: Shares to choose from, ascending, in [0, 1).
        folds: Number of folds, at least 2.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Breiman et al. (1984), Classification and regression trees, Sec. 3.4.3, the rule of one
        standard error.
    """

    rule: ShareCore = HullPeeling()
    shares: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3)
    folds: int = 3

    def __post_init__(self) -> None:
        check.at_least(2, folds=self.folds)
        for share in self.shares:
            check.rate(below_one=True, share=share)
        if not self.shares or list(self.shares) != sorted(set(self.shares)):
            raise ValueError(f"shares must be ascending numbers, at least one, got {self.shares}")

    @override
    def require_dim(self, dim: int) -> None:
        self.rule.require_dim(dim)

    @override
    def kept(
        self, points: BallPoints, labels: PointLabels, *, c: float, boundary: Boundary
    ) -> PointMask:
        share = self.chosen(points, labels, c=c, boundary=boundary)
        return self.rule.kept_with(points, labels, c=c, share=share)

    def chosen(
        self, points: BallPoints, labels: PointLabels, *, c: float, boundary: Boundary
    ) -> float:
        """Share that a client with these points takes; the least where there is nothing to compare.

        Args:
            points: Points of the client.
            labels: Their classes.
            c: Minus the curvature, above 0.
            boundary: Classifier to train on the corners.
        """
        require_ball(points, c=c)
        fold = _dealt(points, labels, self.folds)
        correct = np.zeros((len(self.shares), len(points)))
        for number in range(self.folds):
            train, held = fold != number, fold == number
            classes, codes = np.unique(labels[train], return_inverse=True)
            if len(classes) < 2 or not held.any():
                continue
            for row, share in zip(correct, self.shares, strict=True):
                x = points[train]
                corners = _corners(x, codes, self.rule.kept_with(x, codes, c=c, share=share), c)
                learned = boundary.fit(x[corners], codes[corners], c=c)
                found = boundary.log_odds(learned, points[held], c=c).argmax(axis=1)
                row[held] = classes[found] == labels[held]
        return self.shares[_least_good(correct)]


def _dealt(points: np.ndarray, labels: np.ndarray, folds: int) -> Int[np.ndarray, " n"]:
    """Fold of each point; neighbours of a class are in different folds, whatever the order."""
    order = np.lexsort((*points.T[::-1], labels))
    fold = np.empty(len(points), dtype=np.int64)
    starts = np.searchsorted(labels[order], labels[order])
    fold[order] = (np.arange(len(points)) - starts) % folds
    return fold


def _corners(
    points: np.ndarray, labels: np.ndarray, kept: np.ndarray, c: float
) -> Int[np.ndarray, " m"]:
    """Indices of the corners of the classes' cores."""
    of_classes = [np.flatnonzero(kept & (labels == label)) for label in np.unique(labels[kept])]
    return np.concatenate([core[extreme_points(points[core], c=c)] for core in of_classes])


def _least_good(correct: Float[np.ndarray, "num_shares n"]) -> int:
    """First row that is within a standard error of the row with the largest mean."""
    gaps = correct[correct.sum(axis=1).argmax()] - correct
    num_points = max(correct.shape[1], 1)
    error = np.sqrt(np.square(gaps - gaps.sum(axis=1, keepdims=True) / num_points).sum(axis=1))
    return int((gaps.sum(axis=1) <= error).argmax())  # both are multiplied by num_points
