r"""Exponential map, logarithm and translations at the origin, in as few passes as possible.

A tangent at the origin is given by its coordinates :math:`v`, whose length is the distance of the
point from the origin in both models. A point is given by the space coordinates :math:`s` of its
image on the hyperboloid, and maybe the time coordinate :math:`C = \sqrt{1 + c |s|^2}` in radii.
``c`` is minus the sectional curvature, a number or a tensor without axes; 0 is flat space, where
:math:`s = v` and :math:`C = 1`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.formulas.lorentz_formulas import hyperboloid_read
from fedbolic.formulas.numerics import HYPERBOLOID_RADIUS, bounded, dot, without_casts
from fedbolic.formulas.sinh_ratio import asinh_ratio, sinh_ratio_and_cosh
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import (
    ball_point,
    hyperboloid_point,
    on_hyperboloid,
    space_part,
)

TimedPoints = tuple[Float[Tensor, "*#batch n"], Float[Tensor, "*#batch 1"]]
"""Space coordinates and time coordinates."""


def length_of(v: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch 1"]:
    """``|v|`` over the last axis, which is kept, within the floats that have a finite inverse.

    The derivative is 0 at 0. There, ``f(|v|) / |v|`` of an odd function is still right.
    """
    info = torch.finfo(v.dtype)
    length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return length.clamp(info.tiny**0.5, info.max**0.5)


def exp_factors(
    c: Tensor | float, length: Float[Tensor, "*batch 1"]
) -> tuple[Float[Tensor, "*batch 1"], Float[Tensor, "*batch 1"]]:
    """``|s| / |v|`` of the exponential map for tangents of a length, and the time in radii.

    Distances are clamped to the range of the hyperboloid, 41 radii in float32, and have no
    derivative beyond it.
    """
    c, distance = bounded(c), length
    if isinstance(c, Tensor) or c > 0:
        distance = length.clamp(max=0.5 * math.log(HYPERBOLOID_RADIUS[length.dtype]) / c**0.5)
    sinh, cosh = sinh_ratio_and_cosh(distance, c)
    return sinh / length, cosh


def log_factor(c: Tensor | float, length: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch 1"]:
    """``|v| / |s|`` of the logarithm for space coordinates of a length."""
    return asinh_ratio(length, bounded(c)) / length


def translate(
    c: Tensor | float, v: Float[Tensor, "*batch n"], bias: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch 1"]]:
    r"""Space coordinates of :math:`\exp_x(P_{0 \to x}(b))` with :math:`x = \exp_0 v`, and lengths.

    .. math:: y = b' + \Bigl(\cosh(\sqrt c \, |b|) + \frac{c \, s \cdot b'}{1 + C}\Bigr) s, \quad
        C = \cosh(\sqrt c \, |v|)

    with the space coordinates :math:`s` of :math:`x` and :math:`b'` of :math:`\exp_0 b`: the
    Lorentz boost that takes the origin to :math:`x`, applied to :math:`\exp_0 b`.

    Args:
        c: Minus the sectional curvature.
        v: Tangents at the origin.
        bias: The tangent :math:`b` at the origin.
    """
    # far from the origin, products of derivatives exceed the largest float
    c, v, bias = bounded(c), bounded(v), bounded(bias)
    ratio, time = exp_factors(c, length_of(v))
    ratio_bias, time_bias = exp_factors(c, length_of(bias))
    bias = ratio_bias * bias
    with without_casts(v.device):
        along = c * ratio * (v @ bias).unsqueeze(-1)
    y = torch.addcmul(bias, v, ratio * (time_bias + along / (1 + time)))
    length = length_of(y)
    if isinstance(c, Tensor) or c > 0:  # squares of far points overflow, their times do not
        length = torch.minimum(length, (time * time_bias + along).clamp(min=1) / c**0.5)
    return y, length


def points_to_tangents(
    space: Lorentz | Poincare, x: Float[Tensor, "*batch ambient"]
) -> Float[Tensor, "*batch n"]:
    """Tangents at the origin of points, as ``coordinates.to_tangent``, with fewer operators."""
    s = space_part(space, bounded(x))
    return s * log_factor(space.c, length_of(s))


def tangents_to_points(
    space: Lorentz | Poincare, v: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch ambient"]:
    """Points of tangents at the origin, as ``coordinates.from_tangent``, with fewer operators."""
    return points_at(space, v * exp_factors(space.c, length_of(v))[0])


def points_at(
    space: Lorentz | Poincare, s: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch ambient"]:
    """Points whose images on the hyperboloid have the space coordinates ``s``, not clamped."""
    return hyperboloid_point(space, s) if isinstance(space, Lorentz) else ball_point(space, s)


def from_origin(c: Tensor | float, x: TimedPoints, mean: TimedPoints) -> Float[Tensor, "*batch n"]:
    r"""Space coordinates of points moved as the origin is moved to ``mean``.

    .. math:: s + \Bigl(C + \frac{c \, m \cdot s}{1 + C_m}\Bigr) m
    """
    (s, time), (m, time_m) = x, mean
    return torch.addcmul(s, time + dot(s, c * m) / (time_m + 1), m)


def to_origin(c: Tensor | float, x: TimedPoints, mean: TimedPoints) -> Float[Tensor, "*batch n"]:
    r"""Space coordinates of points moved as ``mean`` is moved to the origin.

    .. math:: g + c \Bigl(\frac{m \cdot g}{1 + C_m} - \frac{g \cdot (s + m)}{C + C_m}\Bigr) m,
        \quad g = s - m

    The inverse of :func:`from_origin`, with the differences taken before any rounding.
    """
    (s, time), (m, time_m) = x, mean
    gap = s - m
    along = dot(gap, m) / (time_m + 1) - dot(gap, s + m) / (time + time_m)
    return torch.addcmul(gap, c * along, m)


def timed_points(space: Lorentz | Poincare, x: Float[Tensor, "*batch ambient"]) -> TimedPoints:
    """Space coordinates and time coordinates in radii of points, with bounded gradients."""
    c, x = bounded(space.c), bounded(x)
    if isinstance(space, Lorentz):
        return hyperboloid_read(x[..., 1:], c, x.dtype)
    time, s = on_hyperboloid(space, x)
    return s, time


def with_time(space: Lorentz | Poincare, s: Float[Tensor, "*batch n"]) -> TimedPoints:
    """Space coordinates, clamped to the range of the hyperboloid, with their time coordinates."""
    return hyperboloid_read(s, space.c, s.dtype)
