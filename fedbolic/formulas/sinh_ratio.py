"""Scaled ``asinh`` and ``sinh`` with hand-written derivatives.

A head spends most of its time here. Compositions of torch functions would need ``where``, which
costs more than a matrix product on the CPU, as does ``torch.asinh``.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.analytic import ASINH, SINH
from fedbolic.formulas.fused import Formula, fused
from fedbolic.formulas.numerics import HYPERBOLOID_RADIUS, SERIES_BELOW, polynomial


def asinh_ratio(
    t: Float[Tensor, "*shape"], c: Float[Tensor, ""] | float
) -> Float[Tensor, "*shape"]:
    """``asinh(sqrt(c) t) / sqrt(c)``, an odd function of at most 41 radii (346 in float64).

    Args:
        t: Numbers in float32 or float64.
        c: Minus the sectional curvature, 0 or more; its derivative is exact at and near 0.
    """
    if not isinstance(c, Tensor) and c == 0:
        return t
    return _asinh(t, c)[0]


def sinh_ratio(d: Float[Tensor, "*shape"], c: Float[Tensor, ""] | float) -> Float[Tensor, "*shape"]:
    """``sinh(sqrt(c) d) / sqrt(c)``, the inverse of ``asinh_ratio``.

    Args:
        d: Lengths in float32 or float64, clamped to 41 radii (346 in float64).
        c: Minus the sectional curvature, 0 or more; its derivative is exact at and near 0.
    """
    return sinh_ratio_and_cosh(d, c)[0]


def sinh_ratio_and_cosh(
    d: Float[Tensor, "*shape"], c: Float[Tensor, ""] | float
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """``sinh_ratio(d, c)`` and ``cosh(sqrt(c) d)``."""
    if not isinstance(c, Tensor) and c == 0:
        return d, torch.ones_like(d)
    return _sinh(d, c)


def _with_cosh(
    values: Callable[..., tuple[Tensor, Tensor]],
    slopes: tuple[Callable[..., Tensor], Callable[..., Tensor]],
    by_curvature: tuple[Callable[..., Tensor], Callable[..., Tensor]],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function of numbers and a curvature, and its hyperbolic cosine, which derivatives reuse.

    Args:
        values: The function and ``cosh(sqrt(c) d)``, with ``d`` the length that is its argument or
            its value.
        slopes: A factor times the derivatives of both with respect to the number.
        by_curvature: Derivatives of both with respect to the curvature.
    """

    class WithCosh(Formula):
        outputs, closed = 2, True
        parts = staticmethod(values)

        @override
        @staticmethod
        def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor | None) -> tuple:
            known, by_x, by_c = (*inputs, *parts), None, None
            for g, along_x, along_c in zip(grad_outputs, slopes, by_curvature, strict=True):
                if g is None:
                    continue
                by_x = _plus(by_x, along_x(g, *known))
                if isinstance(inputs[1], Tensor):
                    by_c = _plus(by_c, (g * along_c(*known)).sum())
            return by_x, by_c

    return fused(WithCosh)


def _plus(total: Tensor | None, x: Tensor) -> Tensor:
    return x if total is None else total + x


def _bounded(t: Tensor, c: Tensor | float) -> Tensor:
    limit = (HYPERBOLOID_RADIUS[t.dtype] / c) ** 0.5
    return t.clamp(-limit, limit)


def _bounded_length(d: Tensor, c: Tensor | float) -> Tensor:
    limit = (0.5 * math.log(HYPERBOLOID_RADIUS[d.dtype]) + math.log(2)) / c**0.5
    return d.clamp(-limit, limit)


def _asinh_parts(t: Tensor, c: Tensor | float) -> tuple[Tensor, Tensor]:
    s = c**0.5 * _bounded(t, c)
    q = s * s
    cosh = (q + 1).sqrt_()
    if s.device.type != "cpu":
        return s.asinh().div_(c**0.5), cosh
    return torch.addcdiv(s.abs(), q, cosh + 1).log1p_().copysign_(s).div_(c**0.5), cosh


def _sinh_parts(d: Tensor, c: Tensor | float) -> tuple[Tensor, Tensor]:
    s = (c**0.5 * _bounded_length(d, c)).sinh_()
    return s / c**0.5, (s * s).add_(1).sqrt_()


def _asinh_by_curvature(t: Tensor, c: Tensor, value: Tensor, cosh: Tensor) -> Tensor:
    t = _bounded(t, c)
    return _by_curvature(ASINH.series, t, c, t / cosh - value)


def _sinh_by_curvature(d: Tensor, c: Tensor, value: Tensor, cosh: Tensor) -> Tensor:
    d = _bounded_length(d, c)
    return _by_curvature(SINH.series, d, c, d * cosh - value)


def _by_curvature(series: tuple, x: Tensor, c: Tensor, gap: Tensor) -> Tensor:
    """Derivative of ``f(x) = x A(c x^2)`` with respect to ``c``: ``(x f' - f) / (2 c)``.

    Args:
        series: Coefficients of the derivative of ``A``, used where the difference cancels.
        x: Argument of the function.
        c: Minus the sectional curvature.
        gap: The difference ``x f' - f``.
    """
    edge = (SERIES_BELOW[x.dtype] / c) ** 0.5
    inside = x.clamp(-edge, edge)
    near = c * inside * inside
    power = polynomial(series, near)
    closed = gap / (2 * c)
    small = (edge - x.abs()).sign().clamp_min(0)  # 0 or 1, in a tenth of the time of ``where``
    return closed + small * (inside * inside * inside * power - closed)


_asinh = _with_cosh(
    _asinh_parts,
    (
        lambda g, t, c, value, cosh: g / cosh,
        lambda g, t, c, value, cosh: g * (c * _bounded(t, c) / cosh),
    ),
    (_asinh_by_curvature, lambda t, c, value, cosh: _bounded(t, c).square() / (2 * cosh)),
)
_sinh = _with_cosh(
    _sinh_parts,
    (lambda g, d, c, value, cosh: g * cosh, lambda g, d, c, value, cosh: g * (c * value)),
    (_sinh_by_curvature, lambda d, c, value, cosh: _bounded_length(d, c) * value / 2),
)
