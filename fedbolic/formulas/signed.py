r"""Functions of :math:`t = c q` for a curvature of either sign, analytic at 0.

For :math:`t < 0` a hyperbolic function of :math:`\sqrt t` is the circular function of
:math:`\sqrt{-t}`, and both have one series and one formula for the derivative.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.analytic import ASINH, ATANH, TANH, Profile
from fedbolic.formulas.ball_formulas import BallRead
from fedbolic.formulas.fused import Formula, fused
from fedbolic.formulas.numerics import (
    BALL_MARGIN,
    SMALL,
    dot,
    polynomial,
    root,
    series_bound,
    square,
)

HALFWAY = -0.5
"""Value of ``t`` below which a distance on the sphere is computed from the sum of both points.

The arcsine loses half of the digits near 1, that is near antipodes; from a right angle on, the
arctangent of the sine and the cosine is used, and the cosine is the length of a sum.
"""


@dataclass(frozen=True)
class SignedProfile:
    r"""A function :math:`\phi(t)` of the squared length in radii, negative on a sphere.

    Args:
        hyperbolic: The function for :math:`t > 0`; its derivative holds for both signs.
        circular: The value from :math:`\sqrt{-t}` above 0.
    """

    hyperbolic: Profile
    circular: Callable[[Tensor], Tensor]

    def value(self, t: Tensor) -> Tensor:
        """The value, by its closed form, which keeps all digits near 0."""
        info = torch.finfo(t.dtype)
        below, s = t < 0, t.abs().clamp(info.tiny, info.max).sqrt()
        # both branches must be finite everywhere: a NaN in the unused one would reach the gradient
        over = self.hyperbolic.value(torch.where(below, 0.5, s))
        return torch.where(below, self.circular(torch.where(below, s, 0.5)), over)

    def slope(self, t: Tensor, value: Tensor) -> Tensor:
        """The derivative with respect to ``t``, by its series near 0."""
        small = t.abs() < series_bound(t)
        far, value = torch.where(small, 0.5, t), torch.where(small, 1.0, value)
        near = polynomial(self.hyperbolic.series, torch.where(small, t, 0.0))
        closed = (self.hyperbolic.steepness(far, value) - value) / (2 * far)
        return torch.where(small, near, closed)


def signed_curve(profile: SignedProfile) -> Callable[..., Tensor]:
    """The function ``phi(c q)`` of squared lengths ``q >= 0`` and of the curvature ``c``."""

    class Curve(Formula):
        @override
        @staticmethod
        def parts(*inputs: Any) -> tuple[Tensor, ...]:
            q, c = inputs
            return (profile.value(c * q),)

        @override
        @staticmethod
        def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
            (q, c), (value,), (g,) = inputs, parts, grad_outputs
            slope = g * profile.slope(c * q, value)
            return c * slope, q * slope if isinstance(c, Tensor) else None

    return fused(Curve)


asin_ratio, atan_ratio, tan_ratio = (
    signed_curve(profile)
    for profile in (
        SignedProfile(ASINH, lambda s: s.clamp(max=1).asin() / s),
        SignedProfile(ATANH, lambda s: s.atan() / s),
        SignedProfile(TANH, lambda s: s.tan() / s),
    )
)


class _Read(BallRead):
    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        x, c, dtype = inputs
        eps, info = torch.finfo(dtype).eps, torch.finfo(x.dtype)
        edge, pole = (1 - BALL_MARGIN * eps) * SMALL, SMALL / eps**2
        t = (dot(x, x) * (abs(c) * SMALL)).clamp(info.tiny, info.max)
        if isinstance(c, Tensor):
            sign = c.sign()
            within = torch.where(sign < 0, t.clamp(max=pole), t.clamp(max=edge))
        else:
            sign = (c > 0) - (c < 0)
            within = t.clamp(max=pole if c < 0 else edge)
        factor = (within / t).sqrt()
        return x * factor, 1 - sign * (within / SMALL), factor


class _Project(_Read):
    outputs = 1

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, c, _), (point, _, factor), (by_point,) = inputs, parts, grad_outputs
        outside = factor < 1
        along = dot(by_point, point) * outside
        q = dot(x, x).clamp_min(torch.finfo(x.dtype).tiny)
        by_x = torch.addcmul(factor * by_point, x, along / q, value=-1)
        if not isinstance(c, Tensor):
            return by_x, None
        return by_x, along / (-2 * torch.where(outside, c, 1.0))


signed_read = fused(_Read)
"""Points clamped to the space, and the gaps ``1 - c |x|^2``.

Takes points, the curvature and the dtype whose rounding sets the bounds: ``c |x|^2`` is at most 1
less a few ``eps`` where ``c > 0``, and at least ``-1 / eps^2`` where ``c < 0``, which is ``2 eps``
radii from the antipode of the origin. The factor of points beyond is a constant in derivatives.
"""

signed_project = fused(_Project)
"""The points of :data:`signed_read`, whose factor is no constant in derivatives."""


def may_be_round(c: Tensor | float) -> bool:
    """True unless the curvature is a number of 0 or more."""
    return isinstance(c, Tensor) or c < 0


def round_part(c: Tensor | float) -> tuple[Tensor | bool, Tensor | float]:
    """The mask of spheres, and their sectional curvature, 1 elsewhere."""
    if not isinstance(c, Tensor):
        return c < 0, -c if c < 0 else 1.0
    return c < 0, torch.where(c < 0, -c, 1.0)


def on_sphere(x: Tensor, k: Tensor | float) -> tuple[Tensor, Tensor]:
    """The point of the unit sphere: coordinates across and along the axis through the origin."""
    t = k * square(x)
    return 2 * k**0.5 * x / (1 + t), (1 - t) / (1 + t)


def cos_square(x: Tensor, y: Tensor, t: Tensor, c: Tensor | float) -> Tensor:
    r"""The square of the cosine of half the distance in radii, :math:`1 + t`.

    On the sphere, from a right angle on, as the square of half the sum of both points, which does
    not cancel near antipodes.

    Args:
        x: Points.
        y: Points.
        t: Square of the hyperbolic sine of half the distance in radii; minus that of the sine.
        c: The curvature.
    """
    if not may_be_round(c):
        return 1 + t
    k = round_part(c)[1]
    (across_x, along_x), (across_y, along_y) = on_sphere(x, k), on_sphere(y, k)
    total = (square(across_x + across_y) + (along_x + along_y).square()) / 4
    return torch.where(t < HALFWAY, total, 1 + t)


def length_ratio(q: Tensor, c: Tensor | float, cos2: Tensor) -> Tensor:
    """Half the distance over its sine: :func:`asin_ratio`, right up to antipodes.

    Args:
        q: Square of the sine of half the distance in radii, over the sectional curvature.
        c: The curvature.
        cos2: Square of the cosine of half the distance in radii.
    """
    if not may_be_round(c):
        return asin_ratio(q, c)
    t = c * q
    far = t < HALFWAY
    near = asin_ratio(torch.where(far, 0.0, q), c)
    sine = torch.where(far, -t, 1.0).sqrt()
    cosine = root(torch.where(far, cos2, 1.0))
    return torch.where(far, torch.atan2(sine, cosine) / sine, near)
