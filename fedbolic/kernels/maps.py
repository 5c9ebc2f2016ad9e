# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of the exponential and the logarithm at points, row by row.

A program holds some rows of both arguments in registers and clamps points to the manifold as its
operations do. The gradient kernel computes all of the map again, so that nothing else is stored.
Functions of rows take points and their times in radii, or their gaps in the ball.

On the hyperboloid, with the squared length :math:`q` of the tangent and :math:`l = \sqrt{c q}`, the
exponential is

.. math:: y = x + (\cosh l - 1) \, x + \frac{\sinh l}{l} u, \quad \cosh l - 1 =
    \frac{\sinh^2 l}{1 + \cosh l}

In the ball the tangent at the origin gives a point :math:`z`, which is added to :math:`x` as in
``Poincare.mobius_add``.

With the squared sinh :math:`c q` of half the distance in radii, the distance over its sinh is
:math:`\rho = \frac{\operatorname{asinh} \sqrt{c q}}{\sqrt{c q} \, \sqrt{1 + c q}}`, and the
logarithm of :math:`y` at :math:`x`

.. math:: \rho \, (y - x) - 2 c q \rho \, x, \qquad
    \rho \, \frac{g_x}{g_y} (y - x) - c q \rho \, g_x \, x

on the hyperboloid (its space coordinates) and in the ball with the gaps :math:`g`.
"""

from collections.abc import Sequence

import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.functions import asinhc, asinhc_slope, largest, tiny
from fedbolic.kernels.launch import GRADIENT_NUMBERS, VALUE_NUMBERS
from fedbolic.kernels.radial import (
    clamped_result,
    radial_bend,
    radial_factor,
    result_gradient,
    scaled_gradient,
)
from fedbolic.kernels.rows import (
    RowCall,
    clamp_gradient,
    clamped,
    gap_gradient,
    load_gradient,
    squared_gap,
    store_rows,
    two_rows,
    with_radial,
)


@triton.jit
def exponential(p, a, u, c, HYPERBOLOID: tl.constexpr):
    """The points that tangents lead to, and their time coordinates, 0 in the ball."""
    first = tl.zeros_like(c)
    if HYPERBOLOID:
        made = _hyperboloid_end(p, a, u, c)[0]
        made, time, _ = clamped_result(made, c, HYPERBOLOID)
        first = time / tl.sqrt(c)
    else:
        v, _, value, _ = _ball_step(a, u, c)
        z, gap, _ = clamped(value[:, None] * v, c, HYPERBOLOID)
        made, _, _, _ = _ball_sum(p, a, z, gap, c)
        made, _, _ = clamped_result(made, c, HYPERBOLOID)
    return made, first


@triton.jit
def exponential_gradient(given, first, p, a, u, c, HYPERBOLOID: tl.constexpr):
    """Gradients by the point, its gap, the tangent and the curvature."""
    if HYPERBOLOID:
        by_p, by_u, by_c = _hyperboloid_gradient(given, first, p, a, u, c)
        by_a = tl.zeros_like(c)
    else:
        by_p, by_a, by_u, by_c = _ball_gradient(given, first, p, a, u, c)
    return by_p, by_a, by_u, by_c


@triton.jit
def _hyperboloid_end(p, a, u, c):
    """The end before it is clamped, and the terms of its gradient."""
    normal = p / a[:, None]
    along = tl.sum(normal * u, 1)
    across, slant = u - (c * along)[:, None] * normal, along / a
    q = tl.minimum(tl.sum(across * across, 1) + c * slant * slant, largest(u))
    t = c * q
    value, slope = radial_factor(t, True, True)
    sinh = value * tl.sqrt(tl.minimum(tl.maximum(t, tiny(t)), largest(t)))
    bulge = sinh * sinh / (tl.sqrt(sinh * sinh + 1.0) + 1.0)
    made = p + bulge[:, None] * p + value[:, None] * u
    return made, bulge, value, slope, q, across, slant


@triton.jit
def _hyperboloid_gradient(given, first, p, a, u, c):
    """Gradients by the point, the tangent and the curvature."""
    made, bulge, value, slope, q, across, slant = _hyperboloid_end(p, a, u, c)
    given, by_c = result_gradient(given, first, made, c, True)
    t = c * q
    # beyond the longest step the slope is 0, and the cosh does not grow
    rise = tl.where(slope > 0.0, value / 2.0, 0.0) * tl.sum(given * p, 1)
    by_t = rise + radial_bend(t, value, slope, True, True) * tl.sum(given * u, 1)
    by_q = c * by_t
    by_square = (2.0 * by_q)[:, None] * with_radial(across, slant, p, a, c)
    by_p = given + bulge[:, None] * given - (c * slant)[:, None] * by_square
    by_u = value[:, None] * given + by_square
    return by_p, by_u, by_c + q * by_t - by_q * slant * slant


@triton.jit
def _ball_step(gap, u, c):
    """The tangent at the origin, its squared length in radii, its factor and the slope of this."""
    v = u / gap[:, None]
    t = c * tl.minimum(tl.sum(v * v, 1), largest(u))
    value, slope = radial_factor(t, False, True)
    return v, t, value, slope


@triton.jit
def _ball_sum(p, gap, z, gap_z, c):
    """The Möbius sum of two points before it is clamped, and the terms of its gradient."""
    s = p + z
    square = tl.sum(s * s, 1)
    t = c * square
    below = gap * gap_z + t
    made = (gap[:, None] * s + t[:, None] * p) / below[:, None]
    return made, s, square, below


@triton.jit
def _ball_gradient(given, first, p, gap, u, c):
    r"""Gradients by the point, its gap, the tangent and the curvature.

    With the sum :math:`y`, the gaps :math:`g` and :math:`g_z`, :math:`s = x + z`, :math:`t = c
    |s|^2` and the divisor :math:`D`,

    .. math:: y - x = \frac g D w, \quad s - g_z y = \frac t D w, \quad w = z + c |z|^2 x
    """
    v, t, value, slope = _ball_step(gap, u, c)
    step = value[:, None] * v
    z, gap_z, factor = clamped(step, c, False)
    made, s, square, below = _ball_sum(p, gap, z, gap_z, c)
    given, _ = result_gradient(given, first, made, c, False)
    given = given / below[:, None]
    w = z + (c * tl.sum(z * z, 1))[:, None] * p
    share = tl.sum(given * w, 1) / below
    by_square = -gap * share
    by_s = gap[:, None] * given + (2.0 * c * by_square)[:, None] * s
    by_gap = c * square * share
    by_gap_z = -gap * tl.sum(given * made, 1)
    by_step, by_c = clamp_gradient(by_s, by_gap_z, step, factor, c, False)
    by_v, bent = scaled_gradient(by_step, v, c, t, value, slope, False, True)
    by_gap -= tl.sum(by_v * v, 1) / gap
    by_p = by_s + (c * square)[:, None] * given
    return by_p, by_gap, by_v / gap[:, None], by_c + bent + square * by_square


@triton.jit
def logarithm(p, a, r, b, c, HYPERBOLOID: tl.constexpr):
    """Tangents at ``p`` towards ``r``, and their time coordinates, 0 in the ball."""
    q = squared_gap(p, a, r, b, c, HYPERBOLOID)[0]
    ratio, _ = _ratio(c * q)
    first = tl.zeros_like(c)
    if HYPERBOLOID:
        made = _hyperboloid_tangent(p, r, c * q, ratio)
        most = tl.sqrt(tl.zeros_like(c) + largest(p) / p.shape[1])[:, None]
        made = tl.minimum(tl.maximum(made, -most), most)
        first = tl.sqrt(c) * tl.sum(p / a[:, None] * made, 1)
    else:
        made = _ball_tangent(p, a, r, b, c * q, ratio)
    return made, first


@triton.jit
def logarithm_gradient(given, first, p, a, r, b, c, HYPERBOLOID: tl.constexpr):
    """Gradients by ``p``, its gap, ``r``, its gap and the curvature."""
    q, across, root, lean = squared_gap(p, a, r, b, c, HYPERBOLOID)
    t = c * q
    ratio, steep = _ratio(t)
    by_a, by_b, by_c = tl.zeros_like(c), tl.zeros_like(c), tl.zeros_like(c)
    if HYPERBOLOID:
        made = _hyperboloid_tangent(p, r, t, ratio)
        given, by_p, by_c = _time_gradient(given, first, made, p, a, c)
        by_t = steep * tl.sum(given * made, 1) - 2.0 * ratio * tl.sum(given * p, 1)
        by_r = ratio[:, None] * given
        by_p -= by_r + (2.0 * t * ratio)[:, None] * given
    else:
        made = _ball_tangent(p, a, r, b, t, ratio)
        grown = tl.sum(given * made, 1)
        by_t = steep * grown - ratio * a * tl.sum(given * p, 1)
        by_r = (ratio * a / b)[:, None] * given
        by_p = -by_r - (t * ratio * a)[:, None] * given
        by_a, by_b = grown / a, -tl.sum(by_r * (r - p), 1) / b
    gap_p, gap_a, gap_r, gap_b, gap_c = gap_gradient(
        c * by_t, p, a, r, b, c, q, across, root, lean, HYPERBOLOID
    )
    return by_p + gap_p, by_a + gap_a, by_r + gap_r, by_b + gap_b, by_c + gap_c + q * by_t


@triton.jit
def _ratio(t):
    """The ratio of a distance to its sinh, and the derivative of its logarithm by ``t``."""
    value = asinhc(t)
    # both terms are negative
    steep = asinhc_slope(t, value) / value - 0.5 / (1.0 + t)
    return value / tl.sqrt(1.0 + t), steep


@triton.jit
def _hyperboloid_tangent(p, r, t, ratio):
    """Space coordinates of tangents."""
    return ratio[:, None] * (r - p) - (2.0 * t * ratio)[:, None] * p


@triton.jit
def _time_gradient(given, first, made, p, a, c):
    """Gradients by space coordinates of a tangent, by its point and by the curvature."""
    normal = p / a[:, None]
    along = tl.sum(normal * made, 1)
    first *= tl.sqrt(c)
    across = made - (c * along)[:, None] * normal
    by_p = (first / a)[:, None] * with_radial(across, along / a, p, a, c)
    return given + first[:, None] * normal, by_p, first * along / (2.0 * c * a * a)


@triton.jit
def _ball_tangent(p, gap, r, gap_r, t, ratio):
    """Coordinates of tangents in the ball."""
    return (ratio * gap / gap_r)[:, None] * (r - p) - (t * ratio * gap)[:, None] * p


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
    call = RowCall((x, y, c), VALUE_NUMBERS, hyperboloid)
    return call.value(map_kernel, x.shape[-1], OUTWARD=outward)


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
    call = RowCall((x, y, c), GRADIENT_NUMBERS, hyperboloid)
    grad = grad.contiguous()
    return call.gradients(map_gradient_kernel, grad, OUTWARD=outward, CURVED=needed[-1])
