"""Operations of the ball: sums, distances, exponentials and logarithms."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.analytic import (
    ATANH,
    TANH,
    GapLength,
    LengthOverSinh,
    RadialAtanh,
    RadialTanh,
    bounded_radii,
    gap_length,
    length_over_sinh,
    radial_atanh,
    radial_tanh,
)
from fedbolic.formulas.ball_formulas import (
    BallGap,
    BallRead,
    BallTransport,
    are_inside,
    ball_gap,
    ball_read,
    ball_transport,
    quick_ball_read,
)
from fedbolic.formulas.fused import Formula
from fedbolic.formulas.numerics import dot, finite, square, times
from fedbolic.formulas.registrar import points, with_kernel

_SAFE = 2.0**-5
"""Product of the gaps of two points above which their sum lies in the ball, however it is rounded.

The gap of the sum is this product over at most 4, and rounding moves it by some hundred ``eps``.
"""


def ball_sum(x: Tensor, gap_x: Tensor, y: Tensor, gap_y: Tensor, c: Tensor | float) -> Tensor:
    """The Möbius sum of points that :data:`ball_read` gave, clamped to the ball."""
    s = x + y
    t = times(c, square(s))
    made = (gap_x * s + t * x) / (gap_x * gap_y + t)
    return ball_read(made, c, made.dtype)[0]


@with_kernel("rows.row_dist", takes=points(2), hyperboloid=False)
def ball_dist(x: Tensor, y: Tensor, c: Tensor | float) -> Tensor:
    """Distances, of shape ``(..., 1)``; here and below ``c`` has an axis for the coordinates."""
    return gap_length(ball_gap(*ball_read(x, c, x.dtype), *ball_read(y, c, y.dtype)), c)


@with_kernel("maps.row_map", takes=points(2), hyperboloid=False, outward=True)
def ball_expmap(x: Tensor, u: Tensor, c: Tensor | float) -> Tensor:
    """The exponential of tangents at points."""
    x, gap = ball_read(x, c, x.dtype)
    step = radial_tanh(u / gap, c)
    step, gap_step = ball_read(step, c, step.dtype)
    return ball_sum(x, gap, step, gap_step, c)


@with_kernel("radial.radial_map", takes=points(), hyperboloid=False, outward=True)
def ball_expmap0(u: Tensor, c: Tensor | float) -> Tensor:
    """The exponential of tangents at the origin."""
    return ball_read(radial_tanh(u, c), c, u.dtype)[0]


@with_kernel("radial.radial_map", takes=points(), hyperboloid=False, outward=False)
def ball_logmap0(y: Tensor, c: Tensor | float) -> Tensor:
    """The tangents at the origin towards points."""
    return radial_atanh(ball_read(y, c, y.dtype)[0], c)


@with_kernel("maps.row_map", takes=points(2), hyperboloid=False, outward=False)
def ball_logmap(x: Tensor, y: Tensor, c: Tensor | float) -> Tensor:
    """The tangents at ``x`` towards ``y``."""
    (x, gap_x), (y, gap_y) = ball_read(x, c, x.dtype), ball_read(y, c, y.dtype)
    s, q = y - x, ball_gap(x, gap_x, y, gap_y)
    ratio = length_over_sinh(q, c) * gap_x  # length over the sinh of the length
    return torch.addcmul(ratio / gap_y * s, -c * q * ratio, x)


def ball_transp(x: Tensor, y: Tensor, v: Tensor, c: Tensor | float) -> Tensor:
    """Parallel transport of tangents from ``x`` to ``y``."""
    return ball_transport(*ball_read(x, c, x.dtype), *ball_read(y, c, y.dtype), v, c)


def _by_read(
    x: Tensor, factor: Tensor | None, c: float, by_point: Any, by_gap: Tensor | None = None
) -> Tensor:
    """The gradient by points from those by what ``quick_ball_read`` gave."""
    if by_gap is None:
        return by_point if factor is None else factor * by_point
    if factor is None:
        return torch.addcmul(by_point, x, -2 * c * by_gap)
    return BallRead.gradient((x, c, None), (None, None, factor), by_point, by_gap)[0]


def _sum(
    x: Tensor, gap_x: Tensor, y: Tensor, gap_y: Tensor, c: float, scratch: Tensor | None = None
) -> tuple[Any, ...]:
    """:func:`ball_sum`, and what its gradient reads unless there is memory to overwrite."""
    s = x + y
    product = torch.mul(s, s, out=scratch)
    q = product.sum(-1, keepdim=True).clamp(max=torch.finfo(s.dtype).max)
    t = times(c, q)
    gaps = gap_x * gap_y
    below = gaps + t
    made = torch.mul(gap_x, s, out=None if scratch is None else s)
    made.add_(torch.mul(t, x, out=product)).div_(below)
    if gaps.min().item() >= _SAFE:
        return made, s, q, t, below, made.detach(), None
    point, _, factor = quick_ball_read(made, c, made.dtype, product)
    return point, s, q, t, below, made.detach(), factor


def _by_sum(
    given: tuple[Tensor, ...], parts: tuple[Any, ...], c: float, g: Tensor
) -> tuple[Tensor, ...]:
    """The gradients by the points and the gaps of ``_sum``."""
    (x, gap_x, _, gap_y), (s, q, t, below, made, factor) = given, parts
    by_made = _by_read(made, factor, c, g)
    by_top, by_below = by_made / below, -dot(by_made, made / below)
    by_t = by_below + dot(by_top, x)
    by_s = by_top * gap_x + s * (2 * (by_t * c) * (q < torch.finfo(q.dtype).max))
    by_gap_x = by_below * gap_y + dot(by_top, s)
    return by_top * t + by_s, by_gap_x, by_s, by_below * gap_x


class BallSum(Formula):
    """The Möbius sum at once."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        x, y, c = inputs
        (x, gap_x, factor_x), (y, gap_y, factor_y) = (
            quick_ball_read(p, c, p.dtype) for p in (x, y)
        )
        total, *parts = _sum(x, gap_x, y, gap_y, c)
        return total, factor_x, factor_y, x, gap_x, y, gap_y, *parts

    @override
    @classmethod
    def value(cls, *inputs: Any) -> Tensor:
        x, y, c = inputs
        scratch = torch.empty_like(x)
        x, gap_x, _ = quick_ball_read(x, c, x.dtype, scratch)
        y, gap_y, _ = quick_ball_read(y, c, y.dtype, scratch)
        return _sum(x, gap_x, y, gap_y, c, scratch)[0]

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, y, c), (factor_x, factor_y) = inputs, parts[:2]
        by_x, by_gap_x, by_y, by_gap_y = _by_sum(parts[2:6], parts[6:], c, *grad_outputs)
        return _by_read(x, factor_x, c, by_x, by_gap_x), _by_read(y, factor_y, c, by_y, by_gap_y)


class BallDist(Formula):
    """:func:`ball_dist` at once."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        x, y, c = inputs
        (x, gap_x, factor_x), (y, gap_y, factor_y) = (
            quick_ball_read(p, c, p.dtype) for p in (x, y)
        )
        gap = BallGap.parts(x, gap_x, y, gap_y)
        length, *cosh = GapLength.parts(gap[0], c)
        return length.squeeze(-1), gap_x, factor_x, gap_y, factor_y, *gap, *cosh

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, y, c), (gap_x, factor_x, gap_y, factor_y, q, s, product, *cosh) = inputs, parts
        by_q, _ = GapLength.gradient((q, c), (None, *cosh), grad_outputs[0].unsqueeze(-1))
        by_x, by_gap_x, by_y, by_gap_y = BallGap.gradient(
            (None, gap_x, None, gap_y), (q, s, product), by_q
        )
        return _by_read(x, factor_x, c, by_x, by_gap_x), _by_read(y, factor_y, c, by_y, by_gap_y)


class BallExpmap(Formula):
    """:func:`ball_expmap` at once."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        x, u, c = inputs
        x, gap, factor = quick_ball_read(x, c, x.dtype)
        v = u / gap
        step, value, q = RadialTanh.parts(v, c)
        y, gap_y, factor_y = quick_ball_read(step, c, step.dtype)
        total, *parts = _sum(x, gap, y, gap_y, c)
        return total, factor, v, step, value, q, factor_y, x, gap, y, gap_y, *parts

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, _, c), (factor, v, step, value, q, factor_y) = inputs, parts[:6]
        gap = parts[7]
        by_x, by_gap, by_y, by_gap_y = _by_sum(parts[6:10], parts[10:], c, *grad_outputs)
        by_step = _by_read(step, factor_y, c, by_y, by_gap_y)
        by_v: Any = RadialTanh.gradient((v, c), (None, value, q), by_step)[0]
        by_gap = by_gap - dot(by_v, v / gap)
        return _by_read(x, factor, c, by_x, by_gap), by_v / gap

    @override
    @classmethod
    def value(cls, *inputs: Any) -> Tensor:
        x, u, c = inputs
        scratch = torch.empty_like(x)
        x, gap, _ = quick_ball_read(x, c, x.dtype, scratch)
        return _shot(x, gap, u, c, scratch)


class BallExpmap0(Formula):
    """:func:`ball_expmap0` at once."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        u, c = inputs
        step, value, q = RadialTanh.parts(u, c)
        point, _, factor = quick_ball_read(step, c, step.dtype)
        return point, factor, value, q

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (u, c), (factor, value, q) = inputs, parts
        by_step = _by_read(u, factor, c, *grad_outputs)
        return RadialTanh.gradient((u, c), (None, value, q), by_step)[:1]


class BallLogmap0(Formula):
    """:func:`ball_logmap0` at once."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        y, c = inputs
        product = y * y
        q = product.sum(-1, keepdim=True)
        if are_inside(q, c, y.dtype):
            value = ATANH.value(bounded_radii(q, c))
            return torch.mul(value, y, out=product), y, None, value, q
        y, _, factor = BallRead.parts(y, c, y.dtype)
        v, value, q = RadialAtanh.parts(y, c)
        return v, y, factor, value, q

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        c, (y, factor, value, q) = inputs[-1], parts
        by_y, _ = RadialAtanh.gradient((y, c), (None, value, q), *grad_outputs)
        return (_by_read(y, factor, c, by_y),)


class BallLogmap(Formula):
    """:func:`ball_logmap` at once."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        x, y, c = inputs
        (x, gap_x, factor_x), (y, gap_y, factor_y) = (
            quick_ball_read(p, c, p.dtype) for p in (x, y)
        )
        # BallGap takes the difference the other way round, which changes no bit of it
        gap = BallGap.parts(y, gap_y, x, gap_x)
        (half,) = LengthOverSinh.parts(gap[0], c)
        ratio, negative = half * gap_x, -c * gap[0]
        v = torch.addcmul(ratio / gap_y * gap[1], negative * ratio, x)
        return v, x, gap_x, factor_x, gap_y, factor_y, half, ratio, negative, *gap

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (given_x, given_y, c), (x, gap_x, factor_x, gap_y, factor_y) = inputs, parts[:5]
        (half, ratio, negative, q, s, product), (g,) = parts[5:], grad_outputs
        by_w, over = dot(g, x), ratio / gap_y
        by_over, by_s = dot(g, s), g * over
        by_ratio = by_w * negative + by_over / gap_y
        by_q = by_w * ratio * -c
        by_q = by_q + LengthOverSinh.gradient((q, c), (half,), by_ratio * gap_x)[0]
        to_y, by_gap_y, to_x, by_gap_x = BallGap.gradient(
            (None, gap_y, None, gap_x), (q, s, product), by_q
        )
        by_gap_y = by_gap_y - by_over * (over / gap_y)
        by_x = g * (negative * ratio) + to_x - by_s
        return (
            _by_read(given_x, factor_x, c, by_x, by_ratio * half + by_gap_x),
            _by_read(given_y, factor_y, c, to_y + by_s, by_gap_y),
        )


class BallTransp(Formula):
    """:func:`ball_transp` at once."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        x, y, v, c = inputs
        (x, gap_x, factor_x), (y, gap_y, factor_y) = (
            quick_ball_read(p, c, p.dtype) for p in (x, y)
        )
        moved, *parts = BallTransport.parts(x, gap_x, y, gap_y, v, c)
        return moved, x, gap_x, factor_x, gap_y, factor_y, *parts

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (given_x, given_y, v, c), (x, gap_x, factor_x, gap_y, factor_y) = inputs, parts[:5]
        by_x, by_gap_x, by_y, by_gap_y, by_v, _ = BallTransport.gradient(
            (x, gap_x, None, gap_y, v, c), (None, *parts[5:]), *grad_outputs
        )
        by_x, by_y = (
            _by_read(given_x, factor_x, c, by_x, by_gap_x),
            _by_read(given_y, factor_y, c, by_y, by_gap_y),
        )
        return by_x, by_y, by_v

    @override
    @classmethod
    def value(cls, *inputs: Any) -> Tensor:
        x, y, v, c = inputs
        scratch = torch.empty_like(x)
        x, gap_x, _ = quick_ball_read(x, c, x.dtype, scratch)
        y, gap_y, _ = quick_ball_read(y, c, y.dtype, scratch)
        return _moved(x, gap_x, y, gap_y, v, c, scratch)


def _shot(x: Tensor, gap: Tensor, u: Tensor, c: float, scratch: Tensor) -> Tensor:
    """:func:`ball_expmap` from a point that was read."""
    v = u / gap
    q = dot(v, v, scratch).clamp(max=torch.finfo(v.dtype).max)
    step = v.mul_(TANH.value(bounded_radii(q, c)))
    step, gap_step, _ = quick_ball_read(step, c, step.dtype, scratch)
    return _sum(x, gap, step, gap_step, c, scratch)[0]


def _moved(
    x: Tensor, gap_x: Tensor, y: Tensor, gap_y: Tensor, v: Tensor, c: float, scratch: Tensor
) -> Tensor:
    """The value of :data:`ball_transport`, written over ``scratch``."""
    s, ratio = y - x, gap_y / gap_x
    t = times(c, dot(s, s, scratch).clamp(max=torch.finfo(s.dtype).max))
    along_x, along_s = dot(times(c, x), v, scratch), dot(times(c, s), v, scratch)
    on_x = gap_x * along_s - t * along_x
    on_s = (1 - gap_x) * along_s + (gap_y + t) * along_x
    turn = torch.mul(on_x, x, out=scratch).sub_(s.mul_(on_s))
    return torch.addcdiv(v, turn, t + gap_x * gap_y, value=2, out=turn).mul_(ratio)


def ball_expmap_transp(x: Tensor, u: Tensor, v: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """The ends of tangents ``u``, and tangents ``v`` moved along; of tensors of one shape."""
    scratch = torch.empty_like(x)
    x, gap, _ = quick_ball_read(x, c, x.dtype, scratch)
    y = _shot(x, gap, u, c, scratch)
    end, gap_end, _ = quick_ball_read(y, c, y.dtype, scratch)
    return y, _moved(x, gap, end, gap_end, v, c, scratch)


def ball_gradient(x: Tensor, g: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """Riemannian gradients and their squared lengths."""
    scratch = torch.empty_like(x)
    gap = quick_ball_read(x, c, x.dtype, scratch)[1]
    gradient = g * (gap / 2).square()
    return gradient, finite(dot(gradient, gradient, scratch) * (2 / gap).square()).squeeze(-1)
