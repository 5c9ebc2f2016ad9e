# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of the logits of hyperplanes: a matrix product, and the inverse sinh of its tiles.

A logit is :math:`f |w_k| \operatorname{asinh}(\sqrt c \, t) / \sqrt c` of the product :math:`t` of
a point with the normal of a hyperplane. The kernel applies the inverse sinh to the sums in its
registers, so that the matrix of products is written only if a gradient will read it. A second
kernel reads it once for the gradient with respect to the products and for the sums over points; the
gradients with respect to points and normals are torch's matrix products.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.functions import (
    asinhc,
    asinhc_series,
    largest_sinh,
    series_limit,
    tiny,
)
from fedbolic.kernels.launch import Tile, batch_strides, batches_of, launch, splits_of
from fedbolic.kernels.normals import normal_gradients, plane_normals

MOST_COLUMNS = {torch.float32: 64, torch.float64: 32}
"""Hyperplanes of one tile; 16, the least of a matrix product, if there are fewer."""

LOGIT_TILES = {torch.float32: Tile(64, 16, 8), torch.float64: Tile(32, 16)}
"""Points of one tile, and coordinates that are multiplied at a time."""

LOGIT_GRADIENT_TILES = {torch.float32: Tile(16, 64), torch.float64: Tile(8, 64)}


@triton.jit
def logit_kernel(
    x, normals, lengths, c, out, products, n, m, d, of_x, of_normals, of_c,
    FACTOR: tl.constexpr, KEPT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Logits of one tile of one matrix, and the products if a gradient will read them."""
    across = tl.cdiv(m, COLUMNS)
    tiles = tl.cdiv(n, ROWS) * across
    batch, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    of_row, of_column = (i < n)[:, None], (j < m)[None, :]
    left = x + (batch * of_x * n + i)[:, None] * d
    right = normals + (batch * of_normals * m + j)[None, :] * d
    length = FACTOR * tl.load(lengths + batch * of_normals * m + j, mask=j < m, other=0.0)
    product = tl.zeros([ROWS, COLUMNS], length.dtype)
    for start in range(0, d, DEPTH):
        k = start + tl.arange(0, DEPTH)
        u = tl.load(left + k[None, :], mask=of_row & (k < d)[None, :], other=0.0)
        v = tl.load(right + k[:, None], mask=of_column & (k < d)[:, None], other=0.0)
        product = tl.dot(u, v, product, input_precision="ieee", out_dtype=length.dtype)
    curvature = tl.load(c + batch * of_c)
    limit = largest_sinh(product) / tl.sqrt(tl.maximum(curvature, tiny(product)))
    t = tl.minimum(tl.maximum(product, -limit), limit)
    place = (batch * n + i)[:, None] * m + j[None, :]
    logit = length[None, :] * (t * asinhc(curvature * t * t))
    tl.store(out + place, logit, mask=of_row & of_column)
    if KEPT:
        tl.store(products + place, t, mask=of_row & of_column)


@triton.jit
def logit_gradient_kernel(
    g, products, lengths, c, by_product, by_length, by_c,
    n, m, batches, of_normals, of_c, g_batch, g_row, g_column, span,
    FACTOR: tl.constexpr, CURVED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradient with respect to the products of some columns, and sums over a span of rows."""
    across = tl.cdiv(m, COLUMNS)
    part, rest = tl.program_id(0) // (across * batches), tl.program_id(0) % (across * batches)
    batch, j = (rest // across).to(tl.int64), rest % across * COLUMNS + tl.arange(0, COLUMNS)
    of_column = j < m
    length = tl.load(lengths + batch * of_normals * m + j, mask=of_column, other=0.0)
    curvature = tl.load(c + batch * of_c)
    total, curved = tl.zeros([COLUMNS], length.dtype), tl.zeros([COLUMNS], length.dtype)
    for start in range(part * span, tl.minimum(part * span + span, n), ROWS):
        i = (start + tl.arange(0, ROWS)).to(tl.int64)
        mask = (i < n)[:, None] & of_column[None, :]
        place = (batch * n + i)[:, None] * m + j[None, :]
        given = g + batch * g_batch + i[:, None] * g_row + j.to(tl.int64)[None, :] * g_column
        given = FACTOR * tl.load(given, mask=mask, other=0.0)
        t = tl.load(products + place, mask=mask, other=0.0)
        q = curvature * t * t
        cosh, value = tl.sqrt(1.0 + q), t * asinhc(q)
        total += tl.sum(given * value, 0)
        given *= length[None, :]
        tl.store(by_product + place, given / cosh, mask=mask)
        if CURVED:
            near = q < series_limit(q)
            u = tl.where(near, t, 0.0)
            series = u * u * u * asinhc_series(tl.minimum(q, series_limit(q)))
            closed = (t / cosh - value) / (2.0 * tl.maximum(curvature, tiny(q)))
            curved += tl.sum(given * tl.where(near, series, closed), 0)
    row = (part.to(tl.int64) * batches + batch) * m + j
    tl.store(by_length + row, total, mask=of_column)
    if CURVED:
        tl.store(by_c + row, curved, mask=of_column)


def plane_logits(
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    c: Tensor,
    *,
    factor: float,
    hyperboloid: bool,
    kept: bool,
) -> tuple[Tensor, ...]:
    """Logits of points for hyperplanes and, if ``kept`` is true, what gradients read.

    Args:
        x: Time and space coordinates, of shape ``(..., n, d)``. The axes before these broadcast, as
            they do for the other arguments.
        weight: Directions of the hyperplanes at the origin, of shape ``(..., m, d - 1)``.
        offset: Signed distances from the origin, of shape ``(..., 1, m)``.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)``.
        factor: Factor of the distances times the norms of the directions.
        hyperboloid: True for time coordinates in units of length, False for those in radii.
        kept: True to return clamped products, normals and norms, too.
    """
    normals, lengths = plane_normals(weight, offset, c, hyperboloid=hyperboloid)
    made = _logits(x, normals, lengths, c, factor=factor, kept=kept)
    if not kept:
        return made
    lead = made[0].shape[:-2]
    return (*made, *(t.expand(*lead, *t.shape[-2:]) for t in (normals, lengths)))


def plane_logits_gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    c: Tensor,
    *kept: Tensor,
    factor: float,
    hyperboloid: bool,
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of :func:`plane_logits`, as the registrar asks for them.

    Clamped products, normals and norms are ``kept``.
    """
    products, normals, lengths = kept
    by_product, by_length, by_c = _gradients(
        grad, products, lengths, c, factor=factor, curved=needed[-1]
    )
    by_x = by_product @ normals if needed[0] else None
    if not any(needed[1:]):
        return by_x, None, None, None
    by_weight, by_offset, bent = normal_gradients(
        by_product.mT @ x, by_length, weight, offset, c, lengths, hyperboloid=hyperboloid
    )
    return by_x, by_weight, by_offset, None if by_c is None else by_c + bent


def _logits(
    points: Tensor, normals: Tensor, lengths: Tensor, c: Tensor, *, factor: float, kept: bool
) -> tuple[Tensor, ...]:
    """Logits of points for normals and, if ``kept`` is true, the clamped products."""
    (n, d), m, dtype = points.shape[-2:], normals.shape[-2], points.dtype
    lead, (x, planes, (c,)) = batches_of((points,), (normals, lengths), (c,))
    tile, most = LOGIT_TILES[dtype], MOST_COLUMNS[dtype]
    columns = max(16, min(most, triton.next_power_of_2(m)))
    out = points.new_empty(*lead, n, m)
    products = torch.empty_like(out) if kept else out
    tiles = triton.cdiv(n, tile.rows) * triton.cdiv(m, columns)
    launch(
        logit_kernel, tiles * lead.numel(), out, *x, *planes, c, out, products, n, m, d,
        *batch_strides(x, planes, (c,)), FACTOR=factor, KEPT=kept,
        ROWS=tile.rows, COLUMNS=columns, DEPTH=tile.columns, num_warps=tile.warps,
    )  # fmt: skip
    return (out, products) if kept else (out,)


def _gradients(
    grad: Tensor, products: Tensor, lengths: Tensor, c: Tensor, *, factor: float, curved: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of logits with respect to the products, the norms and the curvature.

    Args:
        grad: Gradient with respect to the logits, of shape ``(..., n, m)``, with all axes.
        products: Clamped products, of the same shape.
        lengths: Norms of the directions, of shape ``(..., 1, m)``.
        c: As in :func:`plane_logits`.
        factor: As in :func:`plane_logits`.
        curved: True for the gradient with respect to the curvature.
    """
    n, m = products.shape[-2:]
    lead, ((products,), (lengths,), (c,)) = batches_of(
        (products,), (lengths,), (c,), lead=grad.shape[:-2]
    )
    batches, tile = lead.numel(), LOGIT_GRADIENT_TILES[grad.dtype]
    grad = grad.reshape(batches, n, m)
    across = triton.cdiv(m, tile.columns) * batches
    splits, span = splits_of(n, tile.rows, across)
    by_product = torch.empty_like(grad, memory_format=torch.contiguous_format)
    new = products.new_empty if grad.numel() else products.new_zeros
    by_length, by_c = (new(splits, batches, k) for k in (m, m * curved))
    launch(
        logit_gradient_kernel, splits * across, grad, grad, products, lengths, c,
        by_product, by_length, by_c, n, m, batches, *batch_strides((lengths,), (c,)),
        *grad.stride(), span, FACTOR=factor, CURVED=curved,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip
    return (
        by_product.reshape(*lead, n, m),
        by_length.sum(0).reshape(*lead, 1, m),
        by_c.sum((0, 2)).reshape(*lead, 1, 1) if curved else None,
    )
