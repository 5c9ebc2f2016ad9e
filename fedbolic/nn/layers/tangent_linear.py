"""The linear layer of HGCN, in the tangent space at the origin."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import with_space_part
from fedbolic.nn.functional.space import OutputRows, wide
from fedbolic.nn.functional.tangent import (
    log_factor,
    points_to_tangents,
    tangents_to_points,
    translate,
)
from fedbolic.nn.layers.dropout import Dropout


class TangentLinear(OutputRows[Lorentz | Poincare]):
    r"""Linear map of tangents at the origin, followed by a translation.

    .. math:: h = \exp_{\hat x}(P_{o \to \hat x}(b)), \quad \hat x = \exp_o(W \log_o(x))

    The lengths of tangents, the bias included, are distances in both models, so these give the same
    map. Weights start as the authors', by Xavier's rule with the gain of ReLU, and the bias as 0.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        in_features: Dimensions of the input space, without time.
        out_features: Dimensions of the output space, without time.
        bias: Whether to learn the bias :math:`b`, a tangent at the origin.
        drop_connect: Probability that a weight is dropped in training, in [0, 1).
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Points ``(*, in_features)`` to points ``(*, out_features)``; on the hyperboloid ``(*,
        in_features + 1)`` to ``(*, out_features + 1)``.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the inputs have
            the wrong width or dtype.

    References:
        Chami et al. (2019), arXiv:1910.12933; Wan et al. (2013), PMLR 28, for DropConnect, which
        the authors' code applies to the weights.

    Example:
        >>> layer = TangentLinear(Lorentz(c=1.0), 3, 2)
        >>> layer(layer.manifold.origin(5, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        drop_connect: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold, in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.drop_connect = Dropout(drop_connect, device=device)

    @override
    def begin(self) -> None:
        nn.init.xavier_uniform_(self.weight, gain=2**0.5)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch out"]:
        self.check(x, self.in_features, self.weight)
        space = self.manifold
        h = self._mapped(points_to_tangents(space, x))
        if self.bias is None:
            y = tangents_to_points(space, h)
        else:
            y = with_space_part(space, translate(space.c, h, wide(self.bias))[0])
        return self.rounded(y, x, self.weight)

    def tangents(self, v: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        """The layer from tangents to tangents at the origin, in float32 or float64.

        ``forward`` is this between the logarithm and the exponential map at the origin.

        Args:
            v: Tangents as long as the distances of the points from the origin.
        """
        h = self._mapped(v)
        if self.bias is None:
            return h
        y, length = translate(self.c, h, wide(self.bias))
        return y * log_factor(self.c, length)

    def _mapped(self, v: Tensor) -> Tensor:
        weight = self.drop_connect(self.weight)
        return wide(functional.linear(v.to(weight.dtype), weight))
