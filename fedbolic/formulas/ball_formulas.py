"""Parts of the operations of the ball, with derivatives in closed form."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.analytic import gap_length
from fedbolic.formulas.fused import Formula, fused
from fedbolic.formulas.numerics import (
    BALL_MARGIN,
    SMALL,
    crossed,
    dot,
    per_matrix,
    per_point,
    square,
    times,
)
from fedbolic.formulas.registrar import with_kernel


def ball_clamp(x: Tensor, c: Tensor | float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Factors that clamp points to the ball, and the gaps ``1 - c |x|^2`` of the clamped points."""
    limit = (1 - BALL_MARGIN * torch.finfo(dtype).eps) * SMALL
    info = torch.finfo(x.dtype)
    t = (dot(x, x) * (c * SMALL)).clamp(info.tiny, info.max)
    within = t.clamp(max=limit)
    return (within / t).sqrt(), torch.rsub(within, 1, alpha=1 / SMALL)


class BallRead(Formula):
    """Points clamped to the ball, the gaps ``1 - c |x|^2`` and the factors of the points."""

    outputs = 2

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        factor, gap = ball_clamp(*inputs)
        return inputs[0] * factor, gap, factor

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, c, _), (_, _, factor), (by_point, by_gap) = inputs, parts, grad_outputs
        factor = factor.detach()
        by_gap = by_gap * (factor == 1)
        by_x = torch.addcmul(factor * by_point, x, -2 * c * by_gap)
        return by_x, by_gap * dot(x, x) * -1 if isinstance(c, Tensor) else None


def are_inside(q: Tensor, c: float, dtype: torch.dtype) -> bool:
    """True if points with ``|x|^2 = q`` lie well in the ball, so that none is clamped."""
    return q.max().item() * c <= 1 - 2 * BALL_MARGIN * torch.finfo(dtype).eps


def quick_ball_read(
    x: Tensor, c: Tensor | float, dtype: torch.dtype, out: Tensor | None = None
) -> tuple[Any, ...]:
    """The parts of :class:`BallRead`; points in the ball are not copied, and have no factors."""
    if not isinstance(c, Tensor) and are_inside(q := dot(x, x, out), c, dtype):
        return x, torch.rsub(times(c, q), 1), None
    return BallRead.parts(x, c, dtype)


class _Project(BallRead):
    outputs = 1

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, c, _), (point, _, factor), (by_point,) = inputs, parts, grad_outputs
        along = dot(by_point, point) * (factor < 1)
        q = dot(x, x).clamp_min(torch.finfo(x.dtype).tiny)
        by_x = torch.addcmul(factor * by_point, x, along / q, value=-1)
        return by_x, along / (-2 * c) if isinstance(c, Tensor) else None


ball_read = fused(BallRead, quick_ball_read)
"""Points clamped to the ball, and the gaps ``1 - c |x|^2``.

Takes points, the curvature and the dtype whose rounding sets the margin of the boundary. The factor
of points outside is a constant in derivatives.
"""

ball_project = fused(_Project)
"""The points of :data:`ball_read`, whose factor is no constant in derivatives."""


class BallGap(Formula):
    """The function :data:`ball_gap`."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        x, gap_x, y, gap_y = inputs
        s, product = x - y, gap_x * gap_y
        return dot(s, s) / product, s, product

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (_, gap_x, _, gap_y), (q, s, product), (g,) = inputs, parts, grad_outputs
        by_x, shrunk = 2 * g / product * s, -g * q
        return by_x, shrunk / gap_x, -by_x, shrunk / gap_y


ball_gap = fused(BallGap)
"""The squared sinh of half the distance in radii over ``c``: ``|x - y|^2`` over both gaps."""


def ball_pairs(x: Tensor, y: Tensor, c: Tensor | float) -> Tensor:
    """All distances by the gap; a curvature that is a tensor has one value per matrix."""
    c = per_matrix(c, x)
    return _of_pairs(*ball_read(x, c, x.dtype), *ball_read(y, c, y.dtype), c)


@with_kernel("pairs.pair_dist", axes=2, hyperboloid=False)
def _of_pairs(x: Tensor, a: Tensor, y: Tensor, b: Tensor, c: Tensor | float) -> Tensor:
    (x, y), (a, b) = crossed(x, y), crossed(a, b)
    return gap_length(ball_gap(x, a, y, b), per_point(c, x)).squeeze(-1)


class BallTransport(Formula):
    """The function :data:`ball_transport`."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        x, gap_x, y, gap_y, v, c = inputs
        s, below, ratio = y - x, gap_x * gap_y, gap_y / gap_x
        t, along_x, along_s = times(c, square(s)), dot(times(c, x), v), dot(times(c, s), v)
        on_x = gap_x * along_s - t * along_x
        on_s = (1 - gap_x) * along_s + (gap_y + t) * along_x
        turn, below = on_x * x - on_s * s, below + t
        turned = torch.addcdiv(v, turn, below, value=2)
        return turned * ratio, turned, turn, s, on_x, on_s, along_x, along_s, t, below, ratio

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, gap_x, _, gap_y, v, c), (_, turned, turn, s), (g,) = inputs, parts[:4], grad_outputs
        on_x, on_s, along_x, along_s, t, below, ratio = parts[4:]
        by_ratio, by_v = dot(g, turned), g * ratio
        by_turn = by_v * (2 / below)
        by_below, by_on_x, by_on_s = dot(by_turn, turn) / -below, dot(by_turn, x), -dot(by_turn, s)
        by_t = by_below + (by_on_s - by_on_x) * along_x
        by_along_x, by_along_s = (
            by_on_s * (gap_y + t) - by_on_x * t,
            by_on_s + gap_x * (by_on_x - by_on_s),
        )
        by_x = torch.addcmul(by_turn * on_x, v, c * by_along_x)
        by_y = torch.addcmul(by_turn * -on_s, v, c * by_along_s)
        by_y = torch.addcmul(by_y, s, 2 * c * by_t)
        by_v = torch.addcmul(torch.addcmul(by_v, x, c * by_along_x), s, c * by_along_s)
        by_gap_x = (by_on_x - by_on_s) * along_s + by_below * gap_y - by_ratio * (ratio / gap_x)
        by_gap_y = by_on_s * along_x + by_below * gap_x + by_ratio / gap_x
        by_c = None
        if isinstance(c, Tensor):
            by_c = by_t * dot(s, s) + by_along_x * dot(x, v) + by_along_s * dot(s, v)
        return by_x - by_y, by_gap_x, by_y, by_gap_y, by_v, by_c


ball_transport = fused(BallTransport)
"""Parallel transport of tangents from one point to another, each given with its gap.

It is ``gyr[y, -x] v``, written in ``s = y - x``, times the ratio of the conformal factors.
"""
