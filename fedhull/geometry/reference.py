"""Reference points for the hyperplane between two hulls."""

from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.core import check
from fedbolic.manifolds import Lorentz, Poincare, to_lorentz, to_poincare
from fedhull.geometry.distance import sinh_half_distance
from fedhull.geometry.hull import klein

Reference: TypeAlias = Literal["vertices", "exact"]


def midpoints(
    one: Float[np.ndarray, "n dim"],
    other: Float[np.ndarray, "m dim"],
    *,
    c: float = 1.0,
    pairs: int = 1,
    reference: Reference = "vertices",
) -> Float[np.ndarray, "k dim"]:
    r"""Geodesic midpoints of the nearest pairs of points of two hulls, nearest pair first.

    .. math:: p = \exp_x(\tfrac12 \log_x y)

    ``vertices`` uses pairs of corners (paper), which may be farther apart than the hulls are.
    ``exact`` also uses points inside sides, so that the distance of the first pair is that of the
    hulls: unlike in Euclidean space, two sides may be nearest where neither has a corner. If the
    hulls overlap or are not planar, ``exact`` falls back to ``vertices``.

    Args:
        one: Corners of a hull; in the plane, counter-clockwise.
        other: Corners of the other hull.
        c: Minus the curvature, 0 or more.
        pairs: Largest number of pairs, at least 1.
        reference: Kind of pairs.

    Raises:
        ValueError: If a hull has no corner, or ``reference`` is unknown.

    References:
        Prakash et al. (2024), Sec. 3 and 5.7, arXiv:2308.06895.

    Example:
        >>> midpoints(np.array([[0.5, 0.0]]), np.array([[-0.5, 0.0], [0.0, 0.9]])).round(9)
        array([[0., 0.]])
    """
    if not (len(one) and len(other)):
        raise ValueError("both hulls need a corner: a class without points has no reference point")
    check.one_of(get_args(Reference), reference=reference)
    planar = one.shape[1] == 2 and c > 0
    if reference == "exact" and planar and not overlap(one, other, c=c):
        x, y = _nearest_of_sides(one, other, pairs, c)
    else:
        x, y = _nearest_corners(one, other, pairs, c)
    space = Poincare(c)
    return space.expmap(x, space.logmap(x, y) / 2).numpy()


def _nearest_corners(
    one: np.ndarray, other: np.ndarray, pairs: int, c: float
) -> tuple[Tensor, Tensor]:
    """Nearest pairs of corners; of equally near pairs, the first."""
    apart = sinh_half_distance(one[:, None], other, c=c).ravel()
    chosen = apart.argpartition(min(pairs, len(apart)) - 1)[:pairs]
    chosen = chosen[np.lexsort((chosen, apart[chosen]))]
    first, second = np.divmod(chosen, len(other))
    return torch.from_numpy(one[first]), torch.from_numpy(other[second])


def _nearest_of_sides(
    one: np.ndarray, other: np.ndarray, pairs: int, c: float
) -> tuple[Tensor, Tensor]:
    """Nearest pairs of points on the sides of two hulls, corners included."""
    space = Poincare(c)
    x, y = (to_lorentz(space, torch.from_numpy(of)) * c**0.5 for of in (one, other))
    on_y, on_x = _feet(x, y), _feet(y, x)  # from corners to sides
    across_x, across_y = _perpendicular_feet(x, y)
    starts = torch.cat([x.repeat_interleave(len(y), dim=0), on_x.flatten(0, 1), across_x])
    ends = torch.cat([on_y.flatten(0, 1), y.repeat_interleave(len(x), dim=0), across_y])
    first, second = (to_poincare(Lorentz(c), of / c**0.5) for of in (starts, ends))
    order = space.dist(first, second).topk(min(pairs, len(first)), largest=False).indices
    return first[order], second[order]


def _feet(points: Float[Tensor, "n 3"], polygon: Float[Tensor, "m 3"]) -> Float[Tensor, "n m 3"]:
    """Nearest point on each side of a closed polygon to each of the given points.

    Args:
        points: Points of the hyperboloid of curvature -1, outside the polygon.
        polygon: Corners of the polygon in order; a single corner is a side of length 0.
    """
    a, b = polygon, polygon.roll(-1, dims=0)
    on_a, on_b = _between(points[:, None], a, b)
    inside = (on_a > 0) & (on_b > 0) & (_product(a, b) > 1)
    near_a = _product(points[:, None], a) <= _product(points[:, None], b)
    on_a = torch.where(inside, on_a, near_a.to(on_a.dtype))
    on_b = torch.where(inside, on_b, (~near_a).to(on_b.dtype))
    return _unit(on_a[..., None] * a + on_b[..., None] * b)


def _perpendicular_feet(
    one: Float[Tensor, "n 3"], other: Float[Tensor, "m 3"]
) -> tuple[Float[Tensor, "k 3"], Float[Tensor, "k 3"]]:
    """Ends of the common perpendiculars between sides, if both ends lie within their sides.

    Args:
        one: Corners of a polygon in order, on the hyperboloid of curvature -1.
        other: Corners of the other polygon.
    """
    (a, b), (p, q) = _sides(one), _sides(other)
    m, n = _normal(a, b)[:, None], _normal(p, q)[None]
    # above 1 in absolute value if the lines neither meet nor are asymptotic
    along = -_product(m, n)[..., None]
    apart = along[..., 0].abs() > 1
    on_one, on_other = _unit(n - along * m), _unit(m - along * n)
    within = [
        (share > 0)
        for ends in (_between(on_one, a[:, None], b[:, None]), _between(on_other, p, q))
        for share in ends
    ]
    chosen = torch.stack([apart, *within]).all(dim=0)
    return on_one[chosen], on_other[chosen]


def _sides(polygon: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends of the sides with positive length."""
    ends = polygon.roll(-1, dims=0)
    long = _product(polygon, ends) > 1
    return polygon[long], ends[long]


def _between(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients of ``a`` and ``b``, up to a factor, in the foot of ``x`` on their line."""
    near_a, near_b, far = _product(x, a), _product(x, b), _product(a, b)
    return far * near_b - near_a, far * near_a - near_b


def _normal(a: Tensor, b: Tensor) -> Tensor:
    """Unit normal of the line through two points, orthogonal to both in the Lorentz product."""
    cross = torch.linalg.cross(a, b) * torch.tensor([-1.0, 1.0, 1.0]).to(a)
    return cross / (-_product(cross, cross)).sqrt()[..., None]


def _unit(x: Tensor) -> Tensor:
    """Point of the hyperboloid on the line of a timelike vector; arbitrary for other vectors."""
    length = _product(x, x).clamp_min(torch.finfo(x.dtype).tiny).sqrt()[..., None]
    return x / length * x[..., :1].sign()


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Minus the Lorentz product; for points, the hyperbolic cosine of their distance."""
    return x[..., 0] * y[..., 0] - (x[..., 1:] * y[..., 1:]).sum(dim=-1)


def overlap(
    one: Float[np.ndarray, "n 2"], other: Float[np.ndarray, "m 2"], *, c: float = 1.0
) -> bool:
    """True if two planar hulls have a point in common, up to rounding.

    By the separating axis theorem in the Klein model, they have none if and only if their
    projections onto the normal of a side are disjoint, or onto a side if both lie on one geodesic.

    Args:
        one: Corners of a hull, counter-clockwise.
        other: Corners of the other hull.
        c: Minus the curvature, 0 or more.

    Example:
        >>> square = np.array([[0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5], [0.5, -0.5]])
        >>> overlap(square, square * 0.1), overlap(square, square * 0.1 + 0.6)
        (True, False)
    """
    x, y = klein(one, c=c), klein(other, c=c)
    sides = np.concatenate([np.roll(x, -1, axis=0) - x, np.roll(y, -1, axis=0) - y])
    normals = np.stack([-sides[:, 1], sides[:, 0]], axis=1)
    axes = np.concatenate([sides, normals, [y.mean(axis=0) - x.mean(axis=0)]])
    on_x, on_y = axes @ x.T, axes @ y.T
    apart = (on_x.max(axis=1) < on_y.min(axis=1)) | (on_y.max(axis=1) < on_x.min(axis=1))
    return not bool(apart.any())
