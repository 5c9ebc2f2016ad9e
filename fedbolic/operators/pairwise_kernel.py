"""Pairwise distances by the kernels for CUDA, and their derivatives."""

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic import kernels
from fedbolic.formulas.analytic import gap_length
from fedbolic.formulas.ball_formulas import ball_gap
from fedbolic.formulas.lorentz_formulas import hyperboloid_gap
from fedbolic.formulas.numerics import dot
from fedbolic.formulas.registrar import takes_kernels
from fedbolic.operators.kernel_function import KernelFunction, by_kernel

KnownPoints: TypeAlias = tuple[Tensor, Tensor]
"""Coordinates within the range of a manifold, and time coordinates in radii or gaps."""


def has_kernel(x: Tensor, y: Tensor) -> bool:
    """True if the distances between points are computed by a kernel, also under ``vmap``."""
    return takes_kernels() and kernels.replace_operators(x, y)


def kernel_distances(
    points: KnownPoints, others: KnownPoints, c: Tensor | float, *, hyperboloid: bool
) -> Tensor:
    """All distances between two sets of points, differentiable any number of times.

    First derivatives are kernels, too; higher ones are those of torch's operators.

    Args:
        points: Coordinates of shape ``(..., n, d)`` and numbers of shape ``(..., n, 1)``.
        others: The same of ``m`` other points.
        c: Minus the sectional curvature, one value per matrix.
        hyperboloid: True for points of the hyperboloid, False for those of the ball.
    """
    if not isinstance(c, Tensor):
        c = points[0].new_full((), c)
    return _distances(hyperboloid, *points, *others, c.reshape(c.shape or (1, 1)))


class _Distances(KernelFunction):
    """The matrix of distances of :func:`kernel_distances`."""

    @override
    @classmethod
    def values(cls, settings: Any, tensors: Sequence[Tensor], *, kept: bool) -> tuple[Tensor, ...]:
        from fedbolic.kernels.pairs import pair_distances

        x, a, y, b, c = tensors
        return (pair_distances((x, a), (y, b), c, hyperboloid=settings),)

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
        from fedbolic.kernels.pairs import pair_gradients

        x, a, y, b, c = tensors
        some = pair_gradients(grad, (x, a), (y, b), c, hyperboloid=settings, curved=needed[-1])
        more = pair_gradients(grad.mT, (y, b), (x, a), c, hyperboloid=settings)
        if settings:
            by_x = _with_radial(x, a, some.vector, some.radial, c)
            by_y = _with_radial(y, b, more.vector, more.radial, c)
            return by_x, None, by_y, None, some.curvature
        return some.vector, some.radial, more.vector, more.radial, some.curvature

    @override
    @staticmethod
    def implied(settings: Any) -> Collection[int]:
        return (1, 3) if settings else ()  # time coordinates are functions of the others

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        x, a, y, b, c = tensors
        x, a = x.unsqueeze(-2), a.unsqueeze(-2)
        y, b = y.unsqueeze(-3), b.unsqueeze(-3)
        c = c.unsqueeze(-1)
        q = hyperboloid_gap(x, a, y, b, c) if settings else ball_gap(x, a, y, b)
        return gap_length(q, c).squeeze(-1)


_distances = by_kernel(_Distances)


def _with_radial(x: Tensor, a: Tensor, vector: Tensor, radial: Tensor, c: Tensor) -> Tensor:
    """Half the vector, with the component along the point that it should have."""
    return torch.addcmul(vector, c * a.pow(-2) * (radial - dot(x, vector)), x) / 2
