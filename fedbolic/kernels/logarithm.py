# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Logarithm of rows in registers, and its gradient.

With the squared sinh :math:`c q` of half the distance in radii, the distance over its sinh is
:math:`\rho = \frac{\operatorname{asinh} \sqrt{c q}}{\sqrt{c q} \, \sqrt{1 + c q}}`, and the tangent
at :math:`x` towards :math:`y`

.. math:: \rho \, (y - x) - 2 c q \rho \, x, \qquad
    \rho \, \frac{g_x}{g_y} (y - x) - c q \rho \, g_x \, x

on the hyperboloid (its space coordinates) and in the ball with the gaps :math:`g`. Every function
takes points and their times in radii, or their gaps in the ball.
"""

import triton
from triton import language as tl

from fedbolic.kernels.functions import asinhc, asinhc_slope, largest
from fedbolic.kernels.rows import gap_gradient, squared_gap, with_radial


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
