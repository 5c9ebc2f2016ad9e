"""Graham scan in the Poincare disc (Algorithm 1 of the paper), as a reference for the fast hull."""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedbolic.manifolds import Poincare
from fedhull.geometry.hull import require_ball

COLLINEAR = 1e-12
"""Sine of the largest turn between unit directions that counts as collinear."""


def graham_scan(points: Float[np.ndarray, "n 2"], *, c: float = 1.0) -> Int[np.ndarray, " m"]:
    """Indices of the extreme points of the hyperbolic convex hull, counter-clockwise.

    The scan starts at the point farthest from the origin, visits the others by the angle of their
    logarithms there, and removes points without a left turn. It works in floating point and visits
    every point; :func:`fedhull.geometry.hull.hull` is exact and hundreds of times faster.

    Departs from the paper: only one of equal points is kept, so that every direction is defined.

    Args:
        points: Points of the Poincare disc.
        c: Minus the curvature, above 0.

    Raises:
        ValueError: If a point does not lie in the open disc.

    References:
        Prakash et al. (2024), Algorithms 1 and 2, arXiv:2308.06895.

    Example:
        >>> graham_scan(np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5], [0.1, 0.1]]))
        array([0, 1, 2])
    """
    require_ball(points, c=c, dim=2)
    first = np.sort(np.unique(points, axis=0, return_index=True)[1])
    x, space = torch.from_numpy(np.ascontiguousarray(points[first], dtype=float)), Poincare(c)
    if len(x) < 3:
        return first
    base = int(x.square().sum(dim=1).argmax())
    stack: list[int] = [base]
    for new in _by_angle(x, base, space):
        while len(stack) > 1 and _turn(x, stack[-2], stack[-1], new, space) <= COLLINEAR:
            stack.pop()
        stack.append(new)
    found = first[stack]
    return np.roll(found, -int(found.argmin()))


def _by_angle(x: Float[Tensor, "n 2"], base: int, space: Poincare) -> list[int]:
    """Indices of the other points by angle at the base, with the farthest in each direction."""
    log = space.logmap(x[base], x)
    inwards = -x[base] / x[base].norm()
    # a quarter turn clockwise: no point is farther from the origin, so all angles are above 0
    tangent = torch.stack([inwards[1], -inwards[0]])
    angles = torch.atan2(log @ inwards, log @ tangent).tolist()
    lengths = log.norm(dim=1).tolist()
    others = sorted((i for i in range(len(x)) if i != base), key=lambda i: (angles[i], lengths[i]))
    kept: list[int] = []
    for i in others:
        if kept and math.isclose(angles[i], angles[kept[-1]], abs_tol=COLLINEAR):
            kept[-1] = max(kept[-1], i, key=lengths.__getitem__)
        else:
            kept.append(i)
    return kept


def _turn(x: Float[Tensor, "n 2"], i: int, j: int, k: int, space: Poincare) -> float:
    """Sine of the turn from ``j`` to ``k`` as seen from ``i``: CCW of the paper."""
    u, v = (direction / direction.norm() for direction in space.logmap(x[i], x[[j, k]]))
    return float(u[0] * v[1] - u[1] * v[0])
