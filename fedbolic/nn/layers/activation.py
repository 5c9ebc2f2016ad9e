"""Pointwise activations of space coordinates or of tangents at the origin, and their dropout."""

from abc import ABC
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import from_tangent, space_part, to_tangent, with_space_part
from fedbolic.nn.functional.space import HyperbolicModule
from fedbolic.nn.layers.dropout import Dropout

Pointwise = Callable[[Tensor], Tensor]
"""A function or a module that maps a tensor to a tensor of the same shape."""


class _Activation(HyperbolicModule[Lorentz | Poincare], ABC):
    """Base of layers that apply a pointwise function.

    Args:
        manifold: Space of inputs and outputs.
        function: Pointwise function or module.
    """

    def __init__(self, manifold: Lorentz | Poincare, function: Pointwise) -> None:
        super().__init__(manifold)
        self.function = function

    @override
    def extra_repr(self) -> str:
        return self.describe(**named(self.function))


class SpaceActivation(_Activation):
    r"""Activation of the space coordinates on the hyperboloid; the time coordinate is recomputed.

    .. math:: y_s = f(x_s), \quad y_0 = \sqrt{1 / c + |y_s|^2}

    For points of the ball, ``function`` acts on their images on the hyperboloid. This layer takes
    no logarithm and is therefore cheaper than ``TangentActivation``.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        function: Pointwise function or module, such as ``torch.relu``; the parameters of a module
            are trained with the layer.

    Shapes:
        Points ``(*, coordinates)`` to points of the same shape.

    References:
        Bdeir et al. (2024), arXiv:2303.15919.

    Example:
        >>> import torch
        >>> layer = SpaceActivation(Lorentz(c=1.0), torch.relu)
        >>> layer(torch.tensor([3.0, 2.0, -2.0]))
        tensor([2.2361, 2.0000, 0.0000])
    """

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x)
        space = self.manifold
        return self.rounded(with_space_part(space, self.function(space_part(space, x))), x)


class TangentActivation(_Activation):
    r"""Activation of the tangent at the origin that maps to the point.

    .. math:: y = \exp_0(f(\log_0 x))

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``. The length of a
            tangent is a distance in both models.
        function: Pointwise function or module, such as ``torch.tanh``; the parameters of a module
            are trained with the layer.

    Shapes:
        Points ``(*, coordinates)`` to points of the same shape.

    References:
        Ganea et al. (2018), arXiv:1805.09112; Chami et al. (2019), arXiv:1910.12933.

    Example:
        >>> import torch
        >>> layer = TangentActivation(Poincare(c=1.0), torch.relu)
        >>> layer(torch.tensor([0.5, -0.5]))
        tensor([0.5534, 0.0000])
    """

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x)
        space = self.manifold
        return from_tangent(space, self.function(to_tangent(space, x)))


class TangentDropout(HyperbolicModule[Lorentz | Poincare]):
    r"""Dropout of coordinates of the tangent at the origin that maps to the point.

    .. math:: y = \exp_0 \Bigl( \frac{m}{1 - p} \odot \log_0 x \Bigr), \quad m_k \sim
        \mathrm{Bernoulli}(1 - p)

    The expected tangent is that of the input. In evaluation, points do not change. Masks are drawn
    as in :class:`~fedbolic.nn.layers.dropout.Dropout`.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        p: Probability that a coordinate is dropped, in [0, 1).

    Shapes:
        Points ``(*, coordinates)`` to points of the same shape.

    Raises:
        ValueError: If ``p`` is out of range or the space is refused.

    References:
        Srivastava et al. (2014), JMLR 15.

    Example:
        >>> import torch
        >>> layer = TangentDropout(Poincare(c=1.0), p=0.5)
        >>> (layer(torch.full((99, 50), 0.1)) == 0).float().mean().round(decimals=1)
        tensor(0.5000)
        >>> layer.eval()(torch.tensor([0.5, 0.5]))
        tensor([0.5000, 0.5000])
    """

    def __init__(self, manifold: Lorentz | Poincare, p: float = 0.5) -> None:
        super().__init__(manifold)
        self.dropout = Dropout(p)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x)
        if not self.training or self.dropout.p == 0:
            return x
        space = self.manifold
        return from_tangent(space, self.dropout(to_tangent(space, x)))


def named(function: Pointwise | None) -> dict[str, str]:
    """Name of a function for ``print``; empty for ``None`` and modules, which print themselves."""
    if function is None or isinstance(function, nn.Module):
        return {}
    return {"function": getattr(function, "__name__", repr(function))}
