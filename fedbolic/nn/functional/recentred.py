"""Batches moved between their centroid and the origin: kernels on CUDA, operators elsewhere."""

from jaxtyping import Float
from torch import Tensor

from fedbolic.formulas.numerics import bounded
from fedbolic.manifolds import Lorentz, Poincare, pairwise
from fedbolic.manifolds.centroid_kernel import CentroidForm, kernel_centroid
from fedbolic.nn.functional.boost import from_origin, timed_points, to_origin, with_time
from fedbolic.nn.functional.boost_kernel import kernel_boost
from fedbolic.nn.functional.coordinates import with_space_part
from fedbolic.nn.functional.tangent import exp_factors, length_of
from fedbolic.operators.row_kernel import has_row_kernel


def centred(
    space: Lorentz | Poincare,
    points: Float[Tensor, "n ambient"],
    mean: Float[Tensor, " dim"] | None = None,
) -> tuple[Float[Tensor, "1 dim"], Float[Tensor, "n dim"]]:
    """The centroid of a batch, and the points moved as it is moved to the origin.

    Both are given by space coordinates on the hyperboloid.

    Args:
        space: Space of the points.
        points: Points in float32 or float64.
        mean: Space coordinates of another point to move to the origin.
    """
    base = None if mean is None else mean.unsqueeze(0)
    if has_row_kernel(points):
        x, c = bounded(points), _one_curvature(space, points)
        hyperboloid = isinstance(space, Lorentz)
        if base is None:
            base = kernel_centroid(x, None, c, CentroidForm(hyperboloid, hyperboloid, images=True))
        return base, kernel_boost(x, base, c, hyperboloid=hyperboloid, outward=False)
    s, time = timed_points(space, points)
    if base is None:
        base = pairwise.centroid(s, time, None, space.c)
    return base, to_origin(space.c, (s, time), with_time(space, base))


def recentred(
    space: Lorentz | Poincare,
    s: Float[Tensor, "n dim"],
    tangent: Float[Tensor, " dim"] | None,
) -> Float[Tensor, "n ambient"]:
    """Points moved as the origin is moved along a tangent.

    Args:
        space: Space of the result.
        s: Space coordinates on the hyperboloid.
        tangent: Tangent at the origin; ``None`` for 0.
    """
    base = None if tangent is None else bounded(tangent)
    if has_row_kernel(s):
        base = s.new_zeros(s.shape[-1]) if base is None else base
        c, hyperboloid = _one_curvature(space, s), isinstance(space, Lorentz)
        return kernel_boost(s, base.unsqueeze(0), c, hyperboloid=hyperboloid, outward=True)
    if base is not None:
        scaled = with_time(space, s)
        factor, time = exp_factors(space.c, length_of(base))
        s = from_origin(space.c, scaled, (factor * base, time))
    return with_space_part(space, s)


def weighted_centroid(
    space: Lorentz | Poincare, s: Float[Tensor, "n dim"], weights: Float[Tensor, " n"]
) -> Float[Tensor, "1 dim"]:
    """Centroid of points, all given by space coordinates on the hyperboloid.

    Args:
        space: Space of the points.
        s: Space coordinates.
        weights: Numbers of 0 or more, not all 0.
    """
    if has_row_kernel(s):
        form = CentroidForm(hyperboloid=True, timed=False, images=True)
        return kernel_centroid(s, weights, _one_curvature(space, s), form)
    return pairwise.centroid(*with_time(space, s), weights, space.c)


def _one_curvature(space: Lorentz | Poincare, x: Tensor) -> Float[Tensor, "1 1"]:
    c = bounded(space.c)
    return c.to(x.dtype).reshape(1, 1) if isinstance(c, Tensor) else x.new_full((1, 1), c)
