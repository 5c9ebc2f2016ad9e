"""Residual connections between points."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.formulas.lorentz_formulas import hyperboloid_gap
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.manifolds.curvature import load_numbers
from fedbolic.nn.functional.coordinates import with_space_part
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.functional.tangent import timed_points


class HyperbolicResidual(HyperbolicModule[Lorentz | Poincare]):
    r"""Residual connection: the weighted centroid of a point and the output of a branch.

    .. math:: y = \frac{m}{\sqrt{c} \, \sqrt{-\langle m, m \rangle}}, \quad m = x + e^s f(x)

    on the hyperboloid, and the corresponding point in the ball. It lies on the geodesic between
    both for any learnt number :math:`s`, which starts at 0, the midpoint. The centroid replaces the
    sum :math:`x + f(x)` of flat space, which would not be a point.

    Args:
        manifold: ``Lorentz(c)`` or ``Poincare(c)``; ``c`` may be a ``Curvature``.
        branch: Module from points to points of the same space.
        shortcut: Module that takes the place of :math:`x` in the centroid, for a branch that
            changes the shape; ``None`` for :math:`x` itself.
        device: Device of the parameter.
        dtype: Data type of the parameter.

    Shapes:
        Points ``(*, coordinates)`` to points of the shape that ``branch`` and ``shortcut`` give.

    Raises:
        ValueError: If the space is refused; when called, if the inputs have the wrong width or
            dtype, or ``branch`` gives another shape than the shortcut.

    References:
        He et al. (2025), arXiv:2412.14695.

    Example:
        >>> layer = HyperbolicResidual(Poincare(c=1.0), nn.Identity())
        >>> layer(torch.tensor([0.5, 0.0])).detach()
        tensor([0.5000, 0.0000])
    """

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        branch: nn.Module,
        *,
        shortcut: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        self.branch, self.shortcut = branch, shortcut
        self.log_weight = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
        load_numbers(self)

    def reset_parameters(self) -> None:
        """Weight both branches alike again."""
        nn.init.zeros_(self.log_weight)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*_ out"]:
        self.check(x)
        y = self.branch(x)
        x = x if self.shortcut is None else self.shortcut(x)
        if y.shape != x.shape:
            keeps = "keep the shape" if self.shortcut is None else "give the shortcut's shape"
            raise ValueError(
                f"branch must {keeps} {tuple(x.shape)}, got {tuple(y.shape)}: make its "
                "out_features equal to its in_features, or give a shortcut with the same number"
            )
        space, share = self.manifold, wide(self.log_weight).sigmoid()
        s = _weighted_centroid(space, wide(x), wide(y), share)
        return self.rounded(with_space_part(space, s), x, y, self.log_weight)


def _weighted_centroid(space: Lorentz | Poincare, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
    r"""Space coordinates of the centroid of two points with weights ``1 - share``, ``share``.

    The Minkowski length of the weighted mean is
    :math:`\sqrt{1 + 4 w (1 - w) \sinh^2(\sqrt c \, d / 2)}` in radii, a sum of positive terms.
    """
    (s, time), (other, other_time) = timed_points(space, x), timed_points(space, y)
    gap = space.c * hyperboloid_gap(s, time, other, other_time, space.c)
    return torch.lerp(s, other, share) * (4 * share * (1 - share) * gap + 1).rsqrt()
