"""Places in the hyperbolic plane by polar coordinates, with the angle as a fixed-point number."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds.places import (
    Places,
    by_rows,
    check_distinct,
    check_reach,
    same_kind,
    separation,
)

TURN_BITS = {torch.int64: 64, torch.int32: 32}
"""Bits of a turn by the dtype that stores it."""


@dataclass(frozen=True, eq=False)
class PolarPlaces(Places):
    r"""Points of the plane by a turn and a radius.

    .. math:: d = 2 \operatorname{asinh} \sqrt{\sinh^2 \frac{r_u - r_v}{2}
        + \sinh r_u \sinh r_v \sin^2 \frac{\theta_u - \theta_v}{2}}

    A turn is an integer whose bits are a binary fraction of the circle: ``t`` stands for the angle
    :math:`2 \pi t / 2^{64}` (int32: :math:`2 \pi t / 2^{32}`), and negative numbers for the second
    half. Differences of such numbers wrap around exactly, at every angle, so 64 bits tell angles
    apart that differ by 44 nats (int32: 22), where a float64 loses what lies before the point (a
    float32 resolves 16).

    Args:
        turns: Turns, int64 or int32.
        radii: Distances from the origin, float64, finite and at least 0.

    Raises:
        ValueError: If a dtype, the shapes or a radius are wrong.

    Example:
        >>> quarter = 2**62
        >>> places = PolarPlaces(torch.tensor([0, quarter]), torch.tensor([2.0, 2.0]).double())
        >>> places.dist(places[torch.tensor([1, 1])])
        tensor([3.3419, 0.0000], dtype=torch.float64)
    """

    turns: Int[Tensor, " n"]
    radii: Float64[Tensor, " n"]

    def __post_init__(self) -> None:
        if self.turns.dtype not in TURN_BITS or self.radii.dtype != torch.float64:
            raise ValueError(
                "turns must be int64 or int32 and radii float64, got "
                f"{self.turns.dtype} and {self.radii.dtype}"
            )
        if self.turns.ndim != 1 or self.turns.shape != self.radii.shape:
            raise ValueError(
                "turns and radii must be one number a point, got the shapes "
                f"{tuple(self.turns.shape)} and {tuple(self.radii.shape)}"
            )
        wrong = self.radii[~(self.radii.isfinite() & (self.radii >= 0))]
        if len(wrong):
            raise ValueError(f"radii must be finite and at least 0, got {float(wrong[0])}")

    @property
    @override
    def dim(self) -> int:
        return 2

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {"turns": self.turns, "radii": self.radii}

    @property
    def angles(self) -> Float64[Tensor, " n"]:
        """Angles in radians, in [-pi, pi)."""
        return self.turns.double() * (2 * math.pi * 2.0 ** -TURN_BITS[self.turns.dtype])

    @override
    def dist(self, others: Places) -> Float64[Tensor, " n"]:
        return _distances(self.turns, self.radii, *self._read(others))

    @override
    def cdist(self, others: Places) -> Float64[Tensor, "n m"]:
        turns, radii = self._read(others)

        def distances(at: slice) -> Tensor:
            return _distances(self.turns[at, None], self.radii[at, None], turns, radii)

        return by_rows(distances, self.radii, len(others))

    def _read(self, others: Places) -> tuple[Tensor, Tensor]:
        """Turns and radii of ``others``, after a check that the turns have the same unit."""
        others = same_kind(self, others)
        if self.turns.dtype != others.turns.dtype:
            raise ValueError(
                "turns must have one dtype, got "
                f"{self.turns.dtype} and {others.turns.dtype}: shift one of them by 32 bits"
            )
        return others.turns, others.radii

    @override
    def to_poincare(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n 2"]:
        check_reach(self.radii, dtype)
        return self._distinct(self._directed(torch.tanh(self.radii / 2)).to(dtype), "the ball")

    @override
    def to_lorentz(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n 3"]:
        check_reach(self.radii, dtype)
        space = self._directed(torch.sinh(self.radii))
        points = torch.cat((torch.cosh(self.radii).unsqueeze(1), space), dim=1)
        return self._distinct(points.to(dtype), "the hyperboloid")

    def _directed(self, lengths: Tensor) -> Tensor:
        angles = self.angles
        return torch.stack((lengths * angles.cos(), lengths * angles.sin()), dim=1)

    def _distinct(self, images: Tensor, model: str) -> Tensor:
        turns = torch.where(self.radii > 0, self.turns.long(), 0)  # the origin has every angle
        keys = torch.stack((turns, (self.radii + 0.0).view(torch.int64)), dim=1)
        return check_distinct(images, keys, model)


def _distances(turns_u: Tensor, radii_u: Tensor, turns_v: Tensor, radii_v: Tensor) -> Tensor:
    half = (turns_u - turns_v).double() * (math.pi * 2.0 ** -TURN_BITS[turns_u.dtype])
    # sinh r is e^r times the square of this
    wide_u, wide_v = (torch.sqrt(torch.expm1(-2 * r) / -2) for r in (radii_u, radii_v))
    return separation(half.sin().abs() * (wide_u * wide_v), radii_u / 2, radii_v / 2)
