"""Onion layers of points of the hyperbolic plane: hulls taken off one after another, exactly."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedhull.hull import Surround, as_points, klein, klein_hull, require_ball

FEWEST = 3000
"""Number of points below which every layer is the hull of all that is left."""

OUTER = 0.25
"""Share of the points that are candidates for the next layers, while the rest is one polygon."""

MANY = 0.75
"""Share of the points above which the candidates are too many to be worth a smaller problem."""

SAMPLE, SPARSE = 2048, 16
"""Most points, and the least number of points for each of them, of the sample that is peeled to
find out where the outer points end."""


def onion_layers(
    points: Float[np.ndarray, "n 2"] | Float[Tensor, "n 2"], *, c: float = 1.0
) -> Iterator[Int[np.ndarray, " _"]]:
    """Onion layers, outermost first: the corners of the hull, then those of what is left, ...

    Each layer is exact for the given doubles, as :func:`fedhull.hull.hull` is. Equal points are in
    the same layer; a point inside an edge is in a later layer than the ends of that edge. Together
    the layers hold every point once. They are computed as they are asked for.

    Only the outer points can be corners of the next layers: the rest lies in its own hull, and as
    long as none of that hull's corners has been taken off, these corners stand for the whole rest.
    The rule is applied again to the outer points and these corners, down to a few thousand points.
    A point is thus sorted out a logarithmic number of times, and a layer costs one small hull. For
    a million uniform points this takes seconds; the least favourable sets have as many layers as a
    third of their points, and each of these layers costs about a millisecond.

    Args:
        points: Points of the Poincare disc, in any order; may be empty.
        c: Minus the curvature, 0 or more.

    Yields:
        Indices of the points of a layer, ascending.

    Raises:
        TypeError: If ``points`` is no array or tensor of real numbers.
        ValueError: If a point does not lie in the open disc ``c |x|^2 < 1``.

    References:
        Barnett (1976), The ordering of multivariate data; Chazelle (1985), On the convex layers of
        a planar set, which needs O(n log n) operations for any points.

    Example:
        >>> x = np.array([[0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5], [0.5, -0.5], [0.1, 0.0]])
        >>> [layer.tolist() for layer in onion_layers(x)]
        [[0, 1, 2, 3], [4]]
    """
    points = as_points(points)
    require_ball(points, c=c, dim=2)
    _, first, copy_of = np.unique(points, axis=0, return_index=True, return_inverse=True)
    copies = copy_of.ravel().argsort(kind="stable")  # of one point after another
    starts = np.append(0, np.bincount(copy_of.ravel()).cumsum())
    distinct = points[first]
    disc = _Disc(distinct, klein(distinct, c=c), c)
    for layer in disc.layers(np.arange(len(distinct))):
        yield np.sort(np.concatenate([copies[starts[i] : starts[i + 1]] for i in layer]))


@dataclass(frozen=True, eq=False)
class _Disc:
    """Distinct points of the disc in both models."""

    points: Float[np.ndarray, "n 2"]
    flat: Float[np.ndarray, "n 2"]
    c: float

    def layers(self, left: Int[np.ndarray, " m"]) -> Iterator[Int[np.ndarray, " _"]]:
        """All layers of a subset."""
        if len(left) < FEWEST:
            while len(left):
                corners = self._hull(left)
                yield left[corners]
                left = np.delete(left, corners)
            return
        standing: Bool[np.ndarray, " n"] = np.zeros(len(self.flat), dtype=bool)
        standing[left] = True
        while len(left) >= FEWEST:
            is_inner = self._inner(left)
            inner = left[is_inner]
            wall = inner[self._hull(inner)]
            candidates = np.concatenate([left[~is_inner], wall])
            many = len(candidates) > MANY * len(left)
            for layer in [left[self._hull(left)]] if many else self.layers(candidates):
                yield layer
                standing[layer] = False
                if not standing[wall].all():  # from here on points of the rest may be corners
                    break
            left = left[standing[left]]
        yield from self.layers(left)

    def _hull(self, chosen: Int[np.ndarray, " m"]) -> Int[np.ndarray, " _"]:
        return klein_hull(self.points[chosen], self.flat[chosen], c=self.c)

    def _inner(self, chosen: Int[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
        """Mask of the inner points; a bad choice costs time, but no exactness.

        The layers of a sample lie about where those of all points with the same share outside lie.
        """
        sample = chosen[:: max(SPARSE, len(chosen) // SAMPLE)]
        left, least = sample, (1 - OUTER) * len(sample)
        while len(left) > least:
            left = np.delete(left, self._hull(left))
        corners = left[self._hull(left)]
        if len(corners) < 3:
            return np.zeros(len(chosen), dtype=bool)
        return Surround.of(self.flat[corners]).depths(self.flat[chosen]) >= 0
