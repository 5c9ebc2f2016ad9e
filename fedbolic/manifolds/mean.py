"""Means along geodesics."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.manifolds import pairwise
from fedbolic.manifolds.manifold import Manifold, PointTensor, Scalars
from fedbolic.manifolds.numerics import per_point, to_point, unit

_NEAR = 1e-6
"""Squared distance in radii below which the Hessian is taken as 1; it differs by a third of it."""


@to_point
def midpoint(
    space: Manifold, x: PointTensor, y: PointTensor, share: float | Scalars = 0.5
) -> PointTensor:
    """The point of the geodesic from ``x`` to ``y`` at a share of its length.

    Args:
        space: Where the points lie.
        x: The point at share 0.
        y: The point at share 1.
        share: A number or one per point; outside [0, 1] the geodesic is prolonged.

    Example:
        >>> from fedbolic.manifolds import Euclidean
        >>> midpoint(Euclidean(), torch.zeros(1), torch.ones(1), 0.25)
        tensor([0.2500])
    """
    share = share.unsqueeze(-1) if isinstance(share, Tensor) else share
    return space.expmap(x, share * space.logmap(x, y))


@to_point
def frechet_mean(
    space: Manifold,
    points: Float[Tensor, "*#batch n ambient"],
    weights: Float[Tensor, "*#batch n"] | None = None,
    *,
    steps: int = 8,
) -> Float[Tensor, "*#batch ambient"]:
    r"""The point with the least weighted sum of squared distances to ``points``.

    .. math:: \bar x = \arg\min_x \sum_i w_i \, d(x, x_i)^2

    Unique where curvature is not positive. Found by Newton's method from the centroid, on the
    Hessian :math:`\sum_i w_i (\kappa_i \coth \kappa_i \, (1 - v_i v_i^T) + v_i v_i^T)`, with
    :math:`v_i` the unit tangents to the points and :math:`\kappa_i` their distances in radii.

    Args:
        space: Where the points lie.
        points: At least one.
        weights: 0 or more, not all 0, and they need not sum to one; all equal if not given.
        steps: Newton steps; 8 reach the rounding of float64 for points within 10 radii.

    Returns:
        A point of ``space``, differentiable in all arguments, the curvature included.

    References:
        Pennec (2018), Sec. 4, arXiv:1805.11436, for the Hessian; Lou et al. (2020),
        arXiv:2003.00335, for the problem.

    Example:
        >>> from fedbolic.manifolds import Lorentz
        >>> x = Lorentz().origin(2, 3)
        >>> torch.equal(frechet_mean(Lorentz(), x), x[0])
        True
    """
    w = pairwise.normalized_weights(points, weights)
    mean = space.centroid(points, weights)
    for _ in range(steps):
        mean = _newton(space, pairwise.per_set(space), points, w, mean)
    return mean


def _newton(space: Manifold, around: Manifold, points: Tensor, w: Tensor, mean: Tensor) -> Tensor:
    """One step; tangents at the mean are carried to the origin, where axes are orthogonal."""
    base = mean.unsqueeze(-2)
    origin = torch.zeros_like(base)
    eye = torch.eye(points.shape[-1], dtype=points.dtype, device=points.device)
    toward = unit(around.transp(base, origin, around.logmap(base, points)))
    away = around.dist(base, points).unsqueeze(-1)  # far out, better than the length of logmap
    t = per_point(around.c, points) * away.square()
    there = t > _NEAR
    radii = torch.where(there, t, 1.0).sqrt()
    stretch = torch.where(there, radii / radii.tanh() - 1, 0.0)
    across = (w * stretch).sum(-2, keepdim=True) * eye - (w * stretch * toward).mT @ toward
    step = torch.linalg.solve(eye + across, (w * away * toward).sum(-2))
    metric = space.norm(origin.squeeze(-2), eye[-1]).unsqueeze(-1)
    return space.expmap(mean, space.transp0(mean, step / metric))
