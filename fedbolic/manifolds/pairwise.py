"""Pairwise distances."""

import functools
from dataclasses import replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedbolic.formulas.analytic import gap_length
from fedbolic.formulas.fused import is_traced
from fedbolic.formulas.numerics import without_casts
from fedbolic.manifolds.manifold import Manifold, Mode

CLOSE = {torch.float32: 0.02, torch.float64: 1e-3}
"""Relative size of a difference below which the mode ``auto`` recomputes a pair by ``dist``.

The error of the matrix product is a few ``eps`` of the terms subtracted. Above this bound it is
1e-5 of the distance in float32 and 1e-12 in float64.
"""

LARGE = 2**26
"""Number of distances above which their derivatives are computed by parts."""

LARGEST_PARTS = 8
"""Parts of the largest matrix that is computed at once."""


def cdist(space: Manifold, x: Tensor, y: Tensor, mode: Mode) -> Tensor:
    """All distances; see ``Manifold.cdist``.

    Args:
        space: Space of the points.
        x: Points.
        y: Other points.
        mode: Algorithm.

    Raises:
        ValueError: If there is no such mode.
    """
    if mode not in ("auto", "mm", "mm64", "broadcast"):
        raise ValueError(f"mode must be auto, mm, mm64 or broadcast, got {mode!r}")
    dtype = torch.promote_types(x.dtype, y.dtype)
    if mode == "auto":
        return _auto(space, x.to(dtype), y.to(dtype))
    if mode == "broadcast":
        return space.dist(x.unsqueeze(-2), y.unsqueeze(-3))
    if mode == "mm64":
        return _product(space, x.double(), y.double())[0].to(dtype)
    return _product(space, x, y)[0]


def _auto(space: Manifold, x: Tensor, y: Tensor) -> Tensor:
    """The distances by a matrix product, of which close pairs are computed again."""
    if is_traced(x, y, space.c):
        return cdist(space, x, y, "mm64" if x.dtype == torch.float32 else "broadcast")
    differentiated = torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in (x, y, space.c)
    )
    if not differentiated or x.ndim != 2 or y.ndim != 2 or len(x) * len(y) <= LARGE:
        return _exact(space, x, y)
    # a derivative would keep a dozen matrices of this size; a part is computed again for its own
    again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    parts = x.split(max(1, LARGE // (LARGEST_PARTS * len(y))))
    return torch.cat([again(_exact, space, some, y) for some in parts])


def _exact(space: Manifold, x: Tensor, y: Tensor) -> Tensor:
    distances, apart = _product(space, x, y)
    return _again(space, x, y, distances, apart.detach() < CLOSE[x.dtype])


def _product(space: Manifold, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    with without_casts(x.device):
        return space.product(x, y)


def _again(space: Manifold, x: Tensor, y: Tensor, distances: Tensor, close: Tensor) -> Tensor:
    """``distances`` with the close pairs recomputed by ``dist``."""
    where = close.nonzero(as_tuple=True)
    if where[0].numel() == 0:
        return distances
    *batch, i, j = where
    lead = distances.shape[:-2]
    x = x.expand(*lead, *x.shape[-2:])[(*batch, i)]
    y = y.expand(*lead, *y.shape[-2:])[(*batch, j)]
    c = space.c
    if isinstance(c, Tensor) and c.ndim:
        space = _with_curvature(space, c.expand_as(distances)[where])
    return distances.index_put(where, space.dist(x, y))


GapParts: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""The terms ``x / g``, ``|x|^2 / g`` and ``1 / g`` of points of the ball, ``g = 1 - c |x|^2``."""


def product(x: GapParts, y: GapParts, c: Tensor | float) -> tuple[Tensor, Tensor]:
    """Distances by one matrix product, and the relative size of the differences in them."""
    left = torch.cat((-2 * x[0], x[1], x[2]), -1)
    right = torch.cat((y[0], y[2], y[1]), -1)
    # |x - y|^2 over both gaps; positive, so that the derivative of the root is finite
    apart = (left @ right.mT).clamp_min(torch.finfo(left.dtype).tiny)
    with torch.no_grad():
        share = apart / (x[1] * y[2].mT + x[2] * y[1].mT).clamp_min(torch.finfo(left.dtype).tiny)
    return gap_length(apart, c), share


def _with_curvature(space: Manifold, c: Tensor | float) -> Manifold:
    """The same model with another curvature, or ``space`` itself if ``c`` is its curvature."""
    return replace(cast(Any, space), c=c) if space.c is not c else space


def per_set(space: Manifold) -> Manifold:
    """The space for points of sets, when the curvature of ``space`` broadcasts with the sets."""
    return _with_curvature(space, space.c.unsqueeze(-1)) if isinstance(space.c, Tensor) else space
