# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of the distance of each point of a set to the point in the same row of another.

A program holds some rows of both sets in registers. It clamps the points to the manifold as its
operations do, and then computes the distance of ``fedbolic.kernels.pairs``. The gradient kernel
computes all of that again, so that nothing but points and distances is stored.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.functions import asinhc, asinhc_slope, largest, largest_sinh, tiny

ROW_NUMBERS = {torch.float32: 1024, torch.float64: 512}
ROW_GRADIENT_NUMBERS = {torch.float32: 512, torch.float64: 256}
"""Coordinates of one set that a program holds."""

ROW_WARPS = 4

CLOSER = tl.constexpr(2.0**-40)
"""Exact factor of squares before a comparison, so that 1e38 times a ``c`` of 100 is finite."""


@triton.jit
def clamped_to_hyperboloid(x, c):
    """Clamped space coordinates, the time coordinate in radii and the factor that clamps."""
    norm = tl.sqrt(tl.sum(x * x, 1))
    norm = tl.minimum(tl.maximum(norm, tl.sqrt(tiny(x))), tl.sqrt(largest(x)))
    # the second bound keeps the square of the sum of two points finite
    most = 4e18 if x.dtype == tl.float32 else 1e152
    limit = tl.minimum(largest_sinh(x) / tl.sqrt(c), most)
    within = tl.minimum(norm, limit)
    factor = within / norm
    return x * factor[:, None], tl.sqrt(c * within * within + 1.0), factor


@triton.jit
def clamped_to_ball(x, c):
    """Points clamped to the ball, the gaps ``1 - c |x|^2`` and the factors that clamp."""
    margin: tl.constexpr = 2.0**-21 if x.dtype == tl.float32 else 2.0**-50  # four eps
    t = tl.sum(x * x, 1) * (c * CLOSER)
    t = tl.minimum(tl.maximum(t, tiny(x)), largest(x))
    # other numbers than constants of the type are rounded to float32
    within = tl.minimum(t, tl.full([], (1.0 - margin) * CLOSER, x.dtype))
    factor = tl.sqrt(within / t)
    return x * factor[:, None], 1.0 - within / CLOSER, factor


@triton.jit
def _gap(x, a, y, b, c, HYPERBOLOID: tl.constexpr):
    """The squared sinh of half the distance over ``c``, and the terms of its gradient."""
    difference = x - y
    if HYPERBOLOID:
        root = tl.sqrt(a * b)
        lean = tl.sum(difference * (x + y), 1) / ((a + b) * root)
        nearer = tl.where((a < b)[:, None], x, y)
        across = (tl.minimum(a, b) / root)[:, None] * difference - (c * lean)[:, None] * nearer
        q = (tl.sum(across * across, 1) + c * lean * lean) / 4.0
    else:
        root, lean, across = a * b, a, difference
        q = tl.sum(across * across, 1) / root
    return q, across, root, lean


@triton.jit
def _with_radial(vector, radial, x, a, c):
    """A covector whose product with the point ``x`` is known to be ``radial``."""
    share = c / (a * a) * (radial - tl.sum(x * vector, 1))
    return vector + share[:, None] * x


@triton.jit
def _rows(x, y, c, n, d, x_row, y_row, of_c, HYPERBOLOID, ROWS, WIDTH):
    """Coordinates of both points and the curvature of some rows, and the places of the former."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, WIDTH)
    mask = (i < n)[:, None] & (k < d)[None, :]
    shift = k + 1 if HYPERBOLOID else k
    u = tl.load(x + (i * x_row)[:, None] + shift[None, :], mask=mask, other=0.0)
    v = tl.load(y + (i * y_row)[:, None] + shift[None, :], mask=mask, other=0.0)
    curvature = tl.load(c + i * of_c, mask=i < n, other=1.0)
    return u, v, curvature, i, shift, mask


@triton.jit
def row_distance_kernel(
    x, y, c, out, n, d, x_row, y_row, of_c,
    HYPERBOLOID: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Distances of some rows."""
    u, v, curvature, i, _, _ = _rows(x, y, c, n, d, x_row, y_row, of_c, HYPERBOLOID, ROWS, WIDTH)
    if HYPERBOLOID:
        u, a, _ = clamped_to_hyperboloid(u, curvature)
        v, b, _ = clamped_to_hyperboloid(v, curvature)
    else:
        u, a, _ = clamped_to_ball(u, curvature)
        v, b, _ = clamped_to_ball(v, curvature)
    q = _gap(u, a, v, b, curvature, HYPERBOLOID)[0]
    tl.store(out + i, 2.0 * tl.sqrt(q) * asinhc(curvature * q), mask=i < n)


@triton.jit
def row_gradient_kernel(
    x, y, c, g, by_x, by_y, by_c, n, d, x_row, y_row, of_c, g_row,
    HYPERBOLOID: tl.constexpr, CURVED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of the distances of some rows; factors that clamp points are constants."""
    u, v, curvature, i, shift, mask = _rows(
        x, y, c, n, d, x_row, y_row, of_c, HYPERBOLOID, ROWS, WIDTH
    )
    given = tl.load(g + i * g_row, mask=i < n, other=0.0)
    if HYPERBOLOID:
        p, a, factor_x = clamped_to_hyperboloid(u, curvature)
        r, b, factor_y = clamped_to_hyperboloid(v, curvature)
    else:
        p, a, factor_x = clamped_to_ball(u, curvature)
        r, b, factor_y = clamped_to_ball(v, curvature)
    q, across, root, lean = _gap(p, a, r, b, curvature, HYPERBOLOID)
    t = curvature * q
    length = tl.sqrt(tl.maximum(q, tiny(q)))  # the change of q at 0 is 0
    slope = given / (length * tl.sqrt(1.0 + t))
    if HYPERBOLOID:
        near, far = root / a, root / b
        radial = 2.0 * q + lean * near
        along_x = _with_radial(near[:, None] * across, radial, p, a, curvature)
        radial = 2.0 * q - lean * far
        along_y = _with_radial(-far[:, None] * across, radial, r, b, curvature)
        to_x = (slope / 2.0 * factor_x)[:, None] * along_x
        to_y = (slope / 2.0 * factor_y)[:, None] * along_y
        curved = -lean * lean / 4.0 * slope
    else:
        share = slope / root
        step = (2.0 * share)[:, None] * across
        gap_x = tl.where(factor_x == 1.0, -share * q * b, 0.0)
        gap_y = tl.where(factor_y == 1.0, -share * q * a, 0.0)
        to_x = factor_x[:, None] * step - (2.0 * curvature * gap_x)[:, None] * u
        to_y = -factor_y[:, None] * step - (2.0 * curvature * gap_y)[:, None] * v
        curved = -gap_x * tl.sum(u * u, 1) - gap_y * tl.sum(v * v, 1)
    width = d + 1 if HYPERBOLOID else d
    places = (i * width)[:, None] + shift[None, :]
    tl.store(by_x + places, to_x, mask=mask)
    tl.store(by_y + places, to_y, mask=mask)
    if HYPERBOLOID:
        tl.store(by_x + i * width, tl.zeros([ROWS], u.dtype), mask=i < n)
        tl.store(by_y + i * width, tl.zeros([ROWS], u.dtype), mask=i < n)
    if CURVED:
        curved += 2.0 * given * length * q * asinhc_slope(t, asinhc(t))
        tl.store(by_c + i, curved, mask=i < n)


class RowGradients(NamedTuple):
    """Gradients of distances, in the broadcast shape.

    Args:
        x: With respect to the first points, of shape ``(..., width)``.
        y: With respect to the other points.
        curvature: With respect to the curvature, of shape ``(..., 1)``; ``None`` if it is not asked
            for.
    """

    x: Tensor
    y: Tensor
    curvature: Tensor | None


def row_distances(x: Tensor, y: Tensor, c: Tensor, *, hyperboloid: bool) -> Tensor:
    """Distances between points in the same row, of shape ``(..., 1)``.

    Args:
        x: Points, of shape ``(..., width)``; the axes before broadcast with those of the others.
        y: Other points of the same dtype.
        c: Minus the sectional curvature, of shape ``(..., 1)``.
        hyperboloid: True for the hyperboloid, whose time coordinates are not read; False for the
            ball.
    """
    call = RowCall((x, y, c), ROW_NUMBERS[x.dtype], hyperboloid)
    out = x.new_empty(*call.lead, 1)
    if out.numel():
        with torch.cuda.device_of(out):  # triton launches on the current device
            row_distance_kernel[call.grid](
                *call.tensors, out, call.n, call.d, *call.strides,
                num_warps=ROW_WARPS, **call.sizes,
            )  # fmt: skip
    return out


def row_gradients(
    grad: Tensor, x: Tensor, y: Tensor, c: Tensor, *, hyperboloid: bool, curved: bool
) -> RowGradients:
    """Gradients of distances between points in the same row.

    Args:
        grad: Gradient with respect to the distances, of shape ``(..., 1)``, with all axes.
        x: As in :func:`row_distances`.
        y: As in :func:`row_distances`.
        c: As in :func:`row_distances`.
        hyperboloid: As in :func:`row_distances`.
        curved: True for the gradient with respect to the curvature.
    """
    call = RowCall((x, y, c), ROW_GRADIENT_NUMBERS[x.dtype], hyperboloid)
    by_x, by_y = (x.new_empty(*call.lead, x.shape[-1]) for _ in range(2))
    by_c = x.new_empty(*call.lead, 1) if curved else grad
    grad = grad.reshape(call.n)
    if grad.numel():
        with torch.cuda.device_of(grad):  # triton launches on the current device
            row_gradient_kernel[call.grid](
                *call.tensors, grad, by_x, by_y, by_c, call.n, call.d, *call.strides,
                *grad.stride(), CURVED=curved, num_warps=ROW_WARPS, **call.sizes,
            )  # fmt: skip
    return RowGradients(by_x, by_y, by_c if curved else None)


class RowCall:
    """Tensors, strides and sizes of a launch; what all rows share has the stride 0."""

    def __init__(self, tensors: Sequence[Tensor], numbers: int, hyperboloid: bool) -> None:
        self.lead = torch.broadcast_shapes(*(t.shape[:-1] for t in tensors))
        self.n, self.d = self.lead.numel(), tensors[0].shape[-1] - hyperboloid
        width = triton.next_power_of_2(max(self.d, 1))
        rows = max(1, numbers // width)
        self.tensors = [self._flat(t) for t in tensors]
        self.strides = [t.stride(0) if len(t) > 1 else 0 for t in self.tensors]
        self.grid = (triton.cdiv(self.n, rows),)
        self.sizes = {"HYPERBOLOID": hyperboloid, "ROWS": rows, "WIDTH": width}

    def _flat(self, x: Tensor) -> Tensor:
        lead = (1,) * len(self.lead) if x.shape[:-1].numel() == 1 else self.lead
        return x.expand(*lead, x.shape[-1]).reshape(-1, x.shape[-1]).contiguous()
