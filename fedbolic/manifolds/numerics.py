"""Functions that stay exact where the textbook form does not, and every bound with its reason."""

import functools
from collections.abc import Callable
from dataclasses import replace
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

HYPERBOLOID_SQUARE = {
    torch.float32: 1.6e37,
    torch.float64: 1e304,
    torch.bfloat16: 1e37,
    torch.float16: 9e8,
}
"""The largest ``|x|^2`` of a point of the hyperboloid: of two such, 4 |x| |y| is still finite."""

HYPERBOLOID_RADIUS = {
    torch.float32: 1e35,
    torch.float64: 1e300,
    torch.bfloat16: 1e35,
    torch.float16: 9e8,
}
"""The largest ``c |x|^2``: the product of two time coordinates is finite, up to radius 41 (346)."""

LONGEST_STEP = {torch.float32: 44.0**2, torch.float64: 346.0**2}
"""The largest ``c |u|^2`` of a step on the hyperboloid: cosh and sinh of it stay finite."""

BALL_STEP = 64.0**2
"""The largest square of the argument of tanh: it is 1 from 19 on in float64."""

TOLERANCE = 8
"""A point lies on the hyperboloid if its time coordinate is right to this many ``eps``."""

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
    return _analytic(asinh_root, _ASINH, t)


def asinh_root(t: Tensor) -> Tensor:
    """``asinh(sqrt t)`` for ``t > 0``; on the CPU 20 times as fast as ``torch.asinh``."""
    return _log_of(t.sqrt(), t)


def _log_of(s: Tensor, t: Tensor) -> Tensor:
    return (s + t / (1 + (1 + t).sqrt())).log1p()


def asinh_of_gap(q: Tensor, c: Tensor | float) -> Tensor:
    """``asinh(sqrt(c q)) / sqrt c`` for ``q >= 0``, with derivative 0 at 0.

    A curvature that is a number has no derivative, for which alone the series would be needed.
    """
    if isinstance(c, Tensor) or c == 0:
        return root(q) * asinhc(c * q)
    return _log_of(root(c * q), c * q) / c**0.5


def atanhc(t: Tensor) -> Tensor:
    """``atanh(sqrt t) / sqrt t`` for ``0 <= t < 1``, smooth through 0."""
    return _analytic(lambda t: t.sqrt().atanh(), _ATANH, t)


def sinhc(t: Tensor) -> Tensor:
    """``sinh(sqrt t) / sqrt t`` for ``t >= 0``, smooth through 0."""
    return _analytic(lambda t: t.sqrt().sinh(), _SINH, t)


def tanhc(t: Tensor) -> Tensor:
    """``tanh(sqrt t) / sqrt t`` for ``t >= 0``, smooth through 0."""
    return _analytic(lambda t: t.sqrt().tanh(), _TANH, t)


def _analytic(function: Callable[[Tensor], Tensor], series: tuple, t: Tensor) -> Tensor:
    small = t < SERIES_BELOW[t.dtype]
    far = torch.where(small, 1.0, t)
    near = torch.where(small, t, 0.0)  # the branch not taken must be finite, or its gradient is NaN
    power = torch.full_like(near, series[-1])
    for coefficient in series[-2::-1]:
        power = power * near + coefficient
    return torch.where(small, power, function(far) / far.sqrt())


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


def scale_down(x: Tensor) -> Tensor:
    """``saturate``, in the same direction."""
    largest = (torch.finfo(x.dtype).max / x.shape[-1]) ** 0.5
    return x * (largest / x.abs().amax(-1, keepdim=True).clamp(min=largest))


def shrink(excess: Tensor) -> Tensor:
    """``1 / sqrt(excess / SMALL)``, at most 1: brings a square down to its bound, or leaves it.

    Args:
        excess: The square over its bound, times ``SMALL``.
    """
    return SMALL**0.5 / excess.clamp(min=SMALL).sqrt()


def finite(x: Tensor) -> Tensor:
    """Numbers that are at most the largest float."""
    largest = torch.finfo(x.dtype).max
    return x.clamp(-largest, largest)


def saturate(x: Tensor) -> Tensor:
    """Vectors whose squares still sum to a float: a coordinate beyond is the largest such."""
    largest = (torch.finfo(x.dtype).max / x.shape[-1]) ** 0.5
    return x.clamp(-largest, largest)


def per_point(c: Tensor | float, x: Tensor) -> Tensor | float:
    """The curvature in the type of ``x``, with an axis for its coordinates."""
    return c.to(x.dtype).unsqueeze(-1) if isinstance(c, Tensor) else c


class Bounded(torch.autograd.Function):
    """A tensor in a wider type or its own, whose gradient is finite in the type it had.

    A derivative may be larger than any float: 41 radii out in float32 the coordinates of a
    transported tangent change by e^80 per unit. Such a gradient is the largest float, and the
    difference of two such is 0. ``torch.compile`` takes no function with a forward derivative: what
    it traces has the plain gradient, the same wherever that is finite.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        """The same numbers, exactly."""
        return x.view_as(x) if x.dtype == dtype else x.to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        """Remember both types."""
        ctx.narrow, ctx.wide = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        """The gradient, made finite and rounded."""
        gradient = grad_outputs[0].nan_to_num(nan=0.0)
        return (gradient if ctx.narrow == ctx.wide else narrow(gradient, ctx.narrow)), None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        """The same direction."""
        return grad_inputs[0].to(ctx.wide)


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` rounded to a half type; what lies beyond its range is its largest number."""
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def bounded(x: Any) -> Any:
    """The argument of an operation, half types in float32, with finite gradients where required."""
    if not isinstance(x, Tensor):
        return x
    dtype = torch.float32 if x.dtype in HALVES else x.dtype
    if x.requires_grad and not torch.compiler.is_compiling():
        return Bounded.apply(x, dtype)
    return x.to(dtype)


def _run(verb: Callable, space: Any, tensors: tuple, options: dict, is_point: bool) -> Tensor:
    """The operation on bounded arguments, rounded to a half type if every tensor is of one."""
    if isinstance(space.c, Tensor):
        space = replace(space, c=bounded(space.c))
    result = verb(space, *(bounded(x) for x in tensors), **options)
    if not {x.dtype for x in tensors if isinstance(x, Tensor)} <= set(HALVES):
        return result
    dtype = tensors[0].dtype
    return narrow(space.within(result, dtype) if is_point else result, dtype)


def in_float32(verb: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A operation that computes half types in float32, rounds once, and has finite gradients."""

    @functools.wraps(verb)
    def guarded(space: Any, *tensors: Any, **options: Any) -> Tensor:
        return _run(verb, space, tensors, options, False)

    return guarded


def to_point(verb: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``in_float32`` for a operation that gives points: rounded, they still lie on the space."""

    @functools.wraps(verb)
    def guarded(space: Any, *tensors: Any, **options: Any) -> Tensor:
        return _run(verb, space, tensors, options, True)

    return guarded
