"""Translations along geodesics by the kernels for CUDA, and their derivatives."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.analytic import radial_sinh
from fedbolic.formulas.lorentz_formulas import hyperboloid_read
from fedbolic.manifolds.centroid_kernel import image_points, images_of
from fedbolic.nn.functional.boost import from_origin, to_origin
from fedbolic.operators.kernel_function import CurvedKernel, Way, by_kernel


def kernel_boost(x: Tensor, mean: Tensor, c: Tensor, *, hyperboloid: bool, outward: bool) -> Tensor:
    """Points moved as the origin is moved to a mean, or their images as a mean to the origin.

    They are differentiable any number of times. First derivatives are kernels, too; higher ones are
    those of torch's operators.

    Args:
        x: Images if ``outward``, otherwise points, of shape ``(..., n, width)``; they are clamped
            to the manifold.
        mean: The tangent at the origin that leads to the mean if ``outward``, otherwise the image
            of the mean, of shape ``(..., 1, d)``.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)``.
        hyperboloid: True for points of the hyperboloid, False for those of the ball.
        outward: True if the origin is moved, False if the mean.
    """
    return _boosts(Way(hyperboloid, outward), x, mean, c)


class _Boosts(CurvedKernel):
    """The translations of :func:`kernel_boost`."""

    @override
    @staticmethod
    def kernels() -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor | None, ...]]]:
        from fedbolic.kernels.boosts import boost_gradients, boosted_sets

        return boosted_sets, boost_gradients

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        (hyperboloid, outward), (x, mean, c) = settings, tensors
        if not outward:
            points = images_of(x, c, hyperboloid=hyperboloid, timed=hyperboloid)
            return to_origin(c, points, hyperboloid_read(mean, c, mean.dtype))
        mean = radial_sinh(mean, c)
        s = from_origin(c, hyperboloid_read(x, c, x.dtype), hyperboloid_read(mean, c, mean.dtype))
        return image_points(s, c, hyperboloid=hyperboloid)


_boosts = by_kernel(_Boosts)
