"""Residual connections between points."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn.space import HyperbolicModule, wide


class HyperbolicResidual(HyperbolicModule[Lorentz | Poincare]):
    r"""Residual connection: the weighted centroid of a point and the output of a branch.

    .. math:: y = \frac{m}{\sqrt{c} \, \sqrt{-\langle m, m \rangle}}, \quad m = x + e^s f(x)

    on the hyperboloid, and the corresponding point in the ball. It lies on the geodesic between
    both for any learnt number :math:`s`, which starts at 0, the midpoint. The centroid replaces the
    sum :math:`x + f(x)` of flat space, which would not be a point.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        branch: Module from points to points of the same space.
        curvature: Minus the sectional curvature, a number (0 for flat space) or a ``Curvature``.
        device: Device of the parameter.
        dtype: Data type of the parameter.

    Raises:
        ValueError: If ``curvature`` is invalid for ``kind``; when called, if the inputs have the
            wrong width or dtype, or ``branch`` changes their shape.

    References:
        He et al. (2025), arXiv:2412.14695.

    Example:
        >>> layer = HyperbolicResidual(Poincare, nn.Identity())
        >>> layer(torch.tensor([0.5, 0.0])).detach()
        tensor([0.5000, 0.0000])
    """

    def __init__(
        self,
        kind: type[Lorentz] | type[Poincare],
        branch: nn.Module,
        *,
        curvature: Curvature | float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(kind, curvature)
        self.branch = branch
        self.log_weight = nn.Parameter(torch.zeros((), device=device, dtype=dtype))

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x)
        y = self.branch(x)
        if y.shape != x.shape:
            raise ValueError(
                f"branch must keep the shape {tuple(x.shape)} of its input, got "
                f"{tuple(y.shape)}: make its out_features equal to its in_features"
            )
        share = wide(self.log_weight).sigmoid()
        pair = torch.stack((wide(x), wide(y)), -2)
        weights = torch.stack((1 - share, share)).expand(pair.shape[:-1])
        return self.rounded(self.manifold.centroid(pair, weights), x, y, self.log_weight)
