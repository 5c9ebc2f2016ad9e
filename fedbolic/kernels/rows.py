# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of the distance of each point of a set to the point in the same row of another.

A program holds some rows of both sets in registers. It clamps the points to the manifold as its
operations do, and then computes the distance of ``fedbolic.kernels.pairs``. The gradient kernel
computes all of that again, so that nothing but points and distances is stored. Maps of rows
are built from the same functions.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.functions import asinhc, asinhc_slope, largest, largest_sinh, tiny
from fedbolic.kernels.launch import GRADIENT_NUMBERS, VALUE_NUMBERS, WARPS, launch, row_sizes

CLOSER = tl.constexpr(2.0**-40)
"""Exact factor of squares before a comparison, so that 1e38 times a ``c`` of 100 is finite."""


@triton.jit
def clamped_to_hyperboloid(x, c):
    """Clamped space coordinates, the time coordinate in radii and the factor that clamps."""
    norm = tl.sqrt(tl.sum(x * x, 1))
    norm = tl.minimum(tl.maximum(norm, tl.sqrt(tiny(x))), tl.sqrt(largest(x)))
    # the second bound keeps the square of the sum of two points finite
    most = 4e18 if x.dtype == tl.float32 else 1e152
    limit = tl.minimum(largest_sinh(x) / tl.sqrt(tl.maximum(c, tiny(x))), most)
    within = tl.minimum(norm, limit)
    factor = within / norm
    return x * factor[:, None], tl.sqrt(c * within * within + 1.0), factor


@triton.jit
def most_in_ball(x):
    """The largest ``c |x|^2`` in the ball, in the dtype of ``x``."""
    margin: tl.constexpr = 2.0**-21 if x.dtype == tl.float32 else 2.0**-50  # four eps
    # other numbers than constants of the type are rounded to float32
    return tl.full([], 1.0 - margin, x.dtype)


@triton.jit
def clamped_to_ball(x, c):
    """Points clamped to the ball, the gaps ``1 - c |x|^2`` and the factors that clamp."""
    t = tl.sum(x * x, 1) * (c * CLOSER)
    t = tl.minimum(tl.maximum(t, tiny(x)), largest(x))
    within = tl.minimum(t, most_in_ball(x) * CLOSER)
    factor = tl.sqrt(within / t)
    return x * factor[:, None], 1.0 - within / CLOSER, factor


@triton.jit
def clamped(x, c, HYPERBOLOID: tl.constexpr):
    """Clamped points, their times in radii or their gaps, and the factors that clamp."""
    if HYPERBOLOID:
        point, a, factor = clamped_to_hyperboloid(x, c)
    else:
        point, a, factor = clamped_to_ball(x, c)
    return point, a, factor


@triton.jit
def clamp_gradient(by_point, by_gap, x, factor, c, HYPERBOLOID: tl.constexpr):
    """Gradients with respect to rows before they are clamped, and to the curvature.

    Factors that clamp are constants. Gradients by times are included in those by points.
    """
    by_x = factor[:, None] * by_point
    by_c = tl.zeros_like(factor)
    if not HYPERBOLOID:
        within = factor == 1.0
        slope = tl.where(within, by_gap, 0.0)
        by_x -= (2.0 * c * slope)[:, None] * x
        by_c = tl.where(within, -slope * tl.sum(x * x, 1), 0.0)
    return by_x, by_c


@triton.jit
def squared_gap(x, a, y, b, c, HYPERBOLOID: tl.constexpr):
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
def gap_gradient(given, x, a, y, b, c, q, across, root, lean, HYPERBOLOID: tl.constexpr):
    """Gradients of :func:`squared_gap` by ``x``, its gap, ``y``, its gap and the curvature."""
    by_gap_x, by_gap_y = tl.zeros_like(q), tl.zeros_like(q)
    by_c = tl.zeros_like(q)
    if HYPERBOLOID:
        near, far = root / a, root / b
        radial = 2.0 * q + lean * near
        by_x = (given / 2.0)[:, None] * with_radial(near[:, None] * across, radial, x, a, c)
        radial = 2.0 * q - lean * far
        by_y = (given / 2.0)[:, None] * with_radial(-far[:, None] * across, radial, y, b, c)
        by_c = -lean * lean / 4.0 * given
    else:
        share = given / root
        by_x = (2.0 * share)[:, None] * across
        by_y = -by_x
        by_gap_x, by_gap_y = -share * q * b, -share * q * a
    return by_x, by_gap_x, by_y, by_gap_y, by_c


@triton.jit
def with_radial(vector, radial, x, a, c):
    """A covector whose product with the point ``x`` is known to be ``radial``."""
    share = c / (a * a) * (radial - tl.sum(x * vector, 1))
    return vector + share[:, None] * x


@triton.jit
def two_rows(x, y, c, n, d, x_row, y_row, of_c, HYPERBOLOID, ROWS, WIDTH):
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
def store_rows(out, made, first, i, n, d, shift, mask, HYPERBOLOID: tl.constexpr):
    """Store coordinates of some rows, on the hyperboloid with their time coordinates."""
    width = d + 1 if HYPERBOLOID else d
    tl.store(out + (i * width)[:, None] + shift[None, :], made, mask=mask)
    if HYPERBOLOID:
        tl.store(out + i * width, first, mask=i < n)


@triton.jit
def load_gradient(g, i, n, d, shift, mask, HYPERBOLOID: tl.constexpr):
    """Gradients by coordinates of some rows, and those by time coordinates, 0 in the ball."""
    width = d + 1 if HYPERBOLOID else d
    given = tl.load(g + (i * width)[:, None] + shift[None, :], mask=mask, other=0.0)
    first = tl.zeros_like(i).to(given.dtype)
    if HYPERBOLOID:
        first = tl.load(g + i * width, mask=i < n, other=0.0)
    return given, first


@triton.jit
def row_distance_kernel(
    x, y, c, out, n, d, x_row, y_row, of_c,
    HYPERBOLOID: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Distances of some rows."""
    u, v, curvature, i, _, _ = two_rows(x, y, c, n, d, x_row, y_row, of_c, HYPERBOLOID, ROWS, WIDTH)
    u, a, _ = clamped(u, curvature, HYPERBOLOID)
    v, b, _ = clamped(v, curvature, HYPERBOLOID)
    q = squared_gap(u, a, v, b, curvature, HYPERBOLOID)[0]
    tl.store(out + i, 2.0 * tl.sqrt(q) * asinhc(curvature * q), mask=i < n)


@triton.jit
def row_gradient_kernel(
    x, y, c, g, by_x, by_y, by_c, n, d, x_row, y_row, of_c, g_row,
    HYPERBOLOID: tl.constexpr, CURVED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of the distances of some rows; factors that clamp points are constants."""
    u, v, curvature, i, shift, mask = two_rows(
        x, y, c, n, d, x_row, y_row, of_c, HYPERBOLOID, ROWS, WIDTH
    )
    given = tl.load(g + i * g_row, mask=i < n, other=0.0)
    p, a, factor_x = clamped(u, curvature, HYPERBOLOID)
    r, b, factor_y = clamped(v, curvature, HYPERBOLOID)
    q, across, root, lean = squared_gap(p, a, r, b, curvature, HYPERBOLOID)
    t = curvature * q
    length = tl.sqrt(tl.maximum(q, tiny(q)))  # the change of q at 0 is 0
    slope = given / (length * tl.sqrt(1.0 + t))
    by_p, by_a, by_r, by_b, curved = gap_gradient(
        slope, p, a, r, b, curvature, q, across, root, lean, HYPERBOLOID
    )
    to_x, curved_x = clamp_gradient(by_p, by_a, u, factor_x, curvature, HYPERBOLOID)
    to_y, curved_y = clamp_gradient(by_r, by_b, v, factor_y, curvature, HYPERBOLOID)
    zero = tl.zeros([ROWS], u.dtype)
    store_rows(by_x, to_x, zero, i, n, d, shift, mask, HYPERBOLOID)
    store_rows(by_y, to_y, zero, i, n, d, shift, mask, HYPERBOLOID)
    if CURVED:
        curved += curved_x + curved_y + 2.0 * given * length * q * asinhc_slope(t, asinhc(t))
        tl.store(by_c + i, curved, mask=i < n)


def row_dist(x: Tensor, y: Tensor, c: Tensor, *, hyperboloid: bool) -> Tensor:
    """Distances between points in the same row, of shape ``(..., 1)``.

    Args:
        x: Points, of shape ``(..., width)``; the axes before broadcast with those of the others.
        y: Other points of the same dtype.
        c: Minus the sectional curvature, of shape ``(..., 1)``.
        hyperboloid: True for the hyperboloid, whose time coordinates are not read; False for the
            ball.
    """
    return RowCall((x, y, c), VALUE_NUMBERS, hyperboloid).value(row_distance_kernel, 1)


def row_dist_gradients(
    grad: Tensor, x: Tensor, y: Tensor, c: Tensor, *, hyperboloid: bool, needed: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of :func:`row_dist`, in the broadcast shape, as the registrar asks for them."""
    call = RowCall((x, y, c), GRADIENT_NUMBERS, hyperboloid)
    grad = grad.reshape(call.n)
    return call.gradients(row_gradient_kernel, grad, *grad.stride(), CURVED=needed[-1])


class RowCall:
    """A launch for rows of points, and of curvatures; what all rows share has the stride 0.

    Args:
        tensors: Points of one width, and the curvature last; the axes before the last broadcast.
        numbers: Coordinates of one tensor that a program holds, by dtype.
        hyperboloid: True for the hyperboloid, False for the ball.
    """

    def __init__(
        self, tensors: Sequence[Tensor], numbers: dict[torch.dtype, int], hyperboloid: bool
    ) -> None:
        self.lead = torch.broadcast_shapes(*(t.shape[:-1] for t in tensors))
        self.n, self.width = self.lead.numel(), tensors[0].shape[-1]
        self.d = self.width - hyperboloid
        sizes = row_sizes(self.d, numbers[tensors[0].dtype])
        self.tensors = [self._flat(t) for t in tensors]
        self.strides = [t.stride(0) if len(t) > 1 else 0 for t in self.tensors]
        self.programs = triton.cdiv(self.n, sizes["ROWS"])
        self.constants = {"HYPERBOLOID": hyperboloid, "num_warps": WARPS, **sizes}

    def value(self, kernel: Any, width: int, **constants: bool) -> Tensor:
        """The value of a kernel, with so many numbers for each row."""
        out = self.tensors[0].new_empty(*self.lead, width)
        launch(
            kernel, self.programs, out, *self.tensors, out, self.n, self.d, *self.strides,
            **self.constants, **constants,
        )  # fmt: skip
        return out

    def gradients(
        self, kernel: Any, grad: Tensor, *strides: int, CURVED: bool, **constants: bool
    ) -> tuple[Tensor | None, ...]:
        """Gradients by the points and, if ``CURVED``, by the curvature."""
        *points, c = self.tensors
        by_points = [x.new_empty(*self.lead, self.width) for x in points]
        by_c = c.new_empty(*self.lead, int(CURVED))
        launch(
            kernel, self.programs, grad, *self.tensors, grad, *by_points, by_c, self.n, self.d,
            *self.strides, *strides, CURVED=CURVED, **self.constants, **constants,
        )  # fmt: skip
        return *by_points, by_c if CURVED else None

    def _flat(self, x: Tensor) -> Tensor:
        lead = (1,) * len(self.lead) if x.shape[:-1].numel() == 1 else self.lead
        return x.expand(*lead, x.shape[-1]).reshape(-1, x.shape[-1]).contiguous()
