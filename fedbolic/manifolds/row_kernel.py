"""Distances of points in the same row by the kernels for CUDA, and their derivatives."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic import kernels
from fedbolic.manifolds.analytic import gap_length
from fedbolic.manifolds.ball_formulas import ball_gap, ball_read
from fedbolic.manifolds.kernel_function import KernelFunction, by_kernel, takes_kernels
from fedbolic.manifolds.lorentz_formulas import hyperboloid_gap, hyperboloid_read


def has_row_kernel(x: Tensor, y: Tensor) -> bool:
    """True if the distances of rows are computed by a kernel, also under ``vmap``."""
    full = x.dtype == y.dtype and x.dtype in (torch.float32, torch.float64)
    return takes_kernels() and full and kernels.replace_operators(x, y)


def kernel_dist(x: Tensor, y: Tensor, c: Tensor | float, *, hyperboloid: bool) -> Tensor:
    """Distances between points in the same row, differentiable any number of times.

    First derivatives are kernels, too; higher ones are those of torch's operators.

    Args:
        x: Points, which are clamped to the manifold.
        y: Other points; the axes before the last one broadcast.
        c: Minus the sectional curvature, with an axis for the coordinates if it is a tensor.
        hyperboloid: True for points of the hyperboloid, False for those of the ball.
    """
    c = c if isinstance(c, Tensor) else x.new_full((1,), c)
    return _row_distances(hyperboloid, x, y, c).squeeze(-1)


class _RowDistances(KernelFunction):
    """The distances of :func:`kernel_dist`."""

    @override
    @staticmethod
    def values(settings: Any, tensors: Sequence[Tensor], *, kept: bool) -> tuple[Tensor, ...]:
        from fedbolic.kernels.rows import row_distances

        return (row_distances(*tensors, hyperboloid=settings),)

    @override
    @staticmethod
    def gradients(
        settings: Any,
        grad: Tensor,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needed: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:
        from fedbolic.kernels.rows import row_gradients

        return row_gradients(grad, *tensors, hyperboloid=settings, curved=needed[-1])

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        x, y, c = tensors
        if settings:
            read, gap, x, y = hyperboloid_read, hyperboloid_gap, x[..., 1:], y[..., 1:]
        else:
            read, gap = ball_read, ball_gap
        known = *read(x, c, x.dtype), *read(y, c, y.dtype)
        return gap_length(gap(*known, c) if settings else gap(*known), c)


_row_distances = by_kernel(_RowDistances)
