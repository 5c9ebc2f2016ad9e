# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of the weighted centroid of each set of points.

One kernel sums the images :math:`s_i`. The second takes the squared sinh of half the distance
:math:`q_i` of each from the mean :math:`m`, whose time is :math:`C`, and sums what rounding left of
the mean, :math:`\delta = \sum_i w_i (s_i - m)`. The third divides by the Minkowski length,

.. math:: \mu = \frac{m + \delta} L, \quad L^2 = 1 + 2 Q + h^2, \quad
    Q = 2 c \sum_i w_i q_i, \quad h = \frac{Q + c \, m \cdot \delta} C

as ``formulas.centroids`` does but for the remainder. Then :math:`C + h` is the time of the mean of
points. With a gradient :math:`g` by the centroid and :math:`\kappa = g \cdot (m + \delta) / L^2`,
those by an image and by its weight are

.. math:: \frac{w_i} L (g - c \kappa \, e_i), \quad e_i = \frac{C + h}{a_i} s_i - m - \delta
    = 2 \frac{\partial q_i}{\partial s_i} + \frac h {a_i} s_i - \delta

.. math:: \frac 1 L \bigl(g \cdot (s_i - m - \delta) +
    \kappa (2 Q + h^2 - 2 c q_i - h a_i + c \, \delta \cdot s_i)\bigr)

so that one kernel has all gradients. Far from the origin, the remainder is not small next to the
components of :math:`e_i` across the direction of the points.
"""

from collections.abc import Sequence

import triton
from torch import Tensor
from triton import language as tl

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
    PROGRAMS,
    VALUE_NUMBERS,
    WARPS,
    batch_strides,
    batches_of,
    launch,
    row_sizes,
    splits_of,
)
from fedbolic.kernels.rows import gap_gradient, load_gradient, squared_gap, store_rows

MOST_SPLITS = tl.constexpr(128)
"""Largest number of parts of a set that separate programs sum."""

ADDED_AT_ONCE = tl.constexpr(8)
"""Sums of parts that are added at a time."""


@triton.jit
def _total(sums, batch, splits, d, WIDTH: tl.constexpr):
    """The sum over all parts of one set."""
    k = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], sums.dtype.element_ty)
    for start in range(0, splits, ADDED_AT_ONCE):
        j = start + tl.arange(0, ADDED_AT_ONCE)
        place = sums + (batch * splits + j)[:, None] * d + k[None, :]
        total += tl.sum(tl.load(place, mask=(j < splits)[:, None] & (k < d)[None, :], other=0.0), 0)
    return total[None, :]


@triton.jit
def _time(m, c):
    """Time coordinates, in radii of curvature, of points with these space coordinates."""
    return tl.sqrt(c * tl.sum(m * m, 1) + 1.0)


@triton.jit
def centroid_sum_kernel(
    x, w, c, sums, n, d, span, splits, w_row, of_x, of_w, of_c,
    HYPERBOLOID: tl.constexpr, FIRST: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The weighted sum of images of one part of one set."""
    batch, split = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    every = tl.zeros([ROWS], x.dtype.element_ty) + tl.load(c + batch * of_c)
    total = tl.zeros([WIDTH], x.dtype.element_ty)
    for block in range(split * span, tl.minimum(split * span + span, tl.cdiv(n, ROWS))):
        u, i, _, _ = set_rows(x, batch, tl.cast(block, tl.int64), n, d, of_x, FIRST, ROWS, WIDTH)
        weight = tl.load(w + batch * of_w + i * w_row, mask=i < n, other=0.0)
        s, _, _ = image(u, every, HYPERBOLOID)
        total += tl.sum(weight[:, None] * s, 0)
    k = tl.arange(0, WIDTH)
    tl.store(sums + (batch * splits + split) * d + k, total, mask=k < d)


@triton.jit
def centroid_spread_kernel(
    x, w, c, sums, rests, spreads, n, d, span, splits, w_row, of_x, of_w, of_c,
    HYPERBOLOID: tl.constexpr, FIRST: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The remainder of the mean and the spread about it, of one part of one set."""
    batch, split = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    every = tl.zeros([ROWS], x.dtype.element_ty) + tl.load(c + batch * of_c)
    m = _total(sums, batch, splits, d, WIDTH)
    b = _time(m, every)
    spread, rest = tl.zeros_like(every), tl.zeros([WIDTH], x.dtype.element_ty)
    for block in range(split * span, tl.minimum(split * span + span, tl.cdiv(n, ROWS))):
        u, i, _, _ = set_rows(x, batch, tl.cast(block, tl.int64), n, d, of_x, FIRST, ROWS, WIDTH)
        weight = tl.load(w + batch * of_w + i * w_row, mask=i < n, other=0.0)
        s, a, _ = image(u, every, HYPERBOLOID)
        spread += weight * squared_gap(s, a, m, b, every, True)[0]
        rest += tl.sum(weight[:, None] * (s - m), 0)
    k, place = tl.arange(0, WIDTH), batch * splits + split
    tl.store(rests + place * d + k, rest, mask=k < d)
    tl.store(spreads + place, 2.0 * tl.sum(every * spread, 0))


@triton.jit
def _shift_and_length(m, rest, spread, c):
    """The change of the time of the mean, and the Minkowski length."""
    shift = (spread + c * tl.sum(m * rest, 1)) / _time(m, c)
    return shift, tl.sqrt(2.0 * spread + shift * shift + 1.0)


@triton.jit
def centroid_kernel(
    c, sums, rests, spreads, out, known, d, splits, of_c,
    HYPERBOLOID: tl.constexpr, POINTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The centroid of one set; its mean, the remainder and the spread are kept."""
    batch = tl.program_id(0).to(tl.int64)
    one = tl.zeros([1], sums.dtype.element_ty) + tl.load(c + batch * of_c)
    m = _total(sums, batch, splits, d, WIDTH)
    rest = _total(rests, batch, splits, d, WIDTH)
    j, k = tl.arange(0, MOST_SPLITS), tl.arange(0, WIDTH)
    spread = tl.load(spreads + batch * splits + j, mask=j < splits, other=0.0)
    spread = tl.sum(spread, 0) + tl.zeros_like(one)
    _, length = _shift_and_length(m, rest, spread, one)
    mask, row = (k < d)[None, :], batch + tl.arange(0, 1)
    timed: tl.constexpr = 1 if POINTS and HYPERBOLOID else 0
    made, first = (m + rest) / length[:, None], tl.zeros_like(one)
    if POINTS:
        made, first = point_of(made, one, HYPERBOLOID)
    store_rows(out, made, first, row, batch + 1, d, k + timed, mask, timed)
    start = known + batch * (2 * d + 1)
    tl.store(start + k[None, :], m, mask=mask)
    tl.store(start + d + k[None, :], rest, mask=mask)
    tl.store(start + 2 * d + tl.arange(0, 1), spread)


@triton.jit
def _given(g, centroid, c, batch, d, HYPERBOLOID: tl.constexpr, POINTS: tl.constexpr):
    """Gradients by the image of a centroid and, if they are by the point, by the curvature."""
    row, k = batch + tl.arange(0, 1), tl.arange(0, centroid.shape[1])
    timed: tl.constexpr = 1 if POINTS and HYPERBOLOID else 0
    mask = (k < d)[None, :]
    given, first = load_gradient(g, row, batch + 1, d, k + timed, mask, timed)
    by_c = tl.zeros_like(c)
    if POINTS:
        given, by_c = point_gradient(given, first, centroid, c, HYPERBOLOID)
    return given, by_c


@triton.jit
def centroid_gradient_kernel(
    x, w, c, known, g, by_x, by_w, by_c, n, d, w_row, of_x, of_w, of_c,
    HYPERBOLOID: tl.constexpr, FIRST: tl.constexpr, POINTS: tl.constexpr,
    WEIGHTED: tl.constexpr, CURVED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of some points and weights, and a sum by the curvature."""
    blocks = tl.cdiv(n, ROWS)
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    u, i, k, mask = set_rows(x, batch, block, n, d, of_x, FIRST, ROWS, WIDTH)
    every = tl.zeros([ROWS], u.dtype) + tl.load(c + batch * of_c)
    weight = tl.load(w + batch * of_w + i * w_row, mask=i < n, other=0.0)
    start = known + batch * (2 * d + 1)
    m, rest = one_row(start, 0, d, WIDTH), one_row(start + d, 0, d, WIDTH)
    one = tl.zeros([1], u.dtype) + tl.load(c + batch * of_c)
    spread = tl.load(start + 2 * d)
    shift, length = _shift_and_length(m, rest, spread, one)
    given, curved_once = _given(g, (m + rest) / length[:, None], one, batch, d, HYPERBOLOID, POINTS)
    s, a, factor = image(u, every, HYPERBOLOID)
    b, zero = _time(m, every), tl.zeros_like(every)
    q, across, root, lean = squared_gap(s, a, m, b, every, True)
    turn, _, _, _, _ = gap_gradient(zero + 2.0, s, a, m, b, every, q, across, root, lean, True)
    share = tl.sum(given * (m + rest), 1) / (length * length)
    turn += (shift / a)[:, None] * s - rest
    by_s = (weight / length)[:, None] * (given - (every * share)[:, None] * turn)
    to_x, curved = image_gradient(by_s, u, a, factor, every, HYPERBOLOID)
    row, end = batch * n + i, batch * n + n
    store_rows(by_x, to_x, zero, row, end, d, k + FIRST, mask, FIRST)
    left = tl.sum(rest * s, 1)
    if WEIGHTED:
        grown = 2.0 * spread + shift * shift - 2.0 * every * q
        grown += every * left - shift * a
        to_w = (tl.sum(given * ((s - m) - rest), 1) + share * grown) / length
        tl.store(by_w + row, to_w, mask=i < n)
    if CURVED:
        # the product of a point with the derivative of its gap is known
        radial = 2.0 * q + lean * root / a + shift / a * tl.sum(s * s, 1) - left
        curved -= weight * share / (2.0 * length) * radial
        total = tl.sum(tl.where(i < n, curved, 0.0), 0) + tl.where(block == 0, curved_once, 0.0)
        tl.store(by_c + batch * blocks + block + tl.arange(0, 1), total)


def set_centroid(
    x: Tensor, w: Tensor, c: Tensor, *, hyperboloid: bool, timed: bool, images: bool
) -> tuple[Tensor, Tensor]:
    """Centroids, of shape ``(..., 1, width)``, and the numbers that gradients read.

    Args:
        x: Points, of shape ``(..., n, width)``. Leading axes broadcast, as they do for the other
            arguments.
        w: Weights that sum to 1, of shape ``(..., n, 1)``, or one for all.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)``.
        hyperboloid: True for points of the hyperboloid, False for those of the ball.
        timed: True if the first coordinate is a time coordinate, which is not read.
        images: True for space coordinates on the hyperboloid, False for points.
    """
    lead, ((x,), (w,), (c,)) = batches_of((x,), (w,), (c,))
    n, d = x.shape[-2], x.shape[-1] - timed
    sizes = row_sizes(d, VALUE_NUMBERS[x.dtype])
    batches = lead.numel()
    blocks = triton.cdiv(n, sizes["ROWS"])
    splits, span = splits_of(blocks, 1, max(batches, PROGRAMS // MOST_SPLITS.value))
    sums, rests, spreads = (x.new_empty(batches, splits, k) for k in (d, d, 1))
    width = d + (hyperboloid and not images)
    out, known = (x.new_empty(*lead, 1, k) for k in (width, 2 * d + 1))
    given = n, d, span, splits, *_weight_strides(x, w, c)
    model = {"HYPERBOLOID": hyperboloid, "FIRST": int(timed), "num_warps": WARPS, **sizes}
    programs, summed = batches * splits, (x, w, c, sums)
    launch(centroid_sum_kernel, programs, out, *summed, *given, **model)
    launch(centroid_spread_kernel, programs, out, *summed, rests, spreads, *given, **model)
    launch(
        centroid_kernel, batches, out, c, sums, rests, spreads, out, known, d, splits,
        *batch_strides((c,)), HYPERBOLOID=hyperboloid, POINTS=not images, WIDTH=sizes["WIDTH"],
        num_warps=WARPS,
    )  # fmt: skip
    return out, known


def set_centroid_gradients(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    c: Tensor,
    known: Tensor,
    *,
    hyperboloid: bool,
    timed: bool,
    images: bool,
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of :func:`set_centroid`, as the registrar asks for them.

    Weights are scaled to sum to 1. Those by the curvature are numbers to sum, one for a part.
    """
    lead, ((x,), (w,), (c,)) = batches_of((x,), (w,), (c,), lead=grad.shape[:-2])
    n, d = x.shape[-2], x.shape[-1] - timed
    sizes = row_sizes(d, GRADIENT_NUMBERS[x.dtype])
    blocks = triton.cdiv(n, sizes["ROWS"])
    _, weighted, curved = needed
    by_x = x.new_empty(*lead, n, x.shape[-1])
    by_w = x.new_empty(*lead, n, 1) if weighted else grad
    by_c = x.new_empty(*lead, blocks, 1) if curved else grad
    launch(
        centroid_gradient_kernel, blocks * lead.numel(), grad, x, w, c, known.contiguous(),
        grad.contiguous(), by_x, by_w, by_c, n, d, *_weight_strides(x, w, c),
        HYPERBOLOID=hyperboloid, FIRST=int(timed), POINTS=not images, WEIGHTED=weighted,
        CURVED=curved, num_warps=WARPS, **sizes,
    )  # fmt: skip
    return by_x, by_w if weighted else None, by_c if curved else None


def _weight_strides(x: Tensor, w: Tensor, c: Tensor) -> tuple[int, int, int, int]:
    """Strides of weights along a set, of sets, of their weights and of their curvatures."""
    of_x, of_w, of_c = batch_strides((x,), (w,), (c,))
    n = w.shape[-2]
    return int(n > 1), of_x, of_w * n, of_c
