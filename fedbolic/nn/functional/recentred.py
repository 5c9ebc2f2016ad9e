"""Batches moved between their centroid and the origin: kernels on CUDA, operators elsewhere."""

from jaxtyping import Float
from torch import Tensor

from fedbolic.formulas.analytic import radial_sinh
from fedbolic.formulas.centroids import (
    centroid,
    image_points,
    images_of,
    mean_image,
    normalized_weights,
)
from fedbolic.formulas.lorentz_formulas import hyperboloid_read
from fedbolic.formulas.numerics import bounded
from fedbolic.formulas.registrar import points, replaced_by, with_kernel
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import with_space_part
from fedbolic.nn.functional.tangent import (
    exp_factors,
    from_origin,
    length_of,
    timed_points,
    to_origin,
    with_time,
)


@with_kernel("boosts.boost", axes=2)
def _boost(
    x: Tensor, mean: Tensor, c: Tensor | float, *, hyperboloid: bool, outward: bool
) -> Tensor:
    """Points moved as the origin is moved to a mean, or their images as a mean to the origin.

    Args:
        x: Images if ``outward``, otherwise points, of shape ``(..., n, width)``; they are clamped
            to the manifold.
        mean: The tangent at the origin that leads to the mean if ``outward``, otherwise the image
            of the mean, of shape ``(..., 1, d)``.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)``.
        hyperboloid: True for points of the hyperboloid, False for those of the ball.
        outward: True if the origin is moved, False if the mean.
    """
    if not outward:
        images = images_of(x, c, hyperboloid=hyperboloid, timed=hyperboloid)
        return to_origin(c, images, hyperboloid_read(mean, c, mean.dtype))
    mean = radial_sinh(mean, c)
    s = from_origin(c, hyperboloid_read(x, c, x.dtype), hyperboloid_read(mean, c, mean.dtype))
    return image_points(s, c, hyperboloid=hyperboloid)


def _centred_by_kernels(
    space: Lorentz | Poincare, points: Tensor, mean: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    x, c, hyperboloid = bounded(points), bounded(space.c), isinstance(space, Lorentz)
    if mean is None:
        model = {"hyperboloid": hyperboloid, "timed": hyperboloid}
        base = centroid(x, normalized_weights(x, None), c, **model, images=True)
    else:
        base = mean.unsqueeze(0)
    return base, _boost(x, base, c, hyperboloid=hyperboloid, outward=False)


@replaced_by(_centred_by_kernels, points())
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
    s, time = timed_points(space, points)
    if mean is None:
        base = mean_image(s, time, normalized_weights(s, None), space.c)
    else:
        base = mean.unsqueeze(0)
    return base, to_origin(space.c, (s, time), with_time(space, base))


def _recentred_by_kernel(space: Lorentz | Poincare, s: Tensor, tangent: Tensor | None) -> Tensor:
    base = s.new_zeros(s.shape[-1]) if tangent is None else bounded(tangent)
    hyperboloid = isinstance(space, Lorentz)
    return _boost(s, base, bounded(space.c), hyperboloid=hyperboloid, outward=True)


@replaced_by(_recentred_by_kernel, points())
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
    if tangent is not None:
        base, scaled = bounded(tangent), with_time(space, s)
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
    w = normalized_weights(s, weights)
    return centroid(s, w, space.c, hyperboloid=True, timed=False, images=True)
