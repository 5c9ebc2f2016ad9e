# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of pairwise distances, which hold the differences of two points in registers.

A distance is that of the manifold's ``dist``, whose terms are differences of coordinates and do not
cancel. For the hyperboloid, with time coordinates :math:`a, b` in radii,

.. math:: q = \frac 1 4 \Bigl| \sqrt{\tfrac b a} x - \sqrt{\tfrac a b} y \Bigr|^2
    + \frac c 4 l^2, \quad l = \frac{(x - y) \cdot (x + y)}{(a + b) \sqrt{a b}}

and for the ball, with gaps :math:`a = 1 - c |x|^2`, :math:`q = |x - y|^2 / (a b)`; then
:math:`d = 2 \operatorname{asinh}(\sqrt{c q}) / \sqrt c`. A matrix of ``n m`` distances is written
once, and read once for each of two gradients; nothing else has its size.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.functions import asinhc, asinhc_slope, tiny
from fedbolic.kernels.launch import Tile, batches_of, launch, splits_of

FORWARD = {torch.float32: Tile(32, 32), torch.float64: Tile(16, 32)}
BACKWARD = {torch.float32: Tile(16, 32), torch.float64: Tile(8, 32)}


@triton.jit
def _lean(x, a, y, b, i, j, n, m, d, of_row, of_column):
    """The number ``l`` of each pair, and the root of ``a b``."""
    lean = tl.zeros([i.shape[0], j.shape[0]], a.dtype)
    for _ in range(d):
        u = tl.load(x + i, mask=of_row, other=0.0)[:, None]
        v = tl.load(y + j, mask=of_column, other=0.0)[None, :]
        lean += (u - v) * (u + v)
        x += n
        y += m
    root = tl.sqrt(a[:, None] * b[None, :])
    return lean / ((a[:, None] + b[None, :]) * root), root


@triton.jit
def _across(u, v, near, turn, first):
    """A coordinate of ``sqrt(b / a) x - sqrt(a / b) y``.

    Only the point nearer to the origin is multiplied, which avoids overflow.
    """
    return near * (u - v) - turn * tl.where(first, u, v)


@triton.jit
def _pairs(x, a, y, b, c, i, j, n, m, d, of_row, of_column, HYPERBOLOID: tl.constexpr):
    """The number ``q`` of each pair, and the factors of a coordinate across."""
    first = a[:, None] < b[None, :]
    q = tl.zeros([i.shape[0], j.shape[0]], a.dtype)
    if HYPERBOLOID:
        lean, root = _lean(x, a, y, b, i, j, n, m, d, of_row, of_column)
        near = tl.minimum(a[:, None], b[None, :]) / root
        turn = c * lean
    else:
        lean, root = q, a[:, None] * b[None, :]
        near, turn = root, q
    for _ in range(d):
        u = tl.load(x + i, mask=of_row, other=0.0)[:, None]
        v = tl.load(y + j, mask=of_column, other=0.0)[None, :]
        across = _across(u, v, near, turn, first) if HYPERBOLOID else u - v
        q += across * across
        x += n
        y += m
    q = (q + turn * lean) / 4.0 if HYPERBOLOID else q / root
    return q, lean, root, near, turn, first


@triton.jit
def pair_kernel(
    x, a, y, b, c, out, n, m, d, of_x, of_y, of_c,
    HYPERBOLOID: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Distances of one tile of one matrix; points are stored by coordinate."""
    across = tl.cdiv(m, COLUMNS)
    tiles = tl.cdiv(n, ROWS) * across
    batch, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    of_row, of_column = i < n, j < m
    p = tl.load(a + batch * of_x * n + i, mask=of_row, other=1.0)
    r = tl.load(b + batch * of_y * m + j, mask=of_column, other=1.0)
    curvature = tl.load(c + batch * of_c)
    x += batch * of_x * n * d
    y += batch * of_y * m * d
    q = _pairs(x, p, y, r, curvature, i, j, n, m, d, of_row, of_column, HYPERBOLOID)[0]
    distance = 2.0 * tl.sqrt(q) * asinhc(curvature * q)
    place = out + batch * n * m + i.to(tl.int64)[:, None] * m + j[None, :]
    tl.store(place, distance, mask=of_row[:, None] & of_column[None, :])


@triton.jit
def _bend(given, q, lean, weight, c):
    """Gradient with respect to the curvature of each pair."""
    t = c * q
    slope = 2.0 * given * tl.sqrt(tl.maximum(q, tiny(q))) * q * asinhc_slope(t, asinhc(t))
    return slope - weight * (lean * lean / 4.0)


@triton.jit
def _with_steps(
    vector, weight, x, y, i, j, n, m, d, near, turn, first, of_row, of_column,
    HYPERBOLOID: tl.constexpr,
):  # fmt: skip
    """A vector for each row, with the weighted coordinates across of a tile added."""
    width = tl.arange(0, vector.shape[1])
    for k in range(d):
        u = tl.load(x + i, mask=of_row, other=0.0)[:, None]
        v = tl.load(y + j, mask=of_column, other=0.0)[None, :]
        x += n
        y += m
        step = _across(u, v, near, turn, first) if HYPERBOLOID else u - v
        total = tl.sum(weight * step, 1)
        vector += tl.where(width[None, :] == k, total[:, None], 0.0)
    return vector


@triton.jit
def pair_gradient_kernel(
    x, a, y, b, c, g, by_point, by_radial, by_c,
    n, m, d, batches, of_x, of_y, of_c, g_batch, g_row, g_column, span, splits,
    HYPERBOLOID: tl.constexpr, CURVED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradient with respect to the points ``x`` of one tile of rows, over a span of columns.

    The derivative along a point is summed apart from the vector, which loses it by cancellation.
    """
    down = tl.cdiv(n, ROWS)
    part, rest = tl.program_id(0) // (down * batches), tl.program_id(0) % (down * batches)
    batch, i = (rest // down).to(tl.int64), rest % down * ROWS + tl.arange(0, ROWS)
    of_row, width = i < n, tl.arange(0, WIDTH)
    p = tl.load(a + batch * of_x * n + i, mask=of_row, other=1.0)
    curvature = tl.load(c + batch * of_c)
    x += batch * of_x * n * d
    y += batch * of_y * m * d
    vector = tl.zeros([ROWS, WIDTH], p.dtype)
    radial, curved = tl.zeros([ROWS], p.dtype), tl.zeros([ROWS], p.dtype)
    for start in range(part * span, tl.minimum(part * span + span, m), COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        of_column = j < m
        r = tl.load(b + batch * of_y * m + j, mask=of_column, other=1.0)
        q, lean, root, near, turn, first = _pairs(
            x, p, y, r, curvature, i, j, n, m, d, of_row, of_column, HYPERBOLOID
        )
        place = g + batch * g_batch + i.to(tl.int64)[:, None] * g_row
        place += j.to(tl.int64)[None, :] * g_column
        given = tl.load(place, mask=of_row[:, None] & of_column[None, :], other=0.0)
        weight = given / (tl.sqrt(tl.maximum(q, tiny(q))) * tl.sqrt(1.0 + curvature * q))
        if CURVED:
            curved += tl.sum(_bend(given, q, lean, weight, curvature), 1)
        if HYPERBOLOID:
            ratio = root / p[:, None]
            radial += tl.sum(weight * (2.0 * q + lean * ratio), 1)
            weight = weight * ratio
        else:
            radial += tl.sum(-weight * q / p[:, None], 1)
            weight = 2.0 * weight / root
        vector = _with_steps(
            vector, weight, x, y, i, j, n, m, d, near, turn, first, of_row, of_column, HYPERBOLOID
        )
    row = (part.to(tl.int64) * batches + batch) * n + i
    places = by_point + row[:, None] * d + width[None, :]
    tl.store(places, vector, mask=of_row[:, None] & (width[None, :] < d))
    tl.store(by_radial + row, radial, mask=of_row)
    if CURVED:
        tl.store(by_c + row, curved, mask=of_row)


class PairSums(NamedTuple):
    """Sums over the columns of a matrix of distances, for each of its rows.

    Args:
        vector: Gradients with respect to the points but for a factor; for the hyperboloid, twice
            the gradient, whose component along the point has cancelled.
        radial: For the hyperboloid, the product of the point and ``vector``; for the ball, the
            gradient with respect to the gap.
        curvature: Gradient with respect to the curvature; ``None`` if it is not asked for.
    """

    vector: Tensor
    radial: Tensor
    curvature: Tensor | None


def pair_dist(
    x: Tensor, a: Tensor, y: Tensor, b: Tensor, c: Tensor, *, hyperboloid: bool
) -> Tensor:
    """All distances between two sets of points.

    Args:
        x: Coordinates, of shape ``(..., n, d)``, within the range of the manifold. The axes before
            these broadcast, as they do for the other arguments.
        a: Numbers of these points, of shape ``(..., n, 1)``.
        y: Coordinates of ``m`` other points.
        b: Their numbers.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)``, of the same dtype.
        hyperboloid: True for the hyperboloid, whose coordinates are those of space and whose
            numbers are time coordinates in radii; False for the ball and its gaps.
    """
    call = _Call((x, a), (y, b), c)
    x = call.points
    out = x.new_empty(*call.lead, call.n, call.m)
    tile = FORWARD[x.dtype]
    tiles = triton.cdiv(call.n, tile.rows) * triton.cdiv(call.m, tile.columns)
    launch(
        pair_kernel, tiles * call.batches, out, *call.tensors, out, call.n, call.m, call.d,
        *call.strides, HYPERBOLOID=hyperboloid,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip
    return out


def pair_dist_gradients(
    grad: Tensor,
    x: Tensor,
    a: Tensor,
    y: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    hyperboloid: bool,
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of :func:`pair_dist`, as the registrar asks for them.

    For the hyperboloid, those by the numbers are ``None``.
    """
    some = _sums(grad, (x, a), (y, b), c, hyperboloid=hyperboloid, curved=needed[-1])
    more = _sums(grad.mT, (y, b), (x, a), c, hyperboloid=hyperboloid, curved=False)
    if not hyperboloid:
        return some.vector, some.radial, more.vector, more.radial, some.curvature
    by_x = _with_component(x, a, some.vector, some.radial, c)
    by_y = _with_component(y, b, more.vector, more.radial, c)
    return by_x, None, by_y, None, some.curvature


def _with_component(x: Tensor, a: Tensor, vector: Tensor, radial: Tensor, c: Tensor) -> Tensor:
    """Half the vector, with the component along the point that it should have."""
    along = (x * vector).sum(-1, keepdim=True)
    return torch.addcmul(vector, c * a.pow(-2) * (radial - along), x) / 2


def _sums(
    grad: Tensor,
    points: Sequence[Tensor],
    others: Sequence[Tensor],
    c: Tensor,
    *,
    hyperboloid: bool,
    curved: bool,
) -> PairSums:
    """Sums from which the gradient with respect to ``points`` follows, in the broadcast shape."""
    call = _Call(points, others, c)
    x, n, m, d = call.points, call.n, call.m, call.d
    tile = BACKWARD[x.dtype]
    grad = grad.reshape(call.batches, n, m)
    down = triton.cdiv(n, tile.rows) * call.batches
    splits, span = splits_of(m, tile.columns, down)
    vector, radial, by_c = (
        x.new_zeros(splits, call.batches, n, width) for width in (d, 1, int(curved))
    )
    launch(
        pair_gradient_kernel, splits * down, grad, *call.tensors, grad, vector, radial, by_c,
        n, m, d, call.batches, *call.strides, *grad.stride(), span, splits,
        HYPERBOLOID=hyperboloid, CURVED=curved, ROWS=tile.rows, COLUMNS=tile.columns,
        WIDTH=triton.next_power_of_2(d), num_warps=tile.warps,
    )  # fmt: skip
    shape = *call.lead, n
    return PairSums(
        vector.sum(0).reshape(*shape, d),
        radial.sum(0).reshape(*shape, 1),
        by_c.sum(0).reshape(*shape, 1) if curved else None,
    )


class _Call:
    """Tensors and strides of a launch; a set common to all matrices has the stride 0."""

    def __init__(self, points: Sequence[Tensor], others: Sequence[Tensor], c: Tensor) -> None:
        x, y = points[0], others[0]
        self.n, self.m, self.d = x.shape[-2], y.shape[-2], x.shape[-1]
        self.lead, ((x, a), (y, b), (c,)) = batches_of(points, others, (c,))
        self.batches = self.lead.numel()
        self.points = x
        self.tensors: tuple[Any, ...] = (x.mT.contiguous(), a, y.mT.contiguous(), b, c)
        self.strides = tuple(int(len(t) > 1) for t in (x, y, c))
