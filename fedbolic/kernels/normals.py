# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of the normals of hyperplanes, from their directions and distances from the origin.

The normal of a hyperplane at the distance :math:`a` in the direction of :math:`w` is

.. math:: \bigl(-\sinh \sqrt c \, a, \; \cosh(\sqrt c \, a) \, w / |w|\bigr)

for points of the hyperboloid; the first number is over :math:`\sqrt c` for time coordinates in
radii. A program reads its rows twice: for their norms, and to scale them.
"""

import torch
import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.functions import expm1, series_limit, sinhc_series, tiny
from fedbolic.kernels.launch import Tile, batches_of, launch

NORMAL_TILE = Tile(4, 64)
"""Hyperplanes of a program, and coordinates that it reads at a time."""

FARTHEST_PLANES = {torch.float32: 40.9884, torch.float64: 346.0809}
"""Distances from the origin to which hyperplanes are clamped, in radii."""


@triton.jit
def _turn(offset, c, FARTHEST: tl.constexpr):
    """The clamped distance, its sinh over itself, its sinh and its cosh, with lengths in radii."""
    limit = FARTHEST / tl.sqrt(tl.maximum(c, tiny(c)))
    a = tl.minimum(tl.maximum(offset, -limit), limit)
    s = tl.maximum(tl.sqrt(c) * tl.abs(a), tl.sqrt(tiny(a)))
    grown = expm1(s)
    ratio = (grown + grown / (grown + 1.0)) / (2.0 * s)
    sinh = tl.sqrt(c) * a * ratio
    return a, ratio, sinh, tl.sqrt(sinh * sinh + 1.0)


@triton.jit
def normal_kernel(
    weight, offset, c, normals, lengths, m, d, of_c,
    HYPERBOLOID: tl.constexpr, FARTHEST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normals and norms of some rows of one batch, which are rounded once to float32."""
    blocks = tl.cdiv(m, ROWS)
    batch, j = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * ROWS
    j += tl.arange(0, ROWS)
    of_row, row = j < m, batch * m + j
    a = tl.load(offset + row, mask=of_row, other=0.0).to(tl.float64)
    least = tiny(tl.load(c + batch * of_c))
    a, ratio, sinh, cosh = _turn(a, tl.load(c + batch * of_c).to(tl.float64), FARTHEST)
    square = tl.zeros([ROWS], a.dtype)
    for start in range(0, d, COLUMNS):
        k = start + tl.arange(0, COLUMNS)
        mask = of_row[:, None] & (k < d)[None, :]
        w = tl.load(weight + row[:, None] * d + k[None, :], mask=mask, other=0.0).to(tl.float64)
        square += tl.sum(w * w, 1)
    length = tl.sqrt(tl.maximum(square, least))
    for start in range(0, d, COLUMNS):
        k = start + tl.arange(0, COLUMNS)
        mask = of_row[:, None] & (k < d)[None, :]
        w = tl.load(weight + row[:, None] * d + k[None, :], mask=mask, other=0.0).to(tl.float64)
        place = normals + row[:, None] * (d + 1) + (k + 1)[None, :]
        tl.store(place, cosh[:, None] * (w / length[:, None]), mask=mask)
    first = -sinh if HYPERBOLOID else -a * ratio
    tl.store(normals + row * (d + 1), first, mask=of_row)
    tl.store(lengths + row, length, mask=of_row)


@triton.jit
def normal_gradient_kernel(
    weight, offset, c, lengths, g, by_length, by_weight, by_offset, by_c, m, d, of_c,
    HYPERBOLOID: tl.constexpr, FARTHEST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of some rows of one batch, from those of their normals and norms."""
    blocks = tl.cdiv(m, ROWS)
    batch, j = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * ROWS
    j += tl.arange(0, ROWS)
    of_row, row = j < m, batch * m + j
    curvature = tl.load(c + batch * of_c)
    a = tl.load(offset + row, mask=of_row, other=0.0)
    a, ratio, sinh, cosh = _turn(a, curvature, FARTHEST)
    length = tl.load(lengths + row, mask=of_row, other=1.0)
    first = tl.load(g + row * (d + 1), mask=of_row, other=0.0)
    along = tl.zeros([ROWS], a.dtype)
    for start in range(0, d, COLUMNS):
        k = start + tl.arange(0, COLUMNS)
        mask = of_row[:, None] & (k < d)[None, :]
        w = tl.load(weight + row[:, None] * d + k[None, :], mask=mask, other=0.0)
        given = tl.load(g + row[:, None] * (d + 1) + (k + 1)[None, :], mask=mask, other=0.0)
        along += tl.sum(given * (w / length[:, None]), 1)
    share = cosh / length
    radial = tl.load(by_length + row, mask=of_row, other=0.0) - share * along
    for start in range(0, d, COLUMNS):
        k = start + tl.arange(0, COLUMNS)
        mask = of_row[:, None] & (k < d)[None, :]
        w = tl.load(weight + row[:, None] * d + k[None, :], mask=mask, other=0.0)
        given = tl.load(g + row[:, None] * (d + 1) + (k + 1)[None, :], mask=mask, other=0.0)
        made = share[:, None] * given + radial[:, None] * (w / length[:, None])
        tl.store(by_weight + row[:, None] * d + k[None, :], made, mask=mask)
    root = tl.sqrt(curvature)
    if HYPERBOLOID:
        turned = sinh * along - cosh * first
        tl.store(by_offset + row, root * turned, mask=of_row)
        curved = turned * a / (2.0 * root)
    else:
        tl.store(by_offset + row, root * sinh * along - cosh * first, mask=of_row)
        t = curvature * a * a
        near = t < series_limit(t)
        u = tl.where(near, a, 0.0)
        series = u * u * u * sinhc_series(tl.minimum(t, series_limit(t)))
        closed = a * (cosh - ratio) / (2.0 * tl.maximum(curvature, tiny(t)))
        curved = along * a * a * ratio / 2.0 - first * tl.where(near, series, closed)
    tl.store(by_c + row, curved, mask=of_row)


def plane_normals(
    weight: Tensor, offset: Tensor, c: Tensor, *, hyperboloid: bool
) -> tuple[Tensor, Tensor]:
    """Normals of shape ``(..., m, d + 1)``, and norms of the directions, ``(..., 1, m)``.

    Args:
        weight: Directions at the origin, of shape ``(..., m, d)``; the axes before these broadcast,
            as they do for the other arguments.
        offset: Signed distances from the origin, of shape ``(..., 1, m)``.
        c: Minus the sectional curvature, of shape ``(..., 1, 1)``.
        hyperboloid: True for time coordinates in units of length, False for those in radii.
    """
    call = _Call(weight, offset, c)
    normals = weight.new_empty(*call.lead, call.m, call.d + 1)
    lengths = weight.new_empty(*call.lead, 1, call.m)
    launch(
        normal_kernel, call.programs, normals, *call.tensors, normals, lengths, *call.numbers,
        HYPERBOLOID=hyperboloid, **call.sizes,
    )  # fmt: skip
    return normals, lengths


def normal_gradients(
    grad: Tensor,
    by_length: Tensor,
    weight: Tensor,
    offset: Tensor,
    c: Tensor,
    lengths: Tensor,
    *,
    hyperboloid: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`plane_normals` by directions, offsets and the curvature.

    Args:
        grad: Gradient with respect to the normals, of shape ``(..., m, d + 1)``, with all axes.
        by_length: Gradient with respect to the norms, of shape ``(..., 1, m)``, with all axes.
        weight: As in :func:`plane_normals`.
        offset: As in :func:`plane_normals`.
        c: As in :func:`plane_normals`.
        lengths: Norms of the directions, of shape ``(..., 1, m)``.
        hyperboloid: As in :func:`plane_normals`.
    """
    call = _Call(weight, offset, c, lead=grad.shape[:-2])
    by_weight = weight.new_empty(*call.lead, call.m, call.d)
    by_offset, by_c = (weight.new_empty(*call.lead, 1, call.m) for _ in range(2))
    lengths = lengths.expand(*call.lead, 1, call.m).contiguous()
    launch(
        normal_gradient_kernel, call.programs, grad, *call.tensors, lengths, grad.contiguous(),
        by_length.contiguous(), by_weight, by_offset, by_c, *call.numbers,
        HYPERBOLOID=hyperboloid, **call.sizes,
    )  # fmt: skip
    return by_weight, by_offset, by_c.sum(-1, keepdim=True)


class _Call:
    """Tensors, numbers and sizes of a launch."""

    def __init__(
        self, weight: Tensor, offset: Tensor, c: Tensor, lead: torch.Size | None = None
    ) -> None:
        self.lead, ((w, a), (c,)) = batches_of((weight, offset), (c,), lead=lead)
        if len(w) < self.lead.numel():  # every batch has its own curvature
            w, a = (t.expand(self.lead.numel(), *t.shape[1:]).contiguous() for t in (w, a))
        self.m, self.d = w.shape[-2:]
        self.tensors = w, a, c
        self.numbers = self.m, self.d, int(len(c) > 1)
        self.programs = triton.cdiv(self.m, NORMAL_TILE.rows) * self.lead.numel()
        self.sizes = {
            "FARTHEST": FARTHEST_PLANES[w.dtype],
            "ROWS": NORMAL_TILE.rows,
            "COLUMNS": NORMAL_TILE.columns,
            "num_warps": NORMAL_TILE.warps,
        }
