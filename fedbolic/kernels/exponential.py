# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Exponential map of rows in registers, and its gradient.

On the hyperboloid, with the squared length :math:`q` of the tangent and :math:`l = \sqrt{c q}`,

.. math:: y = x + (\cosh l - 1) \, x + \frac{\sinh l}{l} u, \quad \cosh l - 1 =
    \frac{\sinh^2 l}{1 + \cosh l}

In the ball the tangent at the origin gives a point :math:`z`, which is added to :math:`x` as in
``Poincare.mobius_add``. Every function takes a point and its time in radii, or its gap in the ball.
"""

import triton
from triton import language as tl

from fedbolic.kernels.functions import largest, tiny
from fedbolic.kernels.radial import (
    clamped_result,
    radial_bend,
    radial_factor,
    result_gradient,
    scaled_gradient,
)
from fedbolic.kernels.rows import clamp_gradient, clamped, with_radial


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
