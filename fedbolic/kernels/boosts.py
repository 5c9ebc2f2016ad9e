# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of translations along geodesics through the origin, of all points of a set alike.

With images :math:`s` of points and :math:`m` of a mean, and their times :math:`a` and :math:`b`,

.. math:: s \mapsto e + c (\alpha - \beta) \, m, \quad e = s - m, \quad
    \alpha = \frac{e \cdot m}{1 + b}, \quad
    \beta = \frac{e \cdot (s + m)}{a + b} = \frac{a - b} c

moves the mean to the origin, and :math:`s + \bigl(a + \frac{c \, m \cdot s}{1 + b}\bigr) m` moves
the origin to the mean. The latter is given by its tangent at the origin. All differences are taken
before any rounding, also those of the derivatives

.. math:: \frac{\partial c (\alpha - \beta)}{\partial s} =
    - \frac{c}{1 + b} \Bigl(e + \frac{1 - c \beta}{a} s\Bigr), \quad
    \frac{\partial c (\alpha - \beta)}{\partial m} =
    \frac{c}{1 + b} \Bigl(e + \frac{1 - c \alpha}{b} m\Bigr)
"""

from collections.abc import Sequence

import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.functions import largest
from fedbolic.kernels.images import (
    image,
    image_gradient,
    one_row,
    point_gradient,
    point_of,
    set_rows,
)
from fedbolic.kernels.launch import (
    GRADIENT_NUMBERS,
    VALUE_NUMBERS,
    WARPS,
    batch_strides,
    batches_of,
    launch,
    row_sizes,
)
from fedbolic.kernels.radial import clamped_result, radial_factor, scaled_gradient
from fedbolic.kernels.rows import load_gradient, store_rows


@triton.jit
def _mean_of(v, c, OUTWARD: tl.constexpr):
    """The image of the mean, its time and the factor that clamps it, and terms of a gradient."""
    t = c * tl.minimum(tl.sum(v * v, 1), largest(v))
    value, slope = radial_factor(t, True, True)
    if not OUTWARD:
        value = tl.zeros_like(t) + 1.0
    m, b, clamp = clamped_result(value[:, None] * v, c, True)
    return m, b, clamp, t, value, slope


@triton.jit
def boost_kernel(
    x, mean, c, out, n, d, of_x, of_mean, of_c,
    HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Points of some images that are moved if ``OUTWARD``, otherwise images of points."""
    blocks = tl.cdiv(n, ROWS)
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    first_x: tl.constexpr = 1 if HYPERBOLOID and not OUTWARD else 0
    first_out: tl.constexpr = 1 if HYPERBOLOID and OUTWARD else 0
    u, i, k, mask = set_rows(x, batch, block, n, d, of_x, first_x, ROWS, WIDTH)
    v = one_row(mean, batch * of_mean, d, WIDTH)
    curvature = tl.load(c + batch * of_c)
    every, one = tl.zeros([ROWS], v.dtype) + curvature, tl.zeros([1], v.dtype) + curvature
    m, b, _, _, _, _ = _mean_of(v, one, OUTWARD)
    s, a, _ = image(u, every, HYPERBOLOID or OUTWARD)
    if OUTWARD:
        lift = a + every * tl.sum(s * m, 1) / (1.0 + b)
        made, first = point_of(s + lift[:, None] * m, every, HYPERBOLOID)
    else:
        gap = s - m
        lift = tl.sum(gap * m, 1) / (1.0 + b) - tl.sum(gap * (s + m), 1) / (a + b)
        made, first = gap + (every * lift)[:, None] * m, a
    row, end = batch * n + i, batch * n + n
    store_rows(out, made, first, row, end, d, k + first_out, mask, first_out)


@triton.jit
def _outward_gradient(given, first, s, a, m, b, c, HYPERBOLOID: tl.constexpr):
    """Gradients by images, by the mean and by the curvature, a row for each point."""
    product = tl.sum(s * m, 1)
    lift = a + c * product / (1.0 + b)
    given, by_c = point_gradient(given, first, s + lift[:, None] * m, c, HYPERBOLOID)
    along = tl.sum(given * m, 1)
    share = c * along / (1.0 + b)
    by_s = given + (c * along / a)[:, None] * s + share[:, None] * m
    by_m = lift[:, None] * given + share[:, None] * s
    by_m -= (share * c * product / ((1.0 + b) * b))[:, None] * m
    return by_s, by_m, by_c + along * (tl.sum(s * s, 1) / (2.0 * a) + product / (2.0 * b))


@triton.jit
def _inward_gradient(given, s, a, m, b, c):
    """Gradients by images, by the mean and by the curvature, a row for each point."""
    gap = s - m
    near = tl.sum(gap * m, 1) / (1.0 + b)
    far = tl.sum(gap * (s + m), 1) / (a + b)
    along = tl.sum(given * m, 1)
    share = c * along / (1.0 + b)
    by_s = given - share[:, None] * (gap + ((1.0 - c * far) / a)[:, None] * s)
    by_m = (c * (near - far) - 1.0)[:, None] * given
    by_m += share[:, None] * (gap + ((1.0 - c * near) / b)[:, None] * m)
    by_c = near * (1.0 + b) / (2.0 * b) - far * (1.0 + 1.0 / (a * b)) / 2.0
    return by_s, by_m, along * by_c


@triton.jit
def boost_gradient_kernel(
    x, mean, c, g, by_x, by_mean, by_c, n, d, of_x, of_mean, of_c,
    HYPERBOLOID: tl.constexpr, OUTWARD: tl.constexpr, CURVED: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of some points, and their sums by the mean and the curvature."""
    blocks = tl.cdiv(n, ROWS)
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    first_x: tl.constexpr = 1 if HYPERBOLOID and not OUTWARD else 0
    first_out: tl.constexpr = 1 if HYPERBOLOID and OUTWARD else 0
    u, i, k, mask = set_rows(x, batch, block, n, d, of_x, first_x, ROWS, WIDTH)
    v = one_row(mean, batch * of_mean, d, WIDTH)
    curvature = tl.load(c + batch * of_c)
    every, one = tl.zeros([ROWS], v.dtype) + curvature, tl.zeros([1], v.dtype) + curvature
    row, end = batch * n + i, batch * n + n
    given, first = load_gradient(g, row, end, d, k + first_out, mask, first_out)
    m, b, clamp, t, value, slope = _mean_of(v, one, OUTWARD)
    s, a, factor = image(u, every, HYPERBOLOID or OUTWARD)
    if OUTWARD:
        by_s, by_m, curved = _outward_gradient(given, first, s, a, m, b, every, HYPERBOLOID)
    else:
        by_s, by_m, curved = _inward_gradient(given, s, a, m, b, every)
    to_x, curved_x = image_gradient(by_s, u, a, factor, every, HYPERBOLOID or OUTWARD)
    store_rows(by_x, to_x, tl.zeros_like(a), row, end, d, k + first_x, mask, first_x)
    to_mean = clamp[:, None] * tl.sum(by_m, 0)[None, :]
    total = tl.sum(tl.where(i < n, curved + curved_x, 0.0), 0) + tl.zeros([1], v.dtype)
    if OUTWARD:
        to_mean, bent = scaled_gradient(to_mean, v, one, t, value, slope, True, True)
        total += bent
    place = (batch * blocks + block) * d + k[None, :]
    tl.store(by_mean + place, to_mean, mask=(k < d)[None, :])
    if CURVED:
        tl.store(by_c + batch * blocks + block + tl.arange(0, 1), total)


def boost(x: Tensor, mean: Tensor, c: Tensor, *, hyperboloid: bool, outward: bool) -> Tensor:
    """Points moved as the origin is moved to a mean, or their images as a mean to the origin.

    Args:
        x: Images if ``outward``, otherwise points, of shape ``(..., n, width)``. Leading axes
            broadcast, as they do for the other arguments.
        mean: The tangent at the origin that leads to the mean if ``outward``, otherwise the image
            of the mean, of shape ``(..., 1, d)``.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)``.
        hyperboloid: True for points of the hyperboloid, False for those of the ball.
        outward: True if the origin is moved, False if the mean.
    """
    lead, ((x,), (mean,), (c,)) = batches_of((x,), (mean,), (c,))
    n, d = x.shape[-2], mean.shape[-1]
    out = x.new_empty(*lead, n, d + (hyperboloid and outward))
    sizes = row_sizes(d, VALUE_NUMBERS[x.dtype])
    launch(
        boost_kernel, triton.cdiv(n, sizes["ROWS"]) * lead.numel(), out, x, mean, c, out, n, d,
        *batch_strides((x,), (mean,), (c,)),
        HYPERBOLOID=hyperboloid, OUTWARD=outward, num_warps=WARPS, **sizes,
    )  # fmt: skip
    return out


def boost_gradients(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    c: Tensor,
    *,
    hyperboloid: bool,
    outward: bool,
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of :func:`boost`, as the registrar asks for them.

    Those by the mean and the curvature are numbers to sum, of shape ``(..., parts, width)``.
    """
    lead, ((x,), (mean,), (c,)) = batches_of((x,), (mean,), (c,), lead=grad.shape[:-2])
    n, d = x.shape[-2], mean.shape[-1]
    sizes = row_sizes(d, GRADIENT_NUMBERS[x.dtype])
    blocks = triton.cdiv(n, sizes["ROWS"])
    by_x = x.new_empty(*lead, n, x.shape[-1])
    by_mean = x.new_empty(*lead, blocks, d)
    curved = needed[-1]
    by_c = x.new_empty(*lead, blocks, 1) if curved else grad
    launch(
        boost_gradient_kernel, blocks * lead.numel(), grad, x, mean, c, grad.contiguous(),
        by_x, by_mean, by_c, n, d, *batch_strides((x,), (mean,), (c,)),
        HYPERBOLOID=hyperboloid, OUTWARD=outward, CURVED=curved, num_warps=WARPS, **sizes,
    )  # fmt: skip
    return by_x, by_mean, by_c if curved else None
