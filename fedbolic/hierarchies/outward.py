"""Places farther out in the same direction."""

from dataclasses import replace
from typing import TypeVar

import torch
from jaxtyping import Float64
from torch import Tensor

from fedbolic.manifolds import HalfSpacePlaces, ManifoldPlaces, Places, PolarPlaces

Moved = TypeVar("Moved", bound=Places)


def radii(places: Places) -> Float64[Tensor, " n"]:
    """Distances outward: from the origin, or downward from height 1 in the half-space.

    Args:
        places: Places in polar coordinates, in the half-space or on a manifold.

    Raises:
        TypeError: If they are of another kind.
    """
    if isinstance(places, PolarPlaces):
        return places.radii
    if isinstance(places, HalfSpacePlaces):
        return -places.log_heights
    if isinstance(places, ManifoldPlaces):
        return places.manifold.dist0(places.points.double())
    raise TypeError(f"{type(places).__name__} have no direction outward")


def outward(places: Moved, step: float) -> Moved:
    """The places farther out by a step, in the same direction; never past the origin.

    Args:
        places: As for :func:`radii`.
        step: Length of the step; below 0 to go inward.

    Raises:
        TypeError: If they are of another kind.

    Example:
        >>> radius = torch.tensor([1.0]).double()
        >>> outward(PolarPlaces(torch.tensor([0]), radius), 2.0).radii
        tensor([3.], dtype=torch.float64)
    """
    before = radii(places)
    if isinstance(places, PolarPlaces):
        return replace(places, radii=(before + step).clamp(min=0))
    if isinstance(places, HalfSpacePlaces):
        return replace(places, log_heights=-before - step)
    if not isinstance(places, ManifoldPlaces):
        raise TypeError(f"{type(places).__name__} have no direction outward")
    tangents = places.manifold.logmap0(places.points.double())
    ratio = torch.where(before > 0, (before + step).clamp(min=0) / before, 1.0)
    return replace(places, points=places.manifold.expmap0(tangents * ratio.unsqueeze(-1)))
