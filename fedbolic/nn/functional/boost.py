r"""Translations along geodesics through the origin, in space coordinates on the hyperboloid.

Points are given by space coordinates ``s`` and the time coordinate :math:`C = \sqrt{1 + c |s|^2}`
in radii; ``c`` is minus the sectional curvature, and 0 is flat space, where :math:`C = 1`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.formulas.lorentz_formulas import hyperboloid_read
from fedbolic.formulas.numerics import bounded, dot
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import on_hyperboloid

TimedPoints = tuple[Float[Tensor, "*#batch n"], Float[Tensor, "*#batch 1"]]
"""Space coordinates and time coordinates."""


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
