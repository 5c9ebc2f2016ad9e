"""Convex hulls of points of the hyperbolic plane, exact for the given double-precision numbers.

The Klein model maps geodesics to straight lines, so the hull there is the Euclidean one. A polygon
of far points sorts out those well inside; an exact rational predicate decides close turns.
"""

import math
from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedbolic.core import check

BallPoints = Float[np.ndarray, "n dim"]
"""Points of the Poincare ball."""

PointLabels = Int[np.ndarray, " n"]
"""Class of each point."""

PointMask = Bool[np.ndarray, " n"]
"""Mask of points."""

_NEAR = 1e-6
"""Distance from a side, over the standard deviation, below which points are decided exactly."""

_THIN = 1e-5
"""Least standard deviation, over the largest coordinate; of thinner sets, all points are decided
exactly. Coordinates over the standard deviation are then rounded by about 1e-10."""

_THICK = 1e-3
"""Least distance of a polygon's sides from the mean, over that of the farthest point. A point next
to a corner may be seen in the wrong sector, 1e-10 beyond; it is 1e-6 times this inside."""

_SECTORS = 4
"""Number of sectors over the root of the number of points."""

_MOST = 0.75
"""Share of points that stay, above which another pass is slower than single decisions."""

_FEW = 200
"""Number of points below which exact decisions on all of them are faster."""

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
    """Indices of points that may be extreme: those not well inside a polygon of other points."""
    standard = _standardised(flat, scale) if len(flat) >= _FEW else None
    if standard is None:
        return np.arange(len(flat))
    x, y = standard
    angles, away = np.arctan2(y, x), x * x + y * y
    number = _SECTORS * math.isqrt(len(x))
    sector = (angles * (number / math.tau) + number / 2).astype(np.intp)
    corners = _polygon(x, y, sector, away, number)
    following = np.roll(corners, -1)
    x0, y0, x1, y1 = x[corners], y[corners], x[following], y[following]
    a, b, area = y0 - y1, x1 - x0, x0 * y1 - y0 * x1
    length = np.sqrt(a * a + b * b)
    if len(corners) < 3 or (reach := (area / length).min()) < _THICK * math.sqrt(away.max()):
        return np.arange(len(flat))
    # most points lie in a disc around the mean, farther than that from all sides
    outer = np.flatnonzero(away > (reach - _NEAR) ** 2)
    side = _sides(angles, sector, corners, outer, number)
    depths = a.take(side) * x.take(outer) + b.take(side) * y.take(outer) + area.take(side)
    return outer[depths < (_NEAR * length).take(side)]


def _standardised(
    flat: Float[np.ndarray, "n 2"], scale: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]] | None:
    """Coordinates of mean 0 and covariance 1, in which slender sets are round; ``None`` if thin."""
    number = len(flat)
    x, y = (column - column.sum() / number for column in flat.T / (scale or 1.0))
    width = math.sqrt(x @ x / number)
    if width < _THIN:
        return None
    x /= width
    y -= (x @ y / number) * x
    height = math.sqrt(y @ y / number)
    return None if height < _THIN else (x, y / height)


def _polygon(
    x: Float[np.ndarray, " n"],
    y: Float[np.ndarray, " n"],
    sector: Int[np.ndarray, " n"],
    away: Float[np.ndarray, " n"],
    number: int,
) -> Int[np.ndarray, " k"]:
    """Corners of a convex polygon by angle: the points farthest from 0, each in its sector."""
    most = np.zeros(number + 1)
    np.maximum.at(most, sector, away)
    among = np.flatnonzero(away == most[sector])
    farthest = np.full(number + 1, -1)
    farthest[sector[among]] = among
    corners = farthest[farthest >= 0]
    while True:
        ring = np.concatenate([corners[-1:], corners, corners[:1]])
        a, b = np.diff(x[ring]), np.diff(y[ring])
        convex = a[:-1] * b[1:] > b[:-1] * a[1:]
        if convex.all():
            return corners
        corners = corners[convex]


def _sides(
    angles: Float[np.ndarray, " n"],
    sector: Int[np.ndarray, " n"],
    corners: Int[np.ndarray, " k"],
    outer: Int[np.ndarray, " m"],
    number: int,
) -> Int[np.ndarray, " m"]:
    """Last corner up to the angle of each point; a sector has one corner at most."""
    earlier, from_angle = np.full(number + 1, -1), np.full(number + 1, np.inf)
    from_angle[sector[corners]] = angles[corners]
    earlier[1:] += np.cumsum(from_angle < np.inf)[:-1]
    of = sector.take(outer)  # many times as fast as by brackets
    return earlier.take(of) + (angles.take(outer) >= from_angle.take(of))


def _chain(
    points: Float[np.ndarray, "n 2"], flat: Float[np.ndarray, "n 2"], scale: float, c: float
) -> Int[np.ndarray, " m"]:
    """Extreme points, counter-clockwise, by Andrew's monotone chain with exact predicates."""
    order = np.array(_sorted(points, flat, scale, c), dtype=np.int64)
    if len(order) < 3:
        return order
    from_first = flat[order] - flat[order[0]]
    x, y = from_first[-1]
    side = x * from_first[:, 1] - y * from_first[:, 0]
    bound = ROUNDING * scale
    unsure = bound * (np.abs(from_first).sum(axis=1) + abs(x) + abs(y) + bound) + UNDERFLOW
    below, above = order[side <= unsure], order[side >= -unsure][::-1]
    rows, halves = flat.tolist(), []
    for half in (below, above):
        outer = _without_right_turns(half, flat, bound)
        halves += _half_chain(points, rows, outer.tolist(), bound, c)[:-1]
    return np.array(halves, dtype=np.int64)


def _without_right_turns(
    half: Int[np.ndarray, " m"], flat: Float[np.ndarray, "n 2"], rounding: float
) -> Int[np.ndarray, " _"]:
    """The points without most of those inside a line between their neighbours, by passes."""
    while len(half) > _FEW:
        number = len(half)
        a, b = np.diff(flat[half].T)
        size = np.abs(a) + np.abs(b)
        bound = rounding * (size[:-1] + size[1:] + rounding) + UNDERFLOW
        stays = a[:-1] * b[1:] - b[:-1] * a[1:] >= -bound
        half = half[np.concatenate([[True], stays, [True]])]
        if len(half) > _MOST * number:
            break
    return half


def _half_chain(
    points: np.ndarray, flat: list[list[float]], half: list[int], rounding: float, c: float
) -> list[int]:
    """Points of a half, from its first to its last, at which the chain turns left."""
    stack: list[tuple[int, float, float, float, float]] = []  # index, place, side before it
    coarse = rounding * (8 * rounding / ROUNDING + rounding) + UNDERFLOW  # no bound is larger
    for new in half:
        x, y = flat[new]
        a = b = 0.0
        while stack:
            at, x1, y1, a1, b1 = stack[-1]
            a, b = x - x1, y - y1
            if len(stack) == 1:
                break
            cross = a1 * b - b1 * a
            if abs(cross) <= coarse:
                bound = rounding * (abs(a1) + abs(b1) + abs(a) + abs(b) + rounding)
                if abs(cross) <= bound + UNDERFLOW:
                    three = (homogeneous(points[i], c) for i in (stack[-2][0], at, new))
                    cross = orientation(*three)
            if cross > 0:
                break
            stack.pop()
        stack.append((new, x, y, a, b))
    return [of[0] for of in stack]


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
