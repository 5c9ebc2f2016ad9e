"""Functions of coordinates as layers: on space coordinates, or on tangents at the origin."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.coordinates import from_tangent, space_part, to_tangent, with_space_part
from fedbolic.nn.space import HyperbolicModule

Pointwise = Callable[[Tensor], Tensor]
"""A function, or a module, from numbers to as many numbers."""


class SpaceActivation(HyperbolicModule[Lorentz | Poincare]):
    r"""A function of the space coordinates on the hyperboloid; the time coordinate follows.

    .. math:: y_s = f(x_s), \quad y_0 = \sqrt{1 / c + |y_s|^2}

    In the ball, the same of the point's image on the hyperboloid. No logarithm, and so the cheaper
    one.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        function: Such as ``torch.relu``; a module with parameters is trained with the layer.
        curvature: Minus the sectional curvature, a number or a module.

    References:
        Bdeir et al. (2024), arXiv:2303.15919.

    Example:
        >>> import torch
        >>> layer = SpaceActivation(Lorentz, torch.relu)
        >>> layer(torch.tensor([3.0, 2.0, -2.0]))
        tensor([2.2361, 2.0000, 0.0000])
    """

    def __init__(
        self,
        kind: type[Lorentz] | type[Poincare],
        function: Pointwise,
        *,
        curvature: Curvature | float = 1.0,
    ) -> None:
        super().__init__(kind, curvature)
        self.function = function

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x)
        space = self.manifold
        return self.rounded(with_space_part(space, self.function(space_part(space, x))), x)

    @override
    def extra_repr(self) -> str:
        return self.describe(**named(self.function))


class TangentActivation(HyperbolicModule[Lorentz | Poincare]):
    r"""A function of the tangent at the origin that leads to the point.

    .. math:: y = \exp_0(f(\log_0 x))

    Args:
        kind: ``Lorentz`` or ``Poincare``; lengths of tangents are distances in both.
        function: Such as ``torch.tanh``; a module with parameters is trained with the layer.
        curvature: Minus the sectional curvature, a number (0 is flat space) or a module.

    References:
        Ganea et al. (2018), arXiv:1805.09112; Chami et al. (2019), arXiv:1910.12933.

    Example:
        >>> import torch
        >>> layer = TangentActivation(Poincare, torch.relu)
        >>> layer(torch.tensor([0.5, -0.5]))
        tensor([0.5534, 0.0000])
    """

    def __init__(
        self,
        kind: type[Lorentz] | type[Poincare],
        function: Pointwise,
        *,
        curvature: Curvature | float = 1.0,
    ) -> None:
        super().__init__(kind, curvature)
        self.function = function

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x)
        space = self.manifold
        return from_tangent(space, self.function(to_tangent(space, x)))

    @override
    def extra_repr(self) -> str:
        return self.describe(**named(self.function))


def named(function: Pointwise) -> dict[str, str]:
    """A function's name for ``print``; a module prints itself."""
    if isinstance(function, nn.Module):
        return {}
    return {"function": getattr(function, "__name__", repr(function))}
