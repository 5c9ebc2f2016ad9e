"""Convex hulls of points of the hyperbolic plane, exact for the given double-precision numbers.

The Klein model maps geodesics to straight lines, so the hull there is the Euclidean one. Qhull
finds it up to rounding; an exact rational predicate decides all points near its boundary.
"""

import functools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import ConvexHull, QhullError
from torch import Tensor

from fedbolic.core import check

BallPoints = Float[np.ndarray, "n dim"]
"""Points of the Poincare ball."""

PointLabels = Int[np.ndarray, " n"]
"""Class of each point."""

PointMask = Bool[np.ndarray, " n"]
"""Mask of points."""

_NEAR = 1e-9
"""Distance from a facet, over the largest coordinate, below which points are decided exactly."""

THIN = 1e-6
"""Least distance from a polygon's centre to its sides; in thinner ones, every point is decided."""

FEW = 80
"""Number of points below which exact decisions on all of them are faster than Qhull."""

ROUNDING = 40 * float(np.finfo(float).eps)
"""Error bound of an orientation, per unit of the two sides and of the largest coordinate: 16
roundings, with a margin."""

UNDERFLOW = float(np.finfo(float).tiny)
"""Size below which products lose their relative precision."""


def klein(points: Float[np.ndarray, "n dim"], *, c: float = 1.0) -> Float[np.ndarray, "n dim"]:
    r"""Klein coordinates of points of the Poincare ball; geodesics become straight lines.

    .. math:: x_K = \frac{2 x}{1 + c |x|^2}

    Args:
        points: Points with ``c |x|^2 < 1``.
        c: Minus the curvature, 0 or more.

    Example:
        >>> klein(np.array([[0.5, 0.0]]))
        array([[0.8, 0. ]])
    """
    return 2 * points / (1 + c * _squares(points)[:, None])


def _squares(points: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
    """Squared length of each point, column by column where rows are too short for numpy's sums."""
    if not 0 < points.shape[1] < 8:
        return np.square(points).sum(axis=1)
    total = np.square(points[:, 0])
    for column in points.T[1:]:
        total += np.square(column)
    return total


def hull(
    points: Float[np.ndarray, "n 2"] | Float[Tensor, "n 2"], *, c: float = 1.0
) -> Int[np.ndarray, " m"]:
    """Indices of the extreme points of the hyperbolic convex hull, counter-clockwise.

    Every point of the set lies in the hull of the extreme points, and none of these lies in the
    hull of the others: points inside an edge are left out, and equal points are represented by the
    first. The result is exact for the given doubles, up to the boundary of the disc.

    Args:
        points: Points of the Poincare disc, in any order; may be empty. A tensor may be on any
            device.
        c: Minus the curvature, 0 or more.

    Raises:
        TypeError: If ``points`` is no array or tensor of real numbers.
        ValueError: If a point does not lie in the open disc ``c |x|^2 < 1``.

    References:
        Prakash et al. (2024), Def. 1, arXiv:2308.06895; the Klein map instead of Algorithm 1.

    Example:
        >>> hull(np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5], [0.1, 0.1]]))
        array([0, 1, 2])
    """
    points = as_points(points)
    require_ball(points, c=c, dim=2)
    chosen = klein_hull(points, klein(points, c=c), c=c)
    return np.roll(chosen, -int(chosen.argmin())) if len(chosen) else chosen


def as_points(points: object) -> Float[np.ndarray, "*shape"]:
    """Double-precision array of the numbers of an array or a tensor.

    Args:
        points: Array or tensor of real numbers; a tensor may be on any device and may require
            gradients.

    Raises:
        TypeError: If ``points`` is something else.

    Example:
        >>> as_points(torch.tensor([[0.5, 0.25]]))
        array([[0.5 , 0.25]])
    """
    if isinstance(points, Tensor) and not (points.is_complex() or points.dtype == torch.bool):
        return points.detach().to("cpu", torch.float64).numpy()
    if isinstance(points, np.ndarray) and points.dtype.kind in "fiu":
        return points.astype(np.float64, copy=False)
    dtype = f" of {points.dtype}" if isinstance(points, np.ndarray | Tensor) else ""
    raise TypeError(
        "points must be an array or a tensor of real numbers, got "
        f"{type(points).__name__}{dtype}: convert them with np.asarray(points, dtype=float)"
    )


def klein_hull(
    points: Float[np.ndarray, "n 2"], flat: Float[np.ndarray, "n 2"], *, c: float
) -> Int[np.ndarray, " m"]:
    """Indices of the extreme points, counter-clockwise from the least Klein coordinates.

    Args:
        points: Points of the open Poincare disc, not checked.
        flat: Their Klein coordinates, from :func:`klein`.
        c: Minus the curvature, 0 or more.
    """
    scale = float(np.abs(flat).max(initial=0.0))
    candidates = _candidates(flat, scale)
    return candidates[_chain(points[candidates], flat[candidates], scale, c)]


def require_ball(points: np.ndarray, *, c: float, dim: int | None = None) -> None:
    """Check that an array is a table of points of the open Poincare ball.

    Args:
        points: Array to check.
        c: Minus the curvature, 0 or more.
        dim: Required number of coordinates; ``None`` for any.

    Raises:
        ValueError: If ``c`` is negative, the shape is wrong, or a point lies outside the ball or
            is not finite.
    """
    check.not_negative(c=c)
    if points.ndim != 2 or (dim is not None and points.shape[1] != dim):
        raise ValueError(f"points need shape (n, {dim or 'dim'}), got {points.shape}")
    outside = ~(c * _squares(points) < 1)  # negated, so that NaN counts as outside
    if outside.any():
        first = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"points must lie in the open ball c |x|^2 < 1 with c={c}, got "
            f"{points[first].tolist()} at {first}: map vectors into the ball with "
            "expmap0, or check the curvature"
        )


def _candidates(flat: Float[np.ndarray, "n 2"], scale: float) -> Int[np.ndarray, " k"]:
    """Indices of points that may be extreme: those near the edge of Qhull's polygon, or all."""
    everything = np.arange(len(flat))
    if len(flat) < FEW:
        return everything
    try:
        polygon = flat[ConvexHull(flat).vertices]
    except QhullError:  # the points are collinear or equal, or nearly so
        return everything
    around = Surround.of(polygon)
    if around.thickness < THIN * scale:
        return everything
    # most points lie in a disc around the centre, farther than that from all sides
    reach = around.thickness - 2 * _NEAR * scale
    outer = np.flatnonzero(_squares(flat - around.centre) > reach**2)
    return outer[around.depths(flat[outer]) < _NEAR * scale]


@dataclass(frozen=True, eq=False)
class Surround:
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
    def of(cls, corners: Float[np.ndarray, "n 2"]) -> "Surround":
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

    @property
    def thickness(self) -> float:
        """Distance from the centre to the nearest side."""
        return float((self.normals @ self.centre - self.offsets).min())

    def depths(self, flat: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
        """Distance of each point from the line of the side before it; below 0 outside.

        Args:
            flat: Points of the plane.
        """
        facet = np.searchsorted(self.starts, _angles(flat - self.centre), side="right") - 1
        return (self.normals[facet] * flat).sum(axis=1) - self.offsets[facet]


def _angles(vectors: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
    return np.arctan2(vectors[:, 1], vectors[:, 0])


def _chain(
    points: Float[np.ndarray, "n 2"], flat: Float[np.ndarray, "n 2"], scale: float, c: float
) -> Int[np.ndarray, " m"]:
    """Extreme points, counter-clockwise, by Andrew's monotone chain with exact predicates."""
    order = _sorted(points, flat, scale, c)
    if len(order) < 3:
        return np.array(order, dtype=np.int64)
    left_of = functools.partial(_is_left, points, flat.tolist(), ROUNDING * scale, c)
    halves = []
    for direction in (order, order[::-1]):
        stack: list[int] = []
        for new in direction:
            while len(stack) > 1 and not left_of(stack[-2], stack[-1], new):
                stack.pop()
            stack.append(new)
        halves += stack[:-1]
    return np.array(halves, dtype=np.int64)


def _is_left(
    points: np.ndarray, flat: list[list[float]], rounding: float, c: float, i: int, j: int, k: int
) -> bool:
    """True if ``k`` lies strictly to the left of the geodesic from ``i`` to ``j``."""
    (x, y), (x1, y1), (x2, y2) = flat[i], flat[j], flat[k]
    x1, y1, x2, y2 = x1 - x, y1 - y, x2 - x, y2 - y
    cross = x1 * y2 - y1 * x2
    bound = rounding * (abs(x1) + abs(y1) + abs(x2) + abs(y2) + rounding)
    if abs(cross) > bound + UNDERFLOW:
        return cross > 0
    return orientation(*(homogeneous(points[index], c) for index in (i, j, k))) > 0


def homogeneous(point: Float[np.ndarray, "2"], c: float) -> tuple[int, int, int]:
    """Integers proportional to ``(1 + c |x|^2, x1, x2)``, without rounding.

    Args:
        point: Point of the Poincare disc.
        c: Minus the curvature, 0 or more.
    """
    (a, a_below), (b, b_below), (n, n_below) = (
        float(value).as_integer_ratio() for value in (point[0], point[1], c)
    )
    below = max(a_below, b_below)  # powers of two: the smaller divides the larger
    a, b = a * (below // a_below), b * (below // b_below)
    return n_below * below * below + n * (a * a + b * b), a * below * n_below, b * below * n_below


def orientation(p: tuple[int, ...], q: tuple[int, ...], r: tuple[int, ...]) -> int:
    """Exact orientation of three points: above 0 for a left turn, below 0 for right, 0 for none.

    Args:
        p: First point, in the coordinates of :func:`homogeneous`.
        q: Second point.
        r: Third point.
    """
    return (
        p[0] * (q[1] * r[2] - q[2] * r[1])
        - p[1] * (q[0] * r[2] - q[2] * r[0])
        + p[2] * (q[0] * r[1] - q[1] * r[0])
    )


def _sorted(points: np.ndarray, flat: np.ndarray, scale: float, c: float) -> list[int]:
    """Indices of distinct points in the exact order of Klein coordinates; the first of equals."""
    order = np.lexsort((flat[:, 1], flat[:, 0]))
    again = (points[order[1:]] == points[order[:-1]]).all(axis=1)
    order = np.delete(order, np.flatnonzero(again) + 1)  # cheap: exact rationals are slow
    close: Bool[np.ndarray, " m"] = np.diff(flat[order, 0]) <= ROUNDING * scale
    if not close.any():
        return order.tolist()
    ordered: list[int] = []
    for run in np.split(order, np.flatnonzero(~close) + 1):
        ordered += _sorted_exactly(points, run.tolist(), c) if len(run) > 1 else run.tolist()
    return ordered


def _sorted_exactly(points: np.ndarray, run: list[int], c: float) -> list[int]:
    keyed: dict[tuple[Fraction, Fraction], int] = {}
    for index in sorted(run):
        w, x, y = homogeneous(points[index], c)
        keyed.setdefault((Fraction(x, w), Fraction(y, w)), index)
    return [keyed[key] for key in sorted(keyed)]
