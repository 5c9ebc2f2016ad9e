"""Centroids of sets of points, and the points of the hyperboloid that stand for points of a set."""

from jaxtyping import Float
from torch import Tensor

from fedbolic.formulas.ball_formulas import ball_read
from fedbolic.formulas.lorentz_formulas import (
    hyperboloid_gap,
    hyperboloid_point_of,
    hyperboloid_read,
)
from fedbolic.formulas.numerics import square
from fedbolic.formulas.registrar import points, with_kernel


def normalized_weights(
    points: Float[Tensor, "*#batch n ambient"], weights: Float[Tensor, "*#batch n"] | None
) -> Float[Tensor, "*#batch _ 1"]:
    """Weights that sum to 1 with an axis for the coordinates, or one number for equal weights.

    Raises:
        ValueError: If there are no points.
    """
    if not points.shape[-2]:
        raise ValueError(
            "points must be one or more along axis -2, got none in shape "
            f"{tuple(points.shape)}: no points have no mean, so leave empty sets out"
        )
    if weights is None:
        return points.new_full((1, 1), 1 / points.shape[-2])
    weights = weights.to(points.dtype).unsqueeze(-1)
    return weights / weights.sum(-2, keepdim=True)


def mean_image(
    s: Float[Tensor, "*#batch n dim"],
    time: Float[Tensor, "*#batch n 1"],
    w: Float[Tensor, "*#batch _ 1"],
    c: Tensor | float,
) -> Float[Tensor, "*#batch 1 dim"]:
    r"""Space coordinates of the Lorentzian centroid of points on the hyperboloid.

    The weighted mean :math:`m` of the points over its Minkowski length in radii, at least 1:

    .. math:: \sqrt{1 + 4 Q + 4 Q^2 / C^2}, \quad Q = \sum_i w_i \sinh^2(\sqrt c \, d_i / 2)

    The direct formula is a difference of squares, which cancels far from the origin. Let :math:`p`
    be the point of the hyperboloid with the space coordinates of the mean. The mean is :math:`p`
    plus a vector along the time axis, and its length follows from the distances :math:`d_i` between
    the points and :math:`p`, whose time coordinate in radii is :math:`C`.

    Args:
        s: Space coordinates of the points.
        time: Time coordinates of the points, in radii.
        w: Weights from :func:`normalized_weights`.
        c: Minus the sectional curvature, 0 or more.
    """
    mean = (w * s).sum(-2, keepdim=True)
    mean_time = (c * square(mean) + 1).sqrt()
    spread = 2 * c * (w * hyperboloid_gap(s, time, mean, mean_time, c)).sum(-2, keepdim=True)
    return mean / (2 * spread + (spread / mean_time).square() + 1).sqrt()


@with_kernel("centroids.set_centroid", takes=points(), axes=2)
def centroid(
    x: Tensor, w: Tensor, c: Tensor | float, *, hyperboloid: bool, timed: bool, images: bool
) -> Tensor:
    """Centroids, of shape ``(..., 1, width)``.

    Args:
        x: Points, of shape ``(..., n, width)``, which are clamped to the manifold.
        w: Weights from :func:`normalized_weights`.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)`` if it is a tensor.
        hyperboloid: True for the hyperboloid, False for the ball.
        timed: True if the first coordinate is a time coordinate, which is not read.
        images: True for space coordinates on the hyperboloid as the result, False for points.
    """
    # a view, so that the derivatives of the mean are summed before that of its point is added
    inner = c.view_as(c) if hyperboloid and isinstance(c, Tensor) else c
    mean = mean_image(*images_of(x, inner, hyperboloid=hyperboloid, timed=timed), w, inner)
    return mean if images else image_points(mean, c, hyperboloid=hyperboloid)


def images_of(
    x: Tensor, c: Tensor | float, *, hyperboloid: bool, timed: bool
) -> tuple[Tensor, Tensor]:
    """Space coordinates on the hyperboloid and time coordinates in radii of clamped points.

    Args:
        x: Points.
        c: Minus the sectional curvature, with an axis for the coordinates if it is a tensor.
        hyperboloid: True for the hyperboloid, False for the ball.
        timed: True if the first coordinate is a time coordinate, which is not read.
    """
    if hyperboloid:
        return hyperboloid_read(x[..., int(timed) :], c, x.dtype)
    x, gap = ball_read(x, c, x.dtype)
    factor = 2 / gap
    return factor * x, factor - 1


def image_points(s: Tensor, c: Tensor | float, *, hyperboloid: bool) -> Tensor:
    """Points whose images have the given space coordinates, clamped to the manifold.

    Args:
        s: Space coordinates on the hyperboloid.
        c: Minus the sectional curvature, with an axis for the coordinates if it is a tensor.
        hyperboloid: True for points of the hyperboloid, False for those of the ball.
    """
    if hyperboloid:
        return hyperboloid_point_of(s, c, s.dtype)
    return ball_read(s / (1 + (1 + c * square(s)).sqrt()), c, s.dtype)[0]
