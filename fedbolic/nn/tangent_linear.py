"""The linear layer of HGCN, in the tangent space at the origin."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedbolic import check
from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn.coordinates import from_tangent, to_tangent
from fedbolic.nn.space import HyperbolicModule, wide


class TangentLinear(HyperbolicModule[Lorentz]):
    r"""Linear map of tangents at the origin, followed by a translation.

    .. math:: h = \exp_{\hat x}(P_{o \to \hat x}(b)), \quad \hat x = \exp_o(W \log_o(x))

    Args:
        in_features: Dimensions of the input space; an input has one more coordinate, time.
        out_features: Dimensions of the output space.
        bias: Whether to learn the bias :math:`b`, a tangent at the origin.
        curvature: Minus the sectional curvature of both spaces: a number or a ``Curvature``.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Raises:
        ValueError: If a number is below 1 or ``curvature`` is invalid; when called, if the inputs
            have the wrong width or dtype.

    References:
        Chami et al. (2019), arXiv:1910.12933.

    Example:
        >>> layer = TangentLinear(3, 2)
        >>> layer(layer.manifold.origin(5, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        curvature: Curvature | float = 1.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(Lorentz, curvature)
        check.at_least(1, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        weight = torch.empty(out_features, in_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(weight.new_empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Re-initialise as the authors do: Xavier's rule with the gain of ReLU, no translation."""
        nn.init.xavier_uniform_(self.weight, gain=2**0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch out"]:
        self.check(x, self.in_features, self.weight)
        space = self.manifold
        h = from_tangent(space, wide(functional.linear(to_tangent(space, x), self.weight)))
        if self.bias is not None:
            h = space.expmap(h, space.transp0(h, space.lift(wide(self.bias))))
        return self.rounded(h, x, self.weight)

    @override
    def extra_repr(self) -> str:
        return self.describe(
            in_features=self.in_features,
            out_features=self.out_features,
            bias=self.bias is not None,
        )
