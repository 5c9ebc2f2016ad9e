"""Functions that stay exact where the textbook form does not, and every bound with its reason."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)

SERIES_BELOW = {torch.float32: 0.1, torch.float64: 0.01}
"""Where a function of ``t`` passes to its series.

The derivative of ``f(sqrt t) / sqrt t`` loses a share ``eps / t`` to cancellation, and eight terms
leave out a share ``t**8``: the bounds keep both, value and derivative, at the rounding of the type.
"""

SMALL = 2.0**-40
"""Squares are compared after this exact scaling, so that 1e38 times a ``c`` of 100 is finite."""

BALL_MARGIN = 4
"""``c |x|^2`` stays below 1 by this many ``eps``.

Rounding a point moves ``c |x|^2`` by up to one ``eps``, and computing it by another; the remaining
radius is ``log(1 / eps)``: 15.9 in float32, 36.0 in float64.
"""

SHEET_SQUARE = {
    torch.float32: 1.6e37,
    torch.float64: 1e304,
    torch.bfloat16: 1e37,
    torch.float16: 9e8,
}
"""The largest ``|x|^2`` of a point of the sheet: of two such, 4 |x| |y| is still finite."""

SHEET_RADIUS = {
    torch.float32: 1e35,
    torch.float64: 1e300,
    torch.bfloat16: 1e35,
    torch.float16: 9e8,
}
"""The largest ``c |x|^2``: the product of two time coordinates is finite, up to radius 41 (346)."""

STEP = {torch.float32: 44.0**2, torch.float64: 346.0**2}
"""The largest ``c |u|^2`` of a step on the sheet: from any point, cosh and sinh stay finite."""

BALL_STEP = 64.0**2
"""The largest square of the argument of tanh: it is 1 from 19 on in float64."""

TOLERANCE = 8
"""A point lies on the sheet if its time coordinate is right to this many ``eps``."""

_ASINH = (1, -1 / 6, 3 / 40, -5 / 112, 35 / 1152, -63 / 2816, 231 / 13312, -143 / 10240)
_ATANH = (1, 1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11, 1 / 13, 1 / 15)
_SINH = (1, 1 / 6, 1 / 120, 1 / 5040, 1 / 362880, 1 / 39916800, 1 / 6227020800, 1 / 1307674368000)
_TANH = (
    1,
    -1 / 3,
    2 / 15,
    -17 / 315,
    62 / 2835,
    -1382 / 155925,
    21844 / 6081075,
    -929569 / 638512875,
)


def asinhc(t: Tensor) -> Tensor:
    """``asinh(sqrt t) / sqrt t`` for ``t >= 0``, smooth through 0."""
    return _analytic(torch.asinh, _ASINH, t)


def atanhc(t: Tensor) -> Tensor:
    """``atanh(sqrt t) / sqrt t`` for ``0 <= t < 1``, smooth through 0."""
    return _analytic(torch.atanh, _ATANH, t)


def sinhc(t: Tensor) -> Tensor:
    """``sinh(sqrt t) / sqrt t`` for ``t >= 0``, smooth through 0."""
    return _analytic(torch.sinh, _SINH, t)


def tanhc(t: Tensor) -> Tensor:
    """``tanh(sqrt t) / sqrt t`` for ``t >= 0``, smooth through 0."""
    return _analytic(torch.tanh, _TANH, t)


def _analytic(function: Callable[[Tensor], Tensor], series: tuple, t: Tensor) -> Tensor:
    small = t < SERIES_BELOW[t.dtype]
    root = torch.where(small, 1.0, t).sqrt()
    near = torch.where(small, t, 0.0)  # the branch not taken must be finite, or its gradient is NaN
    power = torch.full_like(near, series[-1])
    for coefficient in series[-2::-1]:
        power = power * near + coefficient
    return torch.where(small, power, function(root) / root)


def root(q: Tensor) -> Tensor:
    """The square root, with derivative 0 at 0: a distance has no slope from a point to itself."""
    positive = q > 0
    return torch.where(positive, torch.where(positive, q, 1.0).sqrt(), 0.0)


def square(x: Tensor) -> Tensor:
    """``|x|^2`` along the last axis, which stays; at most the largest float."""
    return (x * x).sum(-1, keepdim=True).clamp(max=torch.finfo(x.dtype).max)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """``<x, y>`` along the last axis, which stays."""
    return (x * y).sum(-1, keepdim=True)


def unit(a: Tensor) -> Tensor:
    """``a / |a|``, and 0 where ``a`` is 0."""
    length = root(square(a))
    return a * torch.where(length > 0, 1 / torch.where(length > 0, length, 1.0), 0.0)


def shrink(excess: Tensor) -> Tensor:
    """``1 / sqrt(excess / SMALL)``, at most 1: brings a square down to its bound, or leaves it.

    Args:
        excess: The square over its bound, times ``SMALL``.
    """
    return SMALL**0.5 / excess.clamp(min=SMALL).sqrt()


def saturate(x: Tensor) -> Tensor:
    """Finite floats: what lies beyond the largest is the largest."""
    largest = torch.finfo(x.dtype).max
    return x.clamp(-largest, largest)


def per_point(c: Tensor | float, x: Tensor) -> Tensor | float:
    """The curvature in the type of ``x``, with an axis for its coordinates."""
    return c.to(x.dtype).unsqueeze(-1) if isinstance(c, Tensor) else c


class Widen(torch.autograd.Function):
    """A half-precision tensor in float32, whose gradient saturates where it comes back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """The same numbers, exactly."""
        return x.float()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Remember the type."""
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        """The gradient, rounded to the type it belongs to."""
        return narrow(grad_outputs[0], ctx.dtype)

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Tensor) -> Tensor:
        """The same direction."""
        return grad_inputs[0].float()


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` rounded to a half type; what lies beyond its range is its largest number."""
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def in_float32(verb: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A verb that computes half types in float32 and rounds what it gives, once."""

    @functools.wraps(verb)
    def widened(space: Any, *tensors: Tensor | None, **options: Any) -> Tensor:
        given = [x for x in tensors if x is not None]
        halves = [x.dtype for x in given if x.dtype in HALVES]
        if not halves:
            return verb(space, *tensors, **options)
        wide = [Widen.apply(x) if x is not None and x.dtype in HALVES else x for x in tensors]
        if len(halves) < len(given):
            return verb(space, *wide, **options)
        return narrow(verb(space, *wide, **options), halves[0])

    return widened


def to_point(verb: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``in_float32`` for a verb that gives points: rounded, they still lie on the space."""

    @functools.wraps(verb)
    def widened(space: Any, *tensors: Tensor | None, **options: Any) -> Tensor:
        dtype = next((x.dtype for x in tensors if x is not None and x.dtype in HALVES), None)
        if dtype is None or any(x is not None and x.dtype not in HALVES for x in tensors):
            return in_float32(verb)(space, *tensors, **options)
        wide = verb(space, *(x if x is None else Widen.apply(x) for x in tensors), **options)
        return narrow(space.within(wide, dtype), dtype)

    return widened
