"""Centroids of sets of points by the kernels for CUDA, and their derivatives."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds import pairwise
from fedbolic.manifolds.ball_formulas import ball_read
from fedbolic.manifolds.kernel_function import KernelFunction, by_kernel
from fedbolic.manifolds.lorentz_formulas import hyperboloid_read


def kernel_centroid(
    points: Tensor, weights: Tensor | None, c: Tensor | float, *, hyperboloid: bool, timed: bool
) -> Tensor:
    """Images of centroids on the hyperboloid, of shape ``(..., 1, d)``, as ``pairwise.centroid``.

    They are differentiable any number of times. First derivatives are kernels, too; higher ones are
    those of torch's operators.

    Args:
        points: Points, of shape ``(..., n, width)``, which are clamped to the manifold.
        weights: Numbers of 0 or more, not all 0, of shape ``(..., n)``; all equal by default.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)`` if it is a tensor.
        hyperboloid: True for the hyperboloid, False for the ball.
        timed: True if the first coordinate is a time coordinate, which is not read.
    """
    c = c if isinstance(c, Tensor) else points.new_full((1, 1), c)
    if weights is None:
        w = points.new_full((1, 1), 1 / points.shape[-2])
    else:
        w = pairwise.normalized_weights(points, weights)
    return _centroids((hyperboloid, timed), points, w, c)


def images(
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


class _Centroids(KernelFunction):
    """The centroids of :func:`kernel_centroid`, for weights that sum to 1."""

    @override
    @staticmethod
    def values(settings: Any, tensors: Sequence[Tensor], *, kept: bool) -> tuple[Tensor, ...]:
        from fedbolic.kernels.centroids import centroids

        hyperboloid, timed = settings
        found, known = centroids(*tensors, hyperboloid=hyperboloid, timed=timed)
        return (found, known) if kept else (found,)

    @override
    @staticmethod
    def gradients(
        settings: Any,
        grad: Tensor,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needed: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:
        from fedbolic.kernels.centroids import centroid_gradients

        (hyperboloid, timed), (known,) = settings, kept
        return centroid_gradients(
            grad, known, *tensors, hyperboloid=hyperboloid, timed=timed,
            weighted=needed[1], curved=needed[2],
        )  # fmt: skip

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        (hyperboloid, timed), (x, w, c) = settings, tensors
        w = w.expand(*w.shape[:-2], x.shape[-2], 1).squeeze(-1)
        return pairwise.centroid(*images(x, c, hyperboloid=hyperboloid, timed=timed), w, c)


_centroids = by_kernel(_Centroids)
