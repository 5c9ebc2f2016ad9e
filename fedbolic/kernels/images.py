# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Images of points on the hyperboloid, and points of images, in registers.

An image is given by space coordinates :math:`s` and the time coordinate :math:`a = \sqrt{1 + c
|s|^2}` in radii. A point of the hyperboloid is its own image. That of a point :math:`x` of the ball
is :math:`s = 2 x / (1 - c |x|^2)`, and :math:`x = s / (1 + a)`.
"""

import triton
from triton import language as tl

from fedbolic.kernels.radial import clamped_result, result_gradient
from fedbolic.kernels.rows import clamp_gradient, clamped, most_in_ball


@triton.jit
def set_rows(x, batch, block, n, d, of_x, FIRST: tl.constexpr, ROWS, WIDTH):
    """Some rows of one set, their numbers in the set and all sets, and places of coordinates.

    ``FIRST`` is the column of the first coordinate, after a time coordinate if it is 1.
    """
    i = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, WIDTH)
    mask = (i < n)[:, None] & (k < d)[None, :]
    start = x + (batch * of_x * n + i)[:, None] * (d + FIRST)
    return tl.load(start + (k + FIRST)[None, :], mask=mask, other=0.0), i, k, mask


@triton.jit
def one_row(x, batch, d, WIDTH: tl.constexpr):
    """The only row of one set."""
    k = tl.arange(0, WIDTH)
    return tl.load(x + batch * d + k, mask=k < d, other=0.0)[None, :]


@triton.jit
def image(u, c, HYPERBOLOID: tl.constexpr):
    """Images of points that are clamped, times, and factors that clamp."""
    s, a, factor = clamped(u, c, HYPERBOLOID)
    if not HYPERBOLOID:
        s, a = (2.0 / a)[:, None] * s, 2.0 / a - 1.0
    return s, a, factor


@triton.jit
def image_gradient(by_s, u, a, factor, c, HYPERBOLOID: tl.constexpr):
    """Gradients by rows before they are clamped, and by the curvature; those by times included."""
    by_gap = tl.zeros_like(a)
    if not HYPERBOLOID:
        scale = a + 1.0
        by_gap = scale * scale / -2.0 * factor * tl.sum(by_s * u, 1)
        by_s = scale[:, None] * by_s
    return clamp_gradient(by_s, by_gap, u, factor, c, HYPERBOLOID)


@triton.jit
def point_of(p, c, HYPERBOLOID: tl.constexpr):
    """Points of images that are clamped to the manifold, and their time coordinates."""
    made, time, _ = clamped_result(p, c, True)
    if HYPERBOLOID:
        first = time / tl.sqrt(c)
    else:
        made, first = _ball_factor(made, time, c)[:, None] * made, time
    return made, first


@triton.jit
def point_gradient(given, first, p, c, HYPERBOLOID: tl.constexpr):
    """Gradients by images before they are clamped, and by the curvature."""
    if HYPERBOLOID:
        by_p, by_c = result_gradient(given, first, p, c, True)
    else:
        made, time, factor = clamped_result(p, c, True)
        scale = _ball_factor(made, time, c)
        bend = scale * tl.sum(given * made, 1) / ((1.0 + time) * time)
        by_p = scale[:, None] * given - (c * bend)[:, None] * made
        by_p = factor[:, None] * by_p
        by_c = bend * tl.sum(made * made, 1) / -2.0
    return by_p, by_c


@triton.jit
def _ball_factor(s, time, c):
    """The factor ``1 / (1 + time)``, or less, so that points are inside of the ball."""
    inner = 1.0 + time
    # only points far away are clamped
    t = tl.maximum(c * tl.sum(s * s, 1), 1.0)
    return tl.sqrt(tl.minimum(most_in_ball(s) * inner * inner / t, 1.0)) / inner
