"""Dropout of points."""

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import from_tangent, to_tangent
from fedbolic.nn.functional.space import HyperbolicModule
from fedbolic.nn.layers.dropout import Dropout


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

    def __init__(
        self,
        manifold: Lorentz | Poincare,
        p: float = 0.5,
    ) -> None:
        super().__init__(manifold)
        self.dropout = Dropout(p)

    @override
    def forward(self, x: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch ambient"]:
        self.check(x)
        if not self.training or self.dropout.p == 0:
            return x
        space = self.manifold
        return from_tangent(space, self.dropout(to_tangent(space, x)))
