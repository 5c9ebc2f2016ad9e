# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of the exponential and the logarithm at the origin: multiples of each row.

With :math:`t = c |v|^2` the factor is :math:`\sinh \sqrt t / \sqrt t` and its inverse on the
hyperboloid, :math:`\tanh \sqrt t / \sqrt t` and its inverse in the ball. Points are clamped to the
manifold as its operations do. The gradient kernel computes all of it again.
"""

from collections.abc import Sequence

import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.functions import (
    asinh_of,
    asinhc_series,
    expm1,
    largest,
    log1p,
    series_limit,
    sinhc_series,
    tiny,
)
from fedbolic.kernels.launch import GRADIENT_NUMBERS, VALUE_NUMBERS
from fedbolic.kernels.rows import (
    RowCall,
    clamped,
    clamped_to_ball,
    clamped_to_hyperboloid,
    load_gradient,
    store_rows,
)


@triton.jit
def _tanhc_series(t):
    """The derivative of ``tanh(sqrt t) / sqrt t`` near 0."""
    series = 6404582.0 * 8.0 / 10854718875.0
    series = series * t - 929569.0 * 7.0 / 638512875.0
    series = series * t + 21844.0 * 6.0 / 6081075.0
    series = series * t - 1382.0 * 5.0 / 155925.0
    series = series * t + 62.0 * 4.0 / 2835.0
    series = series * t - 17.0 * 3.0 / 315.0
    series = series * t + 2.0 * 2.0 / 15.0
    return series * t - 1.0 / 3.0


@triton.jit
def _atanhc_series(t):
    """The derivative of ``atanh(sqrt t) / sqrt t`` near 0."""
    series = 8.0 / 17.0
    series = series * t + 7.0 / 15.0
    series = series * t + 6.0 / 13.0
    series = series * t + 5.0 / 11.0
    series = series * t + 4.0 / 9.0
    series = series * t + 3.0 / 7.0
    series = series * t + 2.0 / 5.0
    return series * t + 1.0 / 3.0


@triton.jit
def radial_factor(t, HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr):
    """The factor of a row, and the derivative of the length that it gives."""
    s = tl.sqrt(tl.minimum(tl.maximum(t, tiny(t)), largest(t)))
    # the longest step on the hyperboloid, beyond which a tanh is 1
    longest: tl.constexpr = 44.0 if t.dtype == tl.float32 else 346.0
    if HYPERBOLOID and OUTWARD:
        grown = expm1(tl.minimum(s, longest))
        value = (grown + grown / (grown + 1.0)) / (2.0 * s)
        slope = tl.where(s < longest, tl.sqrt(t * value * value + 1.0), 0.0)
    elif HYPERBOLOID:
        value = asinh_of(s) / s
        slope = 1.0 / tl.sqrt(t + 1.0)
    elif OUTWARD:
        grown = expm1(2.0 * tl.minimum(s, 40.0))
        value = grown / (grown + 2.0) / s
        # one minus the square of a tanh that may round to 1
        slope = 4.0 * (grown + 1.0) / (grown + 2.0) / (grown + 2.0)
    else:
        value = log1p(2.0 * s / (1.0 - s)) / (2.0 * s)
        slope = 1.0 / (1.0 - t)
    return value, slope


@triton.jit
def radial_bend(t, value, slope, HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr):
    """The derivative of the factor with respect to ``t``."""
    near = tl.minimum(t, series_limit(t))
    if HYPERBOLOID and OUTWARD:
        series = sinhc_series(near)
    elif HYPERBOLOID:
        series = asinhc_series(near)
    elif OUTWARD:
        series = _tanhc_series(near)
    else:
        series = _atanhc_series(near)
    far = (slope - value) / (2.0 * tl.maximum(t, series_limit(t)))
    return tl.where(t < series_limit(t), series, far)


@triton.jit
def _scaled(u, c, HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr):
    """The row that is scaled and the factor that clamps it, its ``t`` and the scale with its slope.

    The exponential clamps the result, the logarithm the argument.
    """
    clamp = tl.sum(u, 1) * 0.0 + 1.0
    if not OUTWARD:
        u, _, clamp = clamped(u, c, HYPERBOLOID)
    t = c * tl.minimum(tl.sum(u * u, 1), largest(u))
    value, slope = radial_factor(t, HYPERBOLOID, OUTWARD)
    return u, clamp, t, value, slope


@triton.jit
def scaled_gradient(
    given, v, c, t, value, slope, HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr
):  # fmt: skip
    """Gradients by ``v`` and the curvature of the factor times ``v``."""
    along = tl.sum(given * v, 1)
    bend = radial_bend(t, value, slope, HYPERBOLOID, OUTWARD)
    by_v = value[:, None] * given + (2.0 * along * bend * c)[:, None] * v
    # the squared length may be as large as the bend is small
    return by_v, tl.minimum(tl.sum(v * v, 1), largest(v)) * bend * along


@triton.jit
def clamped_result(p, c, HYPERBOLOID: tl.constexpr):
    """A point clamped to the manifold, its time coordinate in radii and the factor that clamps."""
    if HYPERBOLOID:
        most = tl.sqrt(tl.zeros_like(c) + largest(p) / p.shape[1])
        first = most / tl.maximum(tl.max(tl.abs(p), 1), most)  # for squares that overflow
        point, time, clamp = clamped_to_hyperboloid(first[:, None] * p, c)
        clamp *= first
    else:
        point, time, clamp = clamped_to_ball(p, c)
    return point, time, clamp


@triton.jit
def result_gradient(given, first, p, c, HYPERBOLOID: tl.constexpr):
    """Gradients by ``p`` and the curvature of a result, from those by its coordinates."""
    point, time, factor = clamped_result(p, c, HYPERBOLOID)
    by_c = tl.zeros_like(c)
    if HYPERBOLOID:
        share = first * tl.sqrt(c) / time
        given += share[:, None] * point
        by_c = share / (-2.0 * c * c)
    return given * factor[:, None], by_c


@triton.jit
def radial_kernel(
    x, c, out, n, d, x_row, of_c,
    HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The exponential of some rows if ``OUTWARD``, otherwise the logarithm."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, WIDTH)
    mask = (i < n)[:, None] & (k < d)[None, :]
    shift = k + 1 if HYPERBOLOID else k
    u = tl.load(x + (i * x_row)[:, None] + shift[None, :], mask=mask, other=0.0)
    curvature = tl.load(c + i * of_c, mask=i < n, other=1.0)
    v, _, _, value, _ = _scaled(u, curvature, HYPERBOLOID, OUTWARD)
    made = value[:, None] * v
    time = tl.zeros([ROWS], u.dtype)
    if OUTWARD:
        made, time, _ = clamped_result(made, curvature, HYPERBOLOID)
        time = time / tl.sqrt(curvature) if HYPERBOLOID else time
    store_rows(out, made, time, i, n, d, shift, mask, HYPERBOLOID)


@triton.jit
def radial_gradient_kernel(
    x, c, g, by_x, by_c, n, d, x_row, of_c,
    HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr, CURVED: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of some rows; factors that clamp points are constants."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, WIDTH)
    mask = (i < n)[:, None] & (k < d)[None, :]
    shift = k + 1 if HYPERBOLOID else k
    u = tl.load(x + (i * x_row)[:, None] + shift[None, :], mask=mask, other=0.0)
    curvature = tl.load(c + i * of_c, mask=i < n, other=1.0)
    given, first = load_gradient(g, i, n, d, shift, mask, HYPERBOLOID)
    v, clamp, t, value, slope = _scaled(u, curvature, HYPERBOLOID, OUTWARD)
    curved = tl.zeros([ROWS], u.dtype)
    if OUTWARD:
        given, curved = result_gradient(given, first, value[:, None] * v, curvature, HYPERBOLOID)
    made, bent = scaled_gradient(given, v, curvature, t, value, slope, HYPERBOLOID, OUTWARD)
    zero = tl.zeros([ROWS], u.dtype)
    store_rows(by_x, made * clamp[:, None], zero, i, n, d, shift, mask, HYPERBOLOID)
    if CURVED:
        tl.store(by_c + i, curved + bent, mask=i < n)


def radial_map(x: Tensor, c: Tensor, *, hyperboloid: bool, outward: bool) -> Tensor:
    """The exponential or the logarithm at the origin, of the shape of the rows.

    Args:
        x: Tangents at the origin or points, of shape ``(..., width)``.
        c: Minus the sectional curvature, of shape ``(..., 1)``.
        hyperboloid: True for the hyperboloid, whose time coordinates are not read; False for the
            ball.
        outward: True for the exponential, False for the logarithm.
    """
    call = RowCall((x, c), VALUE_NUMBERS, hyperboloid)
    return call.value(radial_kernel, x.shape[-1], OUTWARD=outward)


def radial_map_gradients(
    grad: Tensor,
    x: Tensor,
    c: Tensor,
    *,
    hyperboloid: bool,
    outward: bool,
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of :func:`radial_map`, in the broadcast shape, as the registrar asks for them."""
    call = RowCall((x, c), GRADIENT_NUMBERS, hyperboloid)
    grad = grad.contiguous()
    return call.gradients(radial_gradient_kernel, grad, OUTWARD=outward, CURVED=needed[-1])
