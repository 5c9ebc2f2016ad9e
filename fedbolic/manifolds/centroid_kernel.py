"""Centroids of sets of points by the kernels for CUDA, and their derivatives."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.ball_formulas import ball_read
from fedbolic.formulas.lorentz_formulas import hyperboloid_point_of, hyperboloid_read
from fedbolic.formulas.numerics import square
from fedbolic.manifolds import pairwise
from fedbolic.operators.kernel_function import KernelFunction, by_kernel


class CentroidForm(NamedTuple):
    """The points of a set, and the result.

    Args:
        hyperboloid: True for the hyperboloid, False for the ball.
        timed: True if the first coordinate is a time coordinate, which is not read.
        images: True for space coordinates on the hyperboloid as the result, False for points.
    """

    hyperboloid: bool
    timed: bool
    images: bool


def kernel_centroid(
    points: Tensor, weights: Tensor | None, c: Tensor | float, form: CentroidForm
) -> Tensor:
    """Centroids, of shape ``(..., 1, width)``, differentiable any number of times.

    First derivatives are kernels, too; higher ones are those of torch's operators.

    Args:
        points: Points, of shape ``(..., n, width)``, which are clamped to the manifold.
        weights: Numbers of 0 or more, not all 0, of shape ``(..., n)``; all equal by default.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)`` if it is a tensor.
        form: Model, and what the results are.
    """
    c = c if isinstance(c, Tensor) else points.new_full((1, 1), c)
    if weights is None:
        w = points.new_full((1, 1), 1 / points.shape[-2])
    else:
        w = pairwise.normalized_weights(points, weights)
    return _centroids(form, points, w, c)


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
    return 2 / gap * x, 2 / gap - 1


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


class _Centroids(KernelFunction):
    """The centroids of :func:`kernel_centroid`, for weights that sum to 1."""

    @override
    @classmethod
    def values(cls, settings: Any, tensors: Sequence[Tensor], *, kept: bool) -> tuple[Tensor, ...]:
        from fedbolic.kernels.centroids import set_centroids

        found, known = set_centroids(*tensors, **settings._asdict())
        return (found, known) if kept else (found,)

    @override
    @classmethod
    def gradients(
        cls,
        settings: Any,
        grad: Tensor,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needed: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:
        from fedbolic.kernels.centroids import centroid_gradients

        return centroid_gradients(
            grad, *kept, *tensors, **settings._asdict(), weighted=needed[1], curved=needed[2]
        )

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        x, w, c = tensors
        w = w.expand(*w.shape[:-2], x.shape[-2], 1).squeeze(-1)
        given = images_of(x, c, hyperboloid=settings.hyperboloid, timed=settings.timed)
        found = pairwise.centroid(*given, w, c)
        return (
            found if settings.images else image_points(found, c, hyperboloid=settings.hyperboloid)
        )


_centroids = by_kernel(_Centroids)
