"""Lengths and their hyperbolic sines, with derivatives by hand: most of a head's time goes there.

Composed of torch's functions they would need ``where``, which on the CPU costs more than a matrix
product, as ``torch.asinh`` does. ``torch.compile`` takes no function with a forward derivative, and
fuses the composed form.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.manifolds.numerics import SERIES_BELOW, SHEET_RADIUS, asinhc, sinhc

_ARC = (-1 / 6, 3 / 20, -15 / 112, 35 / 288, -315 / 2816, 693 / 6656, -1001 / 10240, 6435 / 69632)
_CHORD = tuple((k + 1) / math.factorial(2 * k + 3) for k in range(8))


def arc(t: Float[Tensor, "*shape"], c: Float[Tensor, ""] | float) -> Float[Tensor, "*shape"]:
    """``asinh(sqrt(c) t) / sqrt(c)``, odd, and at most 41 radii (346 in float64).

    Args:
        t: In float32 or float64.
        c: 0 or more; the derivative by it is exact through 0, too.
    """
    if not isinstance(c, Tensor) and c == 0:
        return t
    if not torch.compiler.is_compiling():
        return Known.apply(t, c, _arc, _arc_slopes)
    t = _bounded(t, c)
    return t * asinhc(c * t * t) if isinstance(c, Tensor) else (c**0.5 * t).asinh() / c**0.5


def chord(d: Float[Tensor, "*shape"], c: Float[Tensor, ""] | float) -> Float[Tensor, "*shape"]:
    """``sinh(sqrt(c) d) / sqrt(c)``: undoes ``arc``, and is as bounded.

    Args:
        d: In float32 or float64.
        c: 0 or more; the derivative by it is exact through 0, too.
    """
    if not isinstance(c, Tensor) and c == 0:
        return d
    if not torch.compiler.is_compiling():
        return Known.apply(d, c, _chord, _chord_slopes)
    d = _bounded_arc(d, c)
    return d * sinhc(c * d * d) if isinstance(c, Tensor) else (c**0.5 * d).sinh() / c**0.5


class Known(torch.autograd.Function):
    """A function of numbers and one curvature, the derivatives of which are given."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, c: Tensor | float, value: Callable, slopes: Callable) -> Tensor:
        """``value(x, c)``."""
        return value(x, c)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keep what the derivatives are made of."""
        x, c, _, ctx.slopes = inputs
        ctx.number = None if isinstance(c, Tensor) else c
        kept = (x, output, c) if ctx.number is None else (x, output)
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by the numbers and the curvature."""
        x, output, *c = ctx.saved_tensors
        c = c[0] if c else ctx.number
        slope, by_c = ctx.slopes(x, c, output, ctx.needs_input_grad[1])
        (gradient,) = grad_outputs
        return gradient * slope, None if by_c is None else (gradient * by_c).sum(), None, None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        """The derivative in one direction."""
        x, output, *c = ctx.saved_tensors
        c = c[0] if c else ctx.number
        along_x, along_c, *_ = grad_inputs
        slope, by_c = ctx.slopes(x, c, output, along_c is not None)
        first = torch.zeros_like(x) if along_x is None else slope * along_x
        return first if by_c is None else first + by_c * along_c


def _bounded(t: Tensor, c: Tensor | float) -> Tensor:
    limit = (SHEET_RADIUS[t.dtype] / c) ** 0.5
    return t.clamp(-limit, limit)


def _bounded_arc(d: Tensor, c: Tensor | float) -> Tensor:
    limit = (0.5 * math.log(SHEET_RADIUS[d.dtype]) + math.log(2)) / c**0.5
    return d.clamp(-limit, limit)


def _arc(t: Tensor, c: Tensor | float) -> Tensor:
    s = c**0.5 * _bounded(t, c)
    if s.device.type != "cpu":
        return s.asinh() / c**0.5
    q = s * s
    return (s.abs() + q / (1 + (1 + q).sqrt())).log1p().copysign(s) / c**0.5


def _chord(d: Tensor, c: Tensor | float) -> Tensor:
    return (c**0.5 * _bounded_arc(d, c)).sinh() / c**0.5


def _arc_slopes(t: Tensor, c: Any, value: Tensor, curved: bool) -> tuple[Tensor, Tensor | None]:
    t = _bounded(t, c)
    slope = (1 + c * t * t).rsqrt()
    return slope, _by_curvature(_ARC, t, c, t * slope - value) if curved else None


def _chord_slopes(d: Tensor, c: Any, value: Tensor, curved: bool) -> tuple[Tensor, Tensor | None]:
    d = _bounded_arc(d, c)
    slope = (1 + c * value * value).sqrt()
    return slope, _by_curvature(_CHORD, d, c, d * slope - value) if curved else None


def _by_curvature(series: tuple, x: Tensor, c: Tensor, gap: Tensor) -> Tensor:
    """The derivative by ``c`` of a function ``f(x) = x A(c x^2)``: ``(x f' - f) / (2 c)``.

    Args:
        series: Coefficients of the derivative of ``A``, for where the difference cancels.
        x: What the function is taken of.
        c: The curvature.
        gap: The difference.
    """
    q = c * x * x
    small = q < SERIES_BELOW[q.dtype]
    near = torch.where(small, q, 0.0)
    power = torch.full_like(near, series[-1])
    for coefficient in series[-2::-1]:
        power = power * near + coefficient
    return torch.where(small, x * x * x * power, gap / (2 * c))
