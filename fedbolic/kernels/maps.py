# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of the exponential and the logarithm at points, row by row.

A program holds some rows of both arguments in registers and clamps points to the manifold as its
operations do. The gradient kernel computes all of the map again, so that nothing else is stored.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.exponential import exponential, exponential_gradient
from fedbolic.kernels.logarithm import logarithm, logarithm_gradient
from fedbolic.kernels.rows import (
    ROW_WARPS,
    RowCall,
    clamp_gradient,
    clamped,
    load_gradient,
    store_rows,
    two_rows,
)

MAP_NUMBERS = {torch.float32: 1024, torch.float64: 512}
MAP_GRADIENT_NUMBERS = {torch.float32: 512, torch.float64: 256}
"""Coordinates of one argument that a program holds."""


@triton.jit
def map_kernel(
    x, y, c, out, n, d, x_row, y_row, of_c,
    HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The exponential of some rows of tangents if ``OUTWARD``, otherwise the logarithm."""
    u, v, curvature, i, shift, mask = two_rows(
        x, y, c, n, d, x_row, y_row, of_c, HYPERBOLOID, ROWS, WIDTH
    )
    p, a, _ = clamped(u, curvature, HYPERBOLOID)
    if OUTWARD:
        made, first = exponential(p, a, v, curvature, HYPERBOLOID)
    else:
        r, b, _ = clamped(v, curvature, HYPERBOLOID)
        made, first = logarithm(p, a, r, b, curvature, HYPERBOLOID)
    store_rows(out, made, first, i, n, d, shift, mask, HYPERBOLOID)


@triton.jit
def map_gradient_kernel(
    x, y, c, g, by_x, by_y, by_c, n, d, x_row, y_row, of_c,
    HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr, CURVED: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of some rows; factors that clamp points are constants."""
    u, v, curvature, i, shift, mask = two_rows(
        x, y, c, n, d, x_row, y_row, of_c, HYPERBOLOID, ROWS, WIDTH
    )
    given, first = load_gradient(g, i, n, d, shift, mask, HYPERBOLOID)
    p, a, factor_x = clamped(u, curvature, HYPERBOLOID)
    if OUTWARD:
        by_p, by_a, to_y, curved = exponential_gradient(
            given, first, p, a, v, curvature, HYPERBOLOID
        )
    else:
        r, b, factor_y = clamped(v, curvature, HYPERBOLOID)
        by_p, by_a, by_r, by_b, curved = logarithm_gradient(
            given, first, p, a, r, b, curvature, HYPERBOLOID
        )
        to_y, curved_y = clamp_gradient(by_r, by_b, v, factor_y, curvature, HYPERBOLOID)
        curved += curved_y
    to_x, curved_x = clamp_gradient(by_p, by_a, u, factor_x, curvature, HYPERBOLOID)
    zero = tl.zeros([ROWS], u.dtype)
    store_rows(by_x, to_x, zero, i, n, d, shift, mask, HYPERBOLOID)
    store_rows(by_y, to_y, zero, i, n, d, shift, mask, HYPERBOLOID)
    if CURVED:
        tl.store(by_c + i, curved + curved_x, mask=i < n)


def row_map(x: Tensor, y: Tensor, c: Tensor, *, hyperboloid: bool, outward: bool) -> Tensor:
    """The exponential or the logarithm at points, in the broadcast shape of the rows.

    Args:
        x: Points, of shape ``(..., width)``; the axes before broadcast with those of ``y``.
        y: Tangents at ``x`` for the exponential, points for the logarithm; of the same dtype.
        c: Minus the sectional curvature, of shape ``(..., 1)``.
        hyperboloid: True for the hyperboloid, whose time coordinates are not read; False for the
            ball.
        outward: True for the exponential, False for the logarithm.
    """
    call = RowCall((x, y, c), MAP_NUMBERS[x.dtype], hyperboloid)
    out = x.new_empty(*call.lead, x.shape[-1])
    if out.numel():
        with torch.cuda.device_of(out):  # triton launches on the current device
            map_kernel[call.grid](
                *call.tensors, out, call.n, call.d, *call.strides, OUTWARD=outward,
                num_warps=ROW_WARPS, **call.sizes,
            )  # fmt: skip
    return out


def row_map_gradients(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    c: Tensor,
    *,
    hyperboloid: bool,
    outward: bool,
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of :func:`row_map`, in the broadcast shape, as the registrar asks for them."""
    call = RowCall((x, y, c), MAP_GRADIENT_NUMBERS[x.dtype], hyperboloid)
    by_x, by_y = (x.new_empty(*call.lead, x.shape[-1]) for _ in range(2))
    curved = needed[-1]
    by_c = x.new_empty(*call.lead, 1) if curved else grad
    if grad.numel():
        with torch.cuda.device_of(grad):  # triton launches on the current device
            map_gradient_kernel[call.grid](
                *call.tensors, grad.contiguous(), by_x, by_y, by_c, call.n, call.d, *call.strides,
                OUTWARD=outward, CURVED=curved, num_warps=ROW_WARPS, **call.sizes,
            )  # fmt: skip
    return by_x, by_y, by_c if curved else None
