"""Pointwise activations of space coordinates, or of tangents at the origin."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.functional.coordinates import from_tangent, space_part, to_tangent, with_space_part
from fedbolic.nn.functional.space import HyperbolicModule

Pointwise = Callable[[Tensor], Tensor]
"""A function or a module that maps a tensor to a tensor of the same shape."""


class SpaceActivation(HyperbolicModule[Lorentz | Poincare]):
    r"""Activation of the space coordinates on the hyperboloid; the time coordinate is recomputed.

    .. math:: y_s = f(x_s), \quad y_0 = \sqrt{1 / c + |y_s|^2}

    For points of the ball, ``function`` acts on their images on the hyperboloid. This layer takes
    no logarithm and is therefore cheaper than ``TangentActivation``.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        function: Pointwise function or module, such as ``torch.relu``; the parameters of a module
            are trained with the layer.
        curvature: Minus the sectional curvature, a number or a ``Curvature``.

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
    r"""Activation of the tangent at the origin that maps to the point.

    .. math:: y = \exp_0(f(\log_0 x))

    Args:
        kind: ``Lorentz`` or ``Poincare``; the length of a tangent is a distance in both models.
        function: Pointwise function or module, such as ``torch.tanh``; the parameters of a module
            are trained with the layer.
        curvature: Minus the sectional curvature, a number (0 for flat space) or a ``Curvature``.

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
    """Name of a function for ``print``; empty for a module, which prints itself."""
    if isinstance(function, nn.Module):
        return {}
    return {"function": getattr(function, "__name__", repr(function))}
