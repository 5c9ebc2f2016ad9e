"""Pairwise distances, and the weights and lengths of centroids."""

from dataclasses import replace
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from fedbolic.formulas.analytic import gap_length
from fedbolic.formulas.lorentz_formulas import hyperboloid_gap
from fedbolic.formulas.numerics import square
from fedbolic.manifolds.manifold import Manifold, Mode
from fedbolic.operators.pairwise_kernel import has_kernel

CLOSE = {torch.float32: 0.02, torch.float64: 1e-3}
"""Relative size of a difference below which the mode ``auto`` recomputes a pair by ``dist``.

The error of the matrix product is a few ``eps`` of the terms subtracted. Above this bound it is
1e-5 of the distance in float32 and 1e-12 in float64.
"""


def cdist(space: Manifold, x: Tensor, y: Tensor, mode: Mode) -> Tensor:
    """All distances; see ``Manifold.cdist``."""
    if mode not in ("auto", "mm", "mm64", "broadcast"):
        raise ValueError(f"mode must be auto, mm, mm64 or broadcast, got {mode!r}")
    dtype = torch.promote_types(x.dtype, y.dtype)
    if mode == "auto" and has_kernel(x, y):
        distances = space.fused_cdist(x.to(dtype), y.to(dtype))
        if distances is not None:
            return distances
    if mode == "auto" and _is_traced(x, y, space.c):
        mode = "mm64" if dtype == torch.float32 else "broadcast"
    if mode == "broadcast":
        return space.dist(x.unsqueeze(-2), y.unsqueeze(-3))
    if mode == "mm64":
        return _product(space, x.double(), y.double())[0].to(dtype)
    distances, apart = _product(space, x, y)
    if mode == "mm":
        return distances
    return _again(space, x, y, distances, apart.detach() < CLOSE[dtype])


def _product(space: Manifold, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if not torch.amp.is_autocast_available(x.device.type):
        return space.product(x, y)
    with torch.autocast(x.device.type, enabled=False):  # bfloat16 would leave two digits
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


def matrix_curvature(c: Tensor | float, x: Tensor) -> Tensor | float:
    """The curvature of ``cdist`` in the dtype of ``x``, one value per matrix.

    Raises:
        ValueError: If the curvature varies within a matrix of distances.
    """
    if not isinstance(c, Tensor):
        return c
    if c.ndim and (c.ndim < 2 or c.shape[-2:] != (1, 1)):
        raise ValueError(
            f"cdist takes one curvature per matrix, of shape (..., 1, 1), got {tuple(c.shape)}: "
            "for one per pair use mode='broadcast' or dist"
        )
    return c.to(x.dtype)


def _is_traced(*tensors: object) -> bool:
    return torch.compiler.is_compiling() or any(
        isinstance(x, Tensor) and is_functorch_wrapped_tensor(x) for x in tensors
    )


def _with_curvature(space: Manifold, c: Tensor | float) -> Manifold:
    """The same model with another curvature, or ``space`` itself if ``c`` is its curvature."""
    return replace(cast(Any, space), c=c) if space.c is not c else space


def per_set(space: Manifold) -> Manifold:
    """The space for points of sets, when the curvature of ``space`` broadcasts with the sets."""
    return _with_curvature(space, space.c.unsqueeze(-1)) if isinstance(space.c, Tensor) else space


def normalized_weights(
    points: Float[Tensor, "*#batch n ambient"], weights: Float[Tensor, "*#batch n"] | None
) -> Float[Tensor, "*#batch n 1"]:
    """Weights that sum to 1, with an axis for the coordinates."""
    if weights is None:
        return torch.full_like(points[..., :1], 1 / points.shape[-2])
    weights = weights.to(points.dtype).unsqueeze(-1)
    return weights / weights.sum(-2, keepdim=True)


def centroid(
    s: Float[Tensor, "*#batch n dim"],
    time: Float[Tensor, "*#batch n 1"],
    weights: Float[Tensor, "*#batch n"] | None,
    c: Tensor | float,
) -> Float[Tensor, "*#batch 1 dim"]:
    r"""Space coordinates of the Lorentzian centroid of points on the hyperboloid.

    The weighted mean :math:`m` of the points over its Minkowski length in radii, at least 1:

    .. math:: \sqrt{1 + 4 Q + 4 Q^2 / C^2}, \quad Q = \sum_i w_i \sinh^2(\sqrt c \, d_i / 2)

    The direct formula is a difference of squares, which cancels far from the origin. Let :math:`p`
    be the point of the hyperboloid with the space coordinates of the mean. The mean is :math:`p`
    plus a vector along the time axis, and its length follows from the distances :math:`d_i` between
    the points and :math:`p`, whose time coordinate in radii is :math:`C`.

    Args:
        s: Space coordinates of the points.
        time: Time coordinates of the points, in radii.
        weights: Numbers of 0 or more, not all 0; all equal by default.
        c: Minus the sectional curvature, 0 or more.
    """
    w = normalized_weights(s, weights)
    mean = (w * s).sum(-2, keepdim=True)
    mean_time = (c * square(mean) + 1).sqrt()
    spread = 2 * c * (w * hyperboloid_gap(s, time, mean, mean_time, c)).sum(-2, keepdim=True)
    return mean / (2 * spread + (spread / mean_time).square() + 1).sqrt()
