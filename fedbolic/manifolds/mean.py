"""Geodesic midpoints and Fréchet means."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.formulas.centroids import normalized_weights
from fedbolic.formulas.fused import is_traced
from fedbolic.formulas.numerics import per_point, to_point, unit
from fedbolic.manifolds import pairwise
from fedbolic.manifolds.lorentz import Lorentz
from fedbolic.manifolds.manifold import Manifold, PointTensor, Scalars
from fedbolic.manifolds.product import Product
from fedbolic.manifolds.stereographic import Stereographic

_NEAR = 1e-6
"""Squared distance in radii below which ``k coth(k)`` is taken as 1; the error is a third of it."""

_DIFFERENTIATED = 2
"""Newton steps at the end that are differentiated.

The derivative of a step with respect to its start is 0 at the mean, so that one step has the
gradient of the mean, by implicit differentiation, and two have its second derivatives.
"""

_LEAST_BEND = 0.1
"""Least ``k cot(k)`` of points on a sphere, of 1.43 radii: the Hessian stays positive."""


@to_point
def midpoint(
    space: Manifold, x: PointTensor, y: PointTensor, share: float | Scalars = 0.5
) -> PointTensor:
    """The point at a fraction of the geodesic from ``x`` to ``y``, by default the midpoint.

    Args:
        space: Space of the points.
        x: Point at ``share`` 0.
        y: Point at ``share`` 1.
        share: Fraction of the length, one number or one per point; outside [0, 1] the geodesic is
            extended.

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
    r"""Fréchet mean: the point with the least weighted sum of squared distances to ``points``.

    .. math:: \bar x = \arg\min_x \sum_i w_i \, d(x, x_i)^2

    The mean is unique because the curvature is not positive. It is computed by Newton's method from
    the centroid, with the Hessian
    :math:`\sum_i w_i (\kappa_i \coth \kappa_i \, (1 - v_i v_i^T) + v_i v_i^T)`, where :math:`v_i`
    are the unit tangents towards the points and :math:`\kappa_i` the distances in radii.

    On a sphere, the cotangent replaces the hyperbolic one. There the mean is unique for points
    within a quarter of a great circle of one point, and exact if all are within 1.43 radii of it.

    Args:
        space: Space of the points.
        points: One or more points.
        weights: Numbers of 0 or more, not all 0, of any total; all equal by default.
        steps: Most Newton steps; 8 reach float64 precision for points within 10 radii. On a CPU,
            those before the last two end where the mean no longer moves.

    Returns:
        A point of ``space``, differentiable in all arguments including the curvature. First and
        second derivatives are those of the last two steps, which are exact at the mean.

    References:
        Pennec (2018), Sec. 4, arXiv:1805.11436, for the Hessian; Lou et al. (2020),
        arXiv:2003.00335, for the Fréchet mean in deep learning.

    Example:
        >>> from fedbolic.manifolds import Lorentz
        >>> x = Lorentz().origin(2, 3)
        >>> torch.equal(frechet_mean(Lorentz(), x), x[0])
        True
    """
    if isinstance(space, Product):
        parts = space.each(lambda f, x: frechet_mean(f, x, weights, steps=steps), points)
        return space.join(parts)
    around, w = pairwise.per_set(space), normalized_weights(points, weights)
    step = partial(_newton, space, around, points, w)
    with torch.set_grad_enabled(torch.is_grad_enabled() and steps <= _DIFFERENTIATED):
        mean = _settled(space, step, space.centroid(points, weights), steps - _DIFFERENTIATED)
    for _ in range(min(steps, _DIFFERENTIATED)):
        mean = step(mean)
    return mean


def _settled(space: Manifold, step: Callable[[Tensor], Tensor], mean: Tensor, steps: int) -> Tensor:
    """The mean after some steps, or after the first one that is known to be short enough."""
    for _ in range(steps):
        start, mean = mean, step(mean)
        if _is_settled(space, start, mean):
            break
    return mean


def _is_settled(space: Manifold, start: Tensor, mean: Tensor) -> bool:
    """True if a step is known to be so short that the error after it, its square, is a rounding."""
    if mean.device.type != "cpu" or is_traced(mean, start, space.c):
        return False
    radii = abs(space.c) * space.dist(start.detach(), mean.detach()).square()
    return bool((radii <= torch.finfo(mean.dtype).eps).all())


def _newton(space: Manifold, around: Manifold, points: Tensor, w: Tensor, mean: Tensor) -> Tensor:
    """One Newton step, computed at the origin, where the coordinate axes are orthogonal."""
    base = mean.unsqueeze(-2)
    origin = torch.zeros_like(base)
    eye = torch.eye(points.shape[-1], dtype=points.dtype, device=points.device)
    toward = around.logmap(base, points)
    # in a conformal model the transport only multiplies; far out on a sphere, by what tames lengths
    if isinstance(space, Lorentz | Stereographic):
        toward = around.transp(base, origin, toward)
    toward = unit(toward)
    # far from the origin, dist is more accurate than the length of logmap
    away = around.dist(base, points).unsqueeze(-1)
    t = per_point(around.c, points) * away.square()
    there = t > _NEAR
    radii = torch.where(there, t, 1.0).sqrt()
    stretch = torch.where(there, radii / radii.tanh() - 1, 0.0)
    if isinstance(space, Stereographic):  # the only space that may be a sphere
        there = t < -_NEAR
        radii = torch.where(there, -t, 1.0).sqrt()
        bent = (radii / radii.tan()).clamp_min(_LEAST_BEND) - 1
        stretch = torch.where(there, bent, stretch)
    across = (w * stretch).sum(-2, keepdim=True) * eye - (w * stretch * toward).mT @ toward
    step = torch.linalg.solve(eye + across, (w * away * toward).sum(-2))
    metric = space.norm(origin.squeeze(-2), eye[-1]).unsqueeze(-1)
    return space.expmap(mean, space.transp0(mean, step / metric))
