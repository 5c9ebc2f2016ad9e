"""Points of the unit ball for a search, and bounds that hold in spite of rounding."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from fedbolic.manifolds import Lorentz, ManifoldPlaces, Places

EPS = 2.0**-52

COORDINATE_ROUNDING = 16 * EPS
"""Largest distance in the ball from a point to its rounded coordinates; 4 ``EPS`` were found."""

LEAST_GAP = 1e-30
"""Least gap of the bounds: the square of a distance divided by two of these is still finite."""


class UnitBall(NamedTuple):
    """Points of the Poincaré ball of curvature -1 in float64.

    Args:
        coordinates: One point a row.
        gaps: ``1 - |x|^2``, without the rounding of the coordinates where the places tell it.
    """

    coordinates: Float[np.ndarray, "n dim"]
    gaps: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, places: Places) -> "UnitBall":
        """The images of places.

        Args:
            places: Points of a hyperbolic space; those of a manifold in Lorentz or Poincare.

        Raises:
            ValueError: If places without a manifold lie too far out for float64.
        """
        if not isinstance(places, ManifoldPlaces):
            points = places.to_lorentz(torch.float64)
            return cls._of_space(points.detach().cpu().numpy()[:, 1:])
        points = places.points.detach().double().cpu().numpy() * curvature(places) ** 0.5
        if isinstance(places.manifold, Lorentz):
            return cls._of_space(points[:, 1:])
        return cls(points, 1 - np.einsum("nd,nd->n", points, points))

    @classmethod
    def _of_space(cls, space: NDArray) -> "UnitBall":
        """The images of points of the unit hyperboloid by their space coordinates."""
        largest = np.abs(space).max(axis=1, initial=1.0)[:, None]  # squares may overflow
        lengths = largest * np.linalg.norm(space / largest, axis=1, keepdims=True)
        after = 1 + np.hypot(1.0, lengths)
        return cls(space / after, 2 / after[:, 0])

    def take(self, rows: Int[np.ndarray, " m"]) -> "UnitBall":
        """The points of some rows."""
        return UnitBall(self.coordinates[rows], self.gaps[rows])

    def bounds(
        self, x: NDArray, gap: float, rows: Int[np.ndarray, " m"] | slice
    ) -> Float[np.ndarray, " m"]:
        r"""Upper bounds of :math:`\sinh^2` of half the distances from one point, in radii.

        .. math:: \sinh^2 \frac d 2 = \frac{|x - y|^2}{(1 - |x|^2)(1 - |y|^2)}

        Args:
            x: Coordinates of the point.
            gap: Its gap.
            rows: Rows of the other points.
        """
        apart = self.coordinates[rows] - x
        length = np.sqrt(np.einsum("nd,nd->n", apart, apart)) + 2 * COORDINATE_ROUNDING
        least = np.maximum(self.gaps[rows] - COORDINATE_ROUNDING, LEAST_GAP) * max(
            gap - COORDINATE_ROUNDING, LEAST_GAP
        )
        return length * length / least


def curvature(places: Places) -> float:
    """Minus the sectional curvature of the space of places."""
    return float(places.manifold.c) if isinstance(places, ManifoldPlaces) else 1.0


def shifted_ball(x: NDArray, gap: float, u: float) -> tuple[NDArray, float]:
    r"""Euclidean ball that contains the hyperbolic ball about a point.

    .. math:: \frac{x}{1 + g u}, \qquad \frac{g \sqrt{u (1 + u)}}{1 + g u},
        \qquad g = 1 - |x|^2, \quad u = \sinh^2 \frac r 2

    These are centre and radius of the ball of hyperbolic radius ``r``. The radius is enlarged by
    what the rounding of ``x``, of ``gap``, of the other points and of their distances may cost.

    Args:
        x: Coordinates of the point in the unit ball.
        gap: ``1 - |x|^2``.
        u: ``sinh^2`` of half the radius, at least 0.

    Returns:
        Centre and radius, which is infinite where the rounding of ``x`` is as large as ``gap``.

    Example:
        >>> centre, radius = shifted_ball(np.array([0.6]), 0.64, 1.0)
        >>> 0.3658 < centre[0] < 0.3659 and 0.5518 < radius < 0.5519
        True
    """
    grown = 1 + gap * u
    centre, radius = x / grown, gap * math.sqrt(u * (1 + u)) / grown
    if gap < 8 * COORDINATE_ROUNDING:
        return centre, math.inf
    # 3 points are rounded, and the gap, whose derivatives are at most the last term
    slack = COORDINATE_ROUNDING * (4 + (2 * u + 1) / (grown * grown))
    return centre, radius + slack + (len(x) + 8) * EPS * radius
