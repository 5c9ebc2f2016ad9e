r"""Signed distances from points to hyperplanes by one matrix product.

Take the hyperplane at the signed distance :math:`a` from the origin in the direction of the unit
vector :math:`e`. The Minkowski product of a point of the hyperboloid with the normal
:math:`(\sinh(\sqrt c \, a), \cosh(\sqrt c \, a) \, e)` is :math:`\sinh(\sqrt c \, d) / \sqrt c`,
with :math:`d` the signed distance from the point to the hyperplane.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.formulas.sinh_ratio import asinh_ratio, sinh_ratio_and_cosh
from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.functional.coordinates import on_hyperboloid
from fedbolic.nn.functional.space import HyperbolicModule, Space, rounded, wide
from fedbolic.operators.logit_kernel import has_logit_kernel, kernel_logits


class Hyperplanes(HyperbolicModule[Space], ABC):
    """Base of layers with one learnt hyperplane per output.

    Row ``k`` of ``weight`` gives the direction of hyperplane ``k`` at the origin, and the norm of
    the row gives its scale; ``bias`` holds the signed distances from the origin.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        in_features: Dimensions of the input space.
        num_planes: Number of hyperplanes.
        curvature: Minus the sectional curvature of the inputs.
        bias: Whether to learn the distances of the hyperplanes from the origin; otherwise all 0.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Raises:
        ValueError: If ``curvature`` is invalid for ``kind``.
    """

    planes: ClassVar[str] = "out_features"
    """Name of the number of hyperplanes in ``print``."""

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
        """Re-initialise the parameters to random hyperplanes through the origin."""
        self.begin()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def extra_repr(self) -> str:
        planes = {self.planes: self.weight.shape[0]}
        return self.describe(in_features=self.in_features, **planes, bias=self.bias is not None)

    @abstractmethod
    def begin(self) -> None:
        """Draw new values of ``weight``."""

    @property
    def length(self) -> Float[Tensor, " m"]:
        """Scale of each hyperplane: the norm of its row of ``weight``, never 0."""
        return lengths(wide(self.weight))

    def sinh(
        self, space: Space, x: Float[Tensor, "*batch ambient"], length: Float[Tensor, " m"]
    ) -> Float[Tensor, "*batch m"]:
        """``sinh(sqrt(c) d) / sqrt(c)`` for the signed distances ``d`` to all hyperplanes.

        Args:
            space: Space of the points.
            x: Points.
            length: Norms of the rows of ``weight``.

        Raises:
            ValueError: If ``x`` has the wrong width or dtype.
        """
        unit = wide(self.weight) / length.unsqueeze(-1)
        return self.products(space, x, unit, torch.ones_like(length))

    def logits(
        self, x: Float[Tensor, "*batch ambient"], factor: float
    ) -> Float[Tensor, "*batch m"]:
        """Signed distances to all hyperplanes, times a number and the norms of ``weight``'s rows.

        Args:
            x: Points.
            factor: The number.

        Raises:
            ValueError: If ``x`` has the wrong width or dtype.
        """
        space = self.manifold
        if has_logit_kernel(x, self.weight):
            timed, hyperboloid = self.timed(space, x), isinstance(space, Lorentz)
            return kernel_logits(
                timed, self.weight, self.bias, space.c, factor=factor, hyperboloid=hyperboloid
            )
        length = self.length
        scale = length if factor == 1.0 else factor * length
        logits = scale * asinh_ratio(self.sinh(space, x, length), space.c)
        return rounded(logits, torch.promote_types(x.dtype, self.weight.dtype))

    def coefficients(
        self, space: Space, weight: Float[Tensor, "m n"], length: Float[Tensor, " m"]
    ) -> Float[Tensor, "m n+1"]:
        """Normals of the hyperplanes in the dtype of the layer, arguments as in ``products``."""
        return rounded(normals(space, weight, length, self.bias), self.weight.dtype)

    def products(
        self,
        space: Space,
        x: Float[Tensor, "*batch ambient"],
        weight: Float[Tensor, "m n"],
        length: Float[Tensor, " m"],
    ) -> Float[Tensor, "*batch m"]:
        """Minkowski products of points with the normals, in float32 or float64.

        Args:
            space: Space of the points.
            x: Points.
            weight: Directions of the hyperplanes, scaled to the length wanted for their normals.
            length: Norms of these rows.

        Raises:
            ValueError: If ``x`` has the wrong width or dtype.
        """
        timed = self.timed(space, x)
        return wide(functional.linear(timed, self.coefficients(space, weight, length)))

    def timed(
        self, space: Space, x: Float[Tensor, "*batch ambient"]
    ) -> Float[Tensor, "*batch coordinates"]:
        """Time and space coordinates of points, arguments as in ``products``.

        Raises:
            ValueError: If ``x`` has the wrong width or dtype.
        """
        self.check(x, self.in_features, self.weight)
        if isinstance(space, Lorentz):
            return x
        return rounded(torch.cat(on_hyperboloid(space, x), -1), x.dtype)


def lengths(weight: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
    """Norms of the rows, at least the root of the smallest float; the derivative at 0 is 0."""
    return (weight * weight).sum(-1).clamp_min(torch.finfo(weight.dtype).tiny).sqrt()


def normals(
    space: Lorentz | Poincare,
    weight: Float[Tensor, "m n"],
    length: Float[Tensor, " m"],
    offset: Float[Tensor, " m"] | None,
) -> Float[Tensor, "m n+1"]:
    """Normals of hyperplanes as coefficients of time and space coordinates.

    Each normal is as long as its row of ``weight``.

    Args:
        space: Space of the hyperplanes. Time coordinates are in units of length for ``Lorentz`` and
            in radii for ``Poincare``.
        weight: Directions at the origin.
        length: Norms of these rows.
        offset: Signed distances of the hyperplanes from the origin, clamped to 41 radii in float32
            (346 in float64); ``None`` for 0.
    """
    if offset is None:
        return functional.pad(weight, (1, 0))
    sinh, cosh = sinh_ratio_and_cosh(wide(offset), space.c)
    unit = space.c**0.5 if isinstance(space, Lorentz) else 1.0
    return torch.cat(((-unit * sinh * length).unsqueeze(-1), cosh.unsqueeze(-1) * weight), -1)
