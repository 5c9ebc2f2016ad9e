r"""Translations along geodesics through the origin, in space coordinates on the hyperboloid.

Points are given by space coordinates ``s`` and the time coordinate :math:`C = \sqrt{1 + c |s|^2}`
in radii; ``c`` is minus the sectional curvature, and 0 is flat space, where :math:`C = 1`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.manifolds.numerics import dot

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
