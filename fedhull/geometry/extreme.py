"""Extreme points in any dimension: exact in the plane, by Qhull or linear programs elsewhere."""

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linprog
from scipy.spatial import ConvexHull, QhullError
from torch import Tensor

from fedhull.geometry.hull import as_points, hull, klein, require_ball

QHULL_DIM = 6
"""Largest dimension for Qhull; above it, one linear program per point is faster."""


def extreme_points(
    points: Float[np.ndarray, "n dim"] | Float[Tensor, "n dim"], *, c: float = 1.0
) -> Int[np.ndarray, " m"]:
    """Indices of the extreme points of the hyperbolic convex hull, in any dimension.

    In the plane they are those of :func:`fedhull.geometry.hull.hull`, exact and counter-clockwise.
    In other dimensions they are ascending, and correct up to rounding.

    Args:
        points: Points of the Poincare ball; a tensor may be on any device.
        c: Minus the curvature, 0 or more.

    Raises:
        TypeError: If ``points`` is no array or tensor of real numbers.
        ValueError: If a point does not lie in the open ball.

    Example:
        >>> extreme_points(np.array([[0.1], [-0.2], [0.3]]))
        array([1, 2])
    """
    points = as_points(points)
    require_ball(points, c=c)
    dim = points.shape[1]
    if dim == 2:
        return hull(points, c=c)
    first = np.sort(np.unique(points, axis=0, return_index=True)[1])
    if not len(first):
        return first
    flat = klein(points[first], c=c)
    if dim == 1:
        return np.unique(first[[flat.argmin(), flat.argmax()]])
    if dim <= QHULL_DIM and len(first) > dim + 1:
        try:
            return np.sort(first[ConvexHull(flat).vertices])
        except QhullError:  # all points lie in one hyperplane
            pass
    return first[_by_programs(flat)]


def _by_programs(flat: Float[np.ndarray, "n dim"]) -> Int[np.ndarray, " m"]:
    """Indices of the points that are not convex combinations of the others."""
    outwards = flat - flat.mean(axis=0)
    reach = outwards @ outwards.T
    alone = (reach == reach.max(axis=1, keepdims=True)).sum(axis=1) == 1
    certain = set(reach.argmax(axis=1)[alone].tolist())
    found = [i for i in range(len(flat)) if i in certain or not is_combination(flat, i)]
    return np.array(found, dtype=np.int64)


def is_combination(flat: Float[np.ndarray, "n dim"], index: int) -> bool:
    """True if a point is a convex combination of the others, by a linear program.

    Args:
        flat: Points of Euclidean space, for example of the Klein model.
        index: Index of the point.

    Example:
        >>> is_combination(np.array([[0.0], [1.0], [2.0]]), 1)
        True
    """
    others = np.delete(flat, index, axis=0)
    if not len(others):
        return False
    equalities = np.vstack([others.T, np.ones(len(others))])
    target = np.append(flat[index], 1.0)
    solved = linprog(np.zeros(len(others)), A_eq=equalities, b_eq=target, method="highs")
    return solved.status == 0
