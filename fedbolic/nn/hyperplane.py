r"""Signed distances from points to hyperplanes: one matrix product for all of them.

The hyperplane at the signed distance :math:`a` from the origin, in the direction :math:`e` of unit
length there, holds the points of the sheet whose Minkowski product with the normal
:math:`(\sinh(\sqrt c \, a), \cosh(\sqrt c \, a) \, e)` is 0; of any point it is
:math:`\sinh(\sqrt c \, d) / \sqrt c` in the signed distance :math:`d`.
"""

import math
from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.manifolds.numerics import (
    BALL_MARGIN,
    SHEET_RADIUS,
    SMALL,
    STEP,
    asinhc,
    in_float32,
    root,
    shrink,
    sinhc,
    square,
)
from fedbolic.nn.space import Curved, Space


class Hyperplanes(Curved[Space]):
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
        ValueError: If a number is below 1, or ``curvature`` is none.
    """

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

    @abstractmethod
    def begin(self) -> None:
        """Draw ``weight`` anew."""

    def products(
        self, space: Space, x: Float[Tensor, "*batch ambient"], weight: Float[Tensor, "m n"]
    ) -> Float[Tensor, "*batch m"]:
        """Minkowski products of points with the normals of the hyperplanes.

        Args:
            space: Where the points are.
            x: The points.
            weight: The rows of the layer's own, at the lengths that normals shall have: with length
                1 the product is ``sinh(sqrt(c) d) / sqrt(c)`` in the signed distance ``d``.

        Raises:
            ValueError: If ``x`` cannot be points of the space.
        """
        self.check(x, self.in_features, self.weight)
        dtype = torch.promote_types(x.dtype, self.weight.dtype)
        timed = on_sheet(space, x) if isinstance(space, Poincare) else x
        return functional.linear(timed, normals(space, weight, self.bias)).to(dtype)

    @property
    def length(self) -> Float[Tensor, " m"]:
        """How much every hyperplane counts: the lengths of the rows of ``weight``."""
        return root(square(self.weight)).squeeze(-1)


@in_float32
def normals(
    space: Lorentz | Poincare,
    weight: Float[Tensor, "m n"],
    offset: Float[Tensor, " m"] | None,
) -> Float[Tensor, "m n+1"]:
    """The normals, each as long as its row of ``weight``, as factors of time and space coordinates.

    Args:
        space: Where the hyperplanes are; time is taken in radii in the ball, as it is on the sheet.
        weight: Directions at the origin; a row of zeros has the normal 0.
        offset: Signed distances of the hyperplanes from the origin; at most 44 radii count in
            float32 (346 in float64). By default 0.
    """
    if offset is None:
        return functional.pad(weight, (1, 0))
    c, a = space.c, offset.unsqueeze(-1)
    a = a * shrink(c * (a * a * SMALL) / STEP[a.dtype])
    sinh = a * sinhc(c * a * a)
    cosh = (1 + c * sinh * sinh).sqrt()
    unit = c**0.5 if isinstance(space, Lorentz) else 1.0
    return torch.cat((-unit * sinh * root(square(weight)), cosh * weight), -1)


@in_float32
def on_sheet(space: Poincare, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n+1"]:
    """Points of the ball as those of the sheet, time in radii (so that it is 1 in flat space)."""
    t = space.c * square(x)
    limit = 1 - BALL_MARGIN * torch.finfo(x.dtype).eps
    factor = shrink(t * SMALL / limit)
    gap = 1 - t.clamp(max=limit)
    return torch.cat(((2 - gap) / gap, x * (2 * factor / gap)), -1)


def arc(t: Tensor, c: Tensor | float) -> Tensor:
    """``asinh(sqrt(c) t) / sqrt(c)``, odd, with the derivative 1 at 0, and at most 41 radii.

    A curvature that is a number has no derivative, for which alone the series would be needed.
    """
    if not isinstance(c, Tensor) and c == 0:
        return t
    limit = (SHEET_RADIUS[t.dtype] / c) ** 0.5
    t = t.clamp(-limit, limit)
    if isinstance(c, Tensor):
        return t * asinhc(c * t * t)
    side = torch.where(t < 0, -1.0, 1.0)  # the root of t * t would have the derivative 0 at 0
    s = c**0.5 * side * t
    q = s * s
    return side * (s + q / (1 + (1 + q).sqrt())).log1p() / c**0.5


def chord(d: Tensor, c: Tensor | float) -> Tensor:
    """``sinh(sqrt(c) d) / sqrt(c)``: undoes ``arc``, and is as bounded."""
    if not isinstance(c, Tensor) and c == 0:
        return d
    limit = (0.5 * math.log(SHEET_RADIUS[d.dtype]) + math.log(2)) / c**0.5
    d = d.clamp(-limit, limit)
    return d * sinhc(c * d * d) if isinstance(c, Tensor) else (c**0.5 * d).sinh() / c**0.5
