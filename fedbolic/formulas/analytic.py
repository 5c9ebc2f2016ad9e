r"""Functions :math:`\phi(t) = f(\sqrt t) / \sqrt t` of a squared length in radii, :math:`t = c q`.

All are analytic at 0, where the closed forms of value and derivative are quotients of zeros. With
:math:`D = f'(\sqrt t)`, an algebraic function of :math:`t` and :math:`\phi`, the derivative is

.. math:: \phi'(t) = \frac{D - \phi(t)}{2 t}

By cancellation it has an error of ``eps / t``. Times the change of ``t`` that is a rounding error
of the derivative of a map of points, but not of its derivative with respect to the curvature, nor
of second derivatives: these take a series for small ``t``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.fused import Formula, fused, is_exact
from fedbolic.formulas.numerics import LONGEST_STEP, dot, polynomial, series_bound, times

TERMS = range(1, 9)


@dataclass(frozen=True)
class Profile:
    r"""A function of the squared length in radii.

    Args:
        value: The value :math:`\phi` from the length :math:`\sqrt t` above 0.
        steepness: The derivative :math:`D` of ``f`` from :math:`t` and :math:`\phi`.
        series: Coefficients of the derivative :math:`\phi'`.
    """

    value: Callable[[Tensor], Tensor]
    steepness: Callable[[Tensor, Tensor], Tensor]
    series: tuple[float, ...]

    def slope(self, t: Tensor, value: Tensor) -> Tensor:
        """The derivative with respect to ``t``, right to rounding everywhere."""
        small = t < series_bound(t)
        # both branches must be finite everywhere: a NaN in the unused one would reach the gradient
        far, value = torch.where(small, 1.0, t), torch.where(small, 1.0, value)
        near = polynomial(self.series, torch.where(small, t, 0.0))
        return torch.where(small, near, (self.steepness(far, value) - value) / (2 * far))

    def gradients(
        self, q: Tensor, c: Tensor | float, value: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The derivatives with respect to ``q`` and ``c`` at ``t = c q``; ``None`` for a number."""
        if is_exact(c):
            slope = self.slope(c * q, value)
            return c * slope, q * slope if isinstance(c, Tensor) else None
        q = q.clamp_min(torch.finfo(q.dtype).tiny)
        return (self.steepness(c * q, value) - value) / (2 * q), None


def _derivatives(coefficients: list[float]) -> tuple[float, ...]:
    """Coefficients of the derivative of a series whose first coefficient is that of ``t``."""
    return tuple(k * a for k, a in zip(TERMS, coefficients, strict=True))


def asinh(s: Tensor) -> Tensor:
    """``asinh(s)`` for ``s >= 0``: on the CPU, ``torch.asinh`` takes ten times as long."""
    if s.device.type != "cpu":
        return s.asinh()
    t = s * s
    return torch.addcdiv(s, t, (t + 1).sqrt() + 1).log1p()


def _sinhc(s: Tensor) -> Tensor:
    return s.clamp(max=LONGEST_STEP[s.dtype] ** 0.5).sinh() / s


ASINH = Profile(
    lambda s: asinh(s) / s,
    lambda t, value: (t + 1).rsqrt(),
    _derivatives([(-1) ** k * math.comb(2 * k, k) / 4**k / (2 * k + 1) for k in TERMS]),
)
ATANH = Profile(
    lambda s: s.atanh() / s,
    lambda t, value: 1 / (1 - t),
    _derivatives([1 / (2 * k + 1) for k in TERMS]),
)
SINH = Profile(
    _sinhc,
    lambda t, value: (t * value * value + 1).sqrt() * (t < LONGEST_STEP[t.dtype]),
    _derivatives([1 / math.factorial(2 * k + 1) for k in TERMS]),
)
TANH = Profile(
    lambda s: s.tanh() / s,
    lambda t, value: 1 - t * value * value,
    _derivatives(
        [
            -1 / 3,
            2 / 15,
            -17 / 315,
            62 / 2835,
            -1382 / 155925,
            21844 / 6081075,
            -929569 / 638512875,
            6404582 / 10854718875,
        ]
    ),
)
LENGTH_OVER_SINH = Profile(
    lambda s: asinh(s) / (s * (s * s + 1).sqrt()),
    lambda t, value: (1 - t * value) / (t + 1),
    _derivatives([(-4) ** k * math.factorial(k) ** 2 / math.factorial(2 * k + 1) for k in TERMS]),
)
"""The ratio of a length to its sinh, as a function of the sinh of half the length: its half."""


def curve(profile: Profile) -> type[Formula]:
    """The function ``phi(c q)`` of squared lengths ``q >= 0`` and of the curvature ``c``."""

    class Curve(Formula):
        @override
        @staticmethod
        def parts(*inputs: Any) -> tuple[Tensor, ...]:
            return (profile.value(bounded_radii(*inputs)),)

        @override
        @staticmethod
        def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
            (q, c), (value,), (g,) = inputs, parts, grad_outputs
            by_q, by_c = profile.gradients(q, c, value)
            return g * by_q, None if by_c is None else g * by_c

    return Curve


def radial(profile: Profile) -> type[Formula]:
    """The map ``phi(c |v|^2) v`` of vectors ``v`` along the last axis and of the curvature."""
    factor = fused(curve(profile))

    class Radial(Formula):
        @override
        @staticmethod
        def parts(*inputs: Any) -> tuple[Tensor, ...]:
            v, c = inputs
            q = (v * v).sum(-1, keepdim=True)
            q = q.clamp(max=torch.finfo(q.dtype).max)
            # second derivatives need the series of the derivative of the factor
            value = factor(q, c) if torch.is_grad_enabled() else profile.value(bounded_radii(q, c))
            return value * v, value, q

        @override
        @staticmethod
        def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
            (v, c), (_, value, q), (g,) = inputs, parts, grad_outputs
            along = dot(g, v)
            by_q, by_c = profile.gradients(q, c, value)
            by_v = torch.addcmul(value * g, v, 2 * along * by_q)
            return by_v, None if by_c is None else along * by_c

    return Radial


def bounded_radii(q: Tensor, c: Tensor | float) -> Tensor:
    """``sqrt(c q)`` within the floats that have a finite square, and never 0."""
    info = torch.finfo(q.dtype)
    return times(c, q).clamp(info.tiny, info.max).sqrt()


class GapLength(Formula):
    """The function :data:`gap_length`."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        q, c = inputs
        t, r = c * q, q.sqrt()
        cosh = (t + 1).sqrt()
        if isinstance(c, Tensor) or c == 0:
            value = ASINH.value(bounded_radii(q, c))
            return 2 * r * value, cosh, value
        return torch.addcdiv(c**0.5 * r, t, cosh + 1).log1p() * (2 / c**0.5), cosh

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (q, c), (_, cosh, *value), (g,) = inputs, parts, grad_outputs
        # the change of q at 0 is 0, and so must be its product with the slope
        r = q.clamp_min(torch.finfo(q.dtype).tiny).sqrt()
        by_q = g / (r * cosh)
        if not isinstance(c, Tensor):
            return by_q, None
        return by_q, 2 * g * r * q * ASINH.slope(c * q, *value)


gap_length = fused(GapLength)
r"""The length ``2 asinh(sqrt(c q)) / sqrt(c)``, where ``c q`` is the squared sinh of half of it.

Its derivative at 0 is finite, so that the gradient of ``dist(x, x)`` is 0.
"""

LengthOverSinh = curve(LENGTH_OVER_SINH)
length_over_sinh = fused(LengthOverSinh)
asinhc, atanhc, sinhc, tanhc = (fused(curve(profile)) for profile in (ASINH, ATANH, SINH, TANH))
RadialAsinh, RadialAtanh, RadialSinh, RadialTanh = map(radial, (ASINH, ATANH, SINH, TANH))
radial_asinh, radial_atanh = fused(RadialAsinh), fused(RadialAtanh)
radial_sinh, radial_tanh = fused(RadialSinh), fused(RadialTanh)
