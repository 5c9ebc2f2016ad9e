r"""Signed distances from points to hyperplanes: one matrix product for all of them.

The hyperplane at the signed distance :math:`a` from the origin, in the direction :math:`e` of unit
length there, holds the points of the hyperboloid whose Minkowski product with the normal
:math:`(\sinh(\sqrt c \, a), \cosh(\sqrt c \, a) \, e)` is 0; of any point it is
:math:`\sinh(\sqrt c \, d) / \sqrt c` in the signed distance :math:`d`.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.coordinates import on_hyperboloid
from fedbolic.nn.sinh_ratio import sinh_ratio_and_cosh
from fedbolic.nn.space import HyperbolicModule, Space, rounded, wide


class Hyperplanes(HyperbolicModule[Space], ABC):
    """A layer with one learnt hyperplane, of a weight, per output.

    Row ``k`` of ``weight`` is the direction of hyperplane ``k`` at the origin, and how much it
    counts; ``bias`` holds the signed distances from the origin.

    Args:
        kind: The model that the layer computes in.
        in_features: Dimensions of the space of the inputs.
        num_planes: How many hyperplanes there are.
        curvature: Minus the sectional curvature of the inputs.
        bias: Whether hyperplanes may lie off the origin.
        device: Where the parameters are made.
        dtype: Of the parameters.

    Raises:
        ValueError: If a number is below 1, or ``curvature`` is invalid.
    """

    planes: ClassVar[str] = "out_features"
    """What the number of hyperplanes is called."""

    def __init__(
        self,
        kind: type[Space],
        in_features: int,
        num_planes: int,
        *,
        curvature: Curvature | float,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(kind, curvature)
        self.in_features = in_features
        weight = torch.empty(num_planes, in_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(weight.new_empty(num_planes)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin anew: every hyperplane goes through the origin, with a random direction."""
        self.begin()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def extra_repr(self) -> str:
        planes = {self.planes: self.weight.shape[0]}
        return self.describe(in_features=self.in_features, **planes, bias=self.bias is not None)

    @abstractmethod
    def begin(self) -> None:
        """Draw ``weight`` anew."""

    @property
    def length(self) -> Float[Tensor, " m"]:
        """Scale of every hyperplane: the lengths of the rows of ``weight``; never 0."""
        return lengths(wide(self.weight))

    def sinh(
        self, space: Space, x: Float[Tensor, "*batch ambient"], length: Float[Tensor, " m"]
    ) -> Float[Tensor, "*batch m"]:
        """``sinh(sqrt(c) d) / sqrt(c)`` of the signed distances ``d`` to all hyperplanes.

        Args:
            space: Where the points are.
            x: The points.
            length: Of the rows of ``weight``.

        Raises:
            ValueError: If ``x`` cannot be points of the space.
        """
        unit = wide(self.weight) / length.unsqueeze(-1)
        return self.products(space, x, unit, torch.ones_like(length))

    def products(
        self,
        space: Space,
        x: Float[Tensor, "*batch ambient"],
        weight: Float[Tensor, "m n"],
        length: Float[Tensor, " m"],
    ) -> Float[Tensor, "*batch m"]:
        """Minkowski products of points with normals, not rounded to a half type.

        Args:
            space: Where the points are.
            x: The points.
            weight: Directions of the hyperplanes, as long as their normals shall be.
            length: Of these.

        Raises:
            ValueError: If ``x`` cannot be points of the space.
        """
        self.check(x, self.in_features, self.weight)
        rows = rounded(normals(space, weight, length, self.bias), self.weight.dtype)
        timed = (
            x
            if isinstance(space, Lorentz)
            else rounded(torch.cat(on_hyperboloid(space, x), -1), x.dtype)
        )
        return wide(functional.linear(timed, rows))


def lengths(weight: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
    """Lengths of rows, with derivative 0 at 0, where they are the root of the smallest float."""
    return (weight * weight).sum(-1).clamp_min(torch.finfo(weight.dtype).tiny).sqrt()


def normals(
    space: Lorentz | Poincare,
    weight: Float[Tensor, "m n"],
    length: Float[Tensor, " m"],
    offset: Float[Tensor, " m"] | None,
) -> Float[Tensor, "m n+1"]:
    """The normals, each as long as its row of ``weight``, as factors of time and space coordinates.

    Args:
        space: Where the hyperplanes are; time is taken in radii in the ball, as it is on the
            hyperboloid.
        weight: Directions at the origin.
        length: Of these rows.
        offset: Signed distances of the hyperplanes from the origin; at most 41 radii count in
            float32 (346 in float64). By default 0.
    """
    if offset is None:
        return functional.pad(weight, (1, 0))
    sinh, cosh = sinh_ratio_and_cosh(wide(offset), space.c)
    unit = space.c**0.5 if isinstance(space, Lorentz) else 1.0
    return torch.cat(((-unit * sinh * length).unsqueeze(-1), cosh.unsqueeze(-1) * weight), -1)
