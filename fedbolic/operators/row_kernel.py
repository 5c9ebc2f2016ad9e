"""Distances and maps of points, row by row, by the kernels for CUDA, and their derivatives."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic import kernels
from fedbolic.formulas.analytic import (
    gap_length,
    radial_asinh,
    radial_atanh,
    radial_sinh,
    radial_tanh,
)
from fedbolic.formulas.ball_formulas import ball_expmap, ball_gap, ball_logmap, ball_read
from fedbolic.formulas.lorentz_formulas import (
    hyperboloid_expmap,
    hyperboloid_gap,
    hyperboloid_logmap,
    hyperboloid_point_of,
    hyperboloid_read,
)
from fedbolic.operators.kernel_function import CurvedKernel, Way, by_kernel, takes_kernels


def has_row_kernel(*points: Tensor) -> bool:
    """True if distances and maps of rows are computed by kernels, also under ``vmap``."""
    dtype, *others = {x.dtype for x in points}
    equal = not others and len({x.shape[-1] for x in points}) == 1
    full = equal and dtype in (torch.float32, torch.float64)
    return full and takes_kernels() and kernels.replace_operators(*points)


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
    return _row_distances(_Model(hyperboloid), x, y, c).squeeze(-1)


class _Model(NamedTuple):
    hyperboloid: bool


class _RowDistances(CurvedKernel):
    """The distances of :func:`kernel_dist`."""

    @override
    @staticmethod
    def kernels() -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor | None, ...]]]:
        from fedbolic.kernels.rows import row_distances, row_gradients

        return row_distances, row_gradients

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        x, y, c = tensors
        if settings.hyperboloid:
            read, gap, x, y = hyperboloid_read, hyperboloid_gap, x[..., 1:], y[..., 1:]
        else:
            read, gap = ball_read, ball_gap
        known = *read(x, c, x.dtype), *read(y, c, y.dtype)
        return gap_length(gap(*known, c) if settings.hyperboloid else gap(*known), c)


_row_distances = by_kernel(_RowDistances)


def kernel_radial_map(x: Tensor, c: Tensor | float, *, hyperboloid: bool, outward: bool) -> Tensor:
    """The exponential or the logarithm at the origin, differentiable any number of times.

    First derivatives are kernels, too; higher ones are those of torch's operators.

    Args:
        x: Tangents at the origin or points, which are clamped to the manifold.
        c: Minus the sectional curvature, with an axis for the coordinates if it is a tensor.
        hyperboloid: True for the hyperboloid, False for the ball.
        outward: True for the exponential, False for the logarithm.
    """
    c = c if isinstance(c, Tensor) else x.new_full((1,), c)
    return _radial_map(Way(hyperboloid, outward), x, c)


class _RadialMap(CurvedKernel):
    """The maps of :func:`kernel_radial_map`."""

    @override
    @staticmethod
    def kernels() -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor | None, ...]]]:
        from fedbolic.kernels.radial import radial_gradients, radial_map

        return radial_map, radial_gradients

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        (hyperboloid, outward), (x, c) = settings, tensors
        if hyperboloid and outward:
            return hyperboloid_point_of(radial_sinh(x[..., 1:], c), c, x.dtype)
        if hyperboloid:
            tangent = radial_asinh(hyperboloid_read(x[..., 1:], c, x.dtype)[0], c)
            return functional.pad(tangent, (1, 0))
        if outward:
            return ball_read(radial_tanh(x, c), c, x.dtype)[0]
        return radial_atanh(ball_read(x, c, x.dtype)[0], c)


_radial_map = by_kernel(_RadialMap)


def kernel_map(
    x: Tensor, y: Tensor, c: Tensor | float, *, hyperboloid: bool, outward: bool
) -> Tensor:
    """The exponential or the logarithm at points, differentiable any number of times.

    First derivatives are kernels, too; higher ones are those of torch's operators.

    Args:
        x: Points, which are clamped to the manifold.
        y: Tangents at ``x`` for the exponential, points for the logarithm; the axes before the last
            one broadcast.
        c: Minus the sectional curvature, with an axis for the coordinates if it is a tensor.
        hyperboloid: True for the hyperboloid, False for the ball.
        outward: True for the exponential, False for the logarithm.
    """
    c = c if isinstance(c, Tensor) else x.new_full((1,), c)
    return _row_map(Way(hyperboloid, outward), x, y, c)


class _RowMap(CurvedKernel):
    """The maps of :func:`kernel_map`."""

    @override
    @staticmethod
    def kernels() -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor | None, ...]]]:
        from fedbolic.kernels.maps import row_map, row_map_gradients

        return row_map, row_map_gradients

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        hyperboloid, outward = settings
        if hyperboloid:
            return (hyperboloid_expmap if outward else hyperboloid_logmap)(*tensors)
        return (ball_expmap if outward else ball_logmap)(*tensors)


_row_map = by_kernel(_RowMap)
