"""Onion layers: hulls taken off one after another, exactly in the plane."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedhull.geometry.extreme import QHULL_DIM, extreme_points
from fedhull.geometry.hull import as_points, klein, klein_hull, require_ball

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
    points: Float[np.ndarray, "n dim"] | Float[Tensor, "n dim"], *, c: float = 1.0
) -> Iterator[Int[np.ndarray, " _"]]:
    """Onion layers, outermost first: the corners of the hull, then those of what is left, ...

    In the plane each layer is exact for the given doubles, as :func:`fedhull.geometry.hull.hull`
    is; in other dimensions it is correct up to rounding. Equal points are in the same layer; a
    point inside an edge is in a later layer than the ends of that edge. Together the layers hold
    every point once. They are computed as they are asked for.

    In the plane, only the outer points can be corners of the next layers: the rest lies in its own
    hull, and as long as none of that hull's corners has been taken off, these corners stand for the
    whole rest. The rule is applied again to the outer points and these corners, down to a few
    thousand points. A point is thus sorted out a logarithmic number of times, and a layer costs one
    small hull. For a million uniform points this takes seconds; the least favourable sets have as
    many layers as a third of their points, and each of these layers costs about a millisecond. In
    three to six dimensions each layer is the hull of all that is left, by Qhull.

    Args:
        points: Points of the Poincare ball, of at most six dimensions and in any order; may be
            empty.
        c: Minus the curvature, 0 or more.

    Yields:
        Indices of the points of a layer, ascending.

    Raises:
        TypeError: If ``points`` is no array or tensor of real numbers.
        ValueError: If a point does not lie in the open ball ``c |x|^2 < 1``, or has more than six
            coordinates.

    References:
        Barnett (1976), The ordering of multivariate data; Chazelle (1985), On the convex layers of
        a planar set, which needs O(n log n) operations for any points.

    Example:
        >>> x = np.array([[0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5], [0.5, -0.5], [0.1, 0.0]])
        >>> [layer.tolist() for layer in onion_layers(x)]
        [[0, 1, 2, 3], [4]]
    """
    points = as_points(points)
    require_ball(points, c=c)
    dim = points.shape[1]
    require_layers(dim)
    _, first, copy_of = np.unique(points, axis=0, return_index=True, return_inverse=True)
    distinct = points[first]
    layers = _layers_in_space(distinct, c)
    if dim == 2:
        layers = _Disc(distinct, klein(distinct, c=c), c).layers(np.arange(len(distinct)))
    yield from _with_copies(layers, copy_of.ravel())


def _with_copies(
    layers: Iterable[Int[np.ndarray, " _"]], copy_of: Int[np.ndarray, " n"]
) -> Iterator[Int[np.ndarray, " _"]]:
    """Layers of distinct points as ascending indices of all points, each a copy of a distinct."""
    copies = copy_of.argsort(kind="stable")  # of one point after another
    starts = np.append(0, np.bincount(copy_of).cumsum())
    for layer in layers:
        yield np.sort(np.concatenate([copies[starts[i] : starts[i + 1]] for i in layer]))


def require_layers(dim: int) -> None:
    """Check that onion layers can be computed in a number of dimensions.

    Args:
        dim: Number of dimensions.

    Raises:
        ValueError: If it is above six.
    """
    if dim > QHULL_DIM:
        raise ValueError(
            f"onion layers are computed in up to {QHULL_DIM} dimensions, got {dim}: cut classes "
            "with Farthest, or embed in fewer dimensions"
        )


def _layers_in_space(
    points: Float[np.ndarray, "n dim"], c: float
) -> Iterator[Int[np.ndarray, " _"]]:
    """Layers of distinct points by their definition."""
    left = np.arange(len(points))
    while len(left):
        corners = extreme_points(points[left], c=c)
        if not len(corners):  # rounding, among points that nearly coincide
            corners = np.arange(len(left))
        yield left[corners]
        left = np.delete(left, corners)


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
        return _Surround.of(self.flat[corners]).depths(self.flat[chosen]) >= 0


@dataclass(frozen=True, eq=False)
class _Surround:
    """Sides of a convex polygon of the Euclidean plane, up to rounding.

    Args:
        centre: Point inside the polygon.
        starts: Angles at which the corners are seen from the centre, ascending.
        normals: Unit normal of the side after each corner, inwards.
        offsets: Products of the normals with points of their sides.
    """

    centre: Float[np.ndarray, "2"]
    starts: Float[np.ndarray, " n"]
    normals: Float[np.ndarray, "n 2"]
    offsets: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, corners: Float[np.ndarray, "n 2"]) -> "_Surround":
        """Sides between corners, which may come in any order.

        Args:
            corners: At least three corners that are not collinear.
        """
        centre = corners.mean(axis=0)
        corners = corners[_angles(corners - centre).argsort()]
        sides = np.roll(corners, -1, axis=0) - corners
        normals = np.stack([-sides[:, 1], sides[:, 0]], axis=1)
        normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), np.finfo(float).tiny)
        offsets = (normals * corners).sum(axis=1)
        return cls(centre, _angles(corners - centre), normals, offsets)

    def depths(self, flat: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
        """Distance of each point from the line of the side before it; below 0 outside.

        Args:
            flat: Points of the plane.
        """
        facet = np.searchsorted(self.starts, _angles(flat - self.centre), side="right") - 1
        return (self.normals[facet] * flat).sum(axis=1) - self.offsets[facet]


def _angles(vectors: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
    return np.arctan2(vectors[:, 1], vectors[:, 0])
