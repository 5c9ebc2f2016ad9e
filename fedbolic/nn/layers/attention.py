"""Attention between points of the hyperboloid."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz
from fedbolic.nn.functional.coordinates import hyperboloid_point
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.layers.dropout import Dropout
from fedbolic.nn.layers.linear import Linear


class LorentzAttention(HyperbolicModule[Lorentz]):
    r"""Multi-head attention with weights from distances and centroids of the values.

    .. math:: y_i = \frac{m_i}{\sqrt c \, \sqrt{-\langle m_i, m_i \rangle}}, \quad
        m_i = \sum_j w_{ij} v_j, \quad w_{ij} \propto \exp \Bigl( -\frac{c}{\sqrt d}
        \bigl( -\tfrac 2 c - 2 \langle q_i, k_j \rangle \bigr) \Bigr)

    in every head of :math:`d` dimensions. A ``Linear`` each gives queries, keys and values,
    whose space coordinates are split among the heads. The space coordinates of the centroids are
    concatenated and mapped by a fourth ``Linear``. The bracket is the squared Lorentzian
    distance. Products of points are computed in float32 even under autocast.

    The Minkowski length of :math:`m_i` is a difference of squares. For values beyond about 5 radii
    in float32 (14 in float64) the direction of the centroid is accurate but its distance from the
    origin has few correct digits; beyond 10 radii (80) derivatives may overflow.

    Args:
        manifold: ``Lorentz(c)``; ``c`` may be a ``Curvature``.
        embed_dim: Dimensions of the input and output space, without time.
        num_heads: Number of heads, a divisor of ``embed_dim``.
        dropout: Probability that an attention weight is dropped in training, in [0, 1).
        bias: Whether the linear maps learn a bias.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Sets of points ``(*, n, embed_dim + 1)``, the ``context`` ``(*, m, embed_dim + 1)`` and the
        ``mask`` ``(*, n, m)``, to points of the shape of the first.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if the inputs
            have the wrong width or dtype.

    References:
        Chen et al. (2022), arXiv:2105.14686; Law et al. (2019), PMLR 97.

    Example:
        >>> layer = LorentzAttention(Lorentz(c=1.0), 4, num_heads=2)
        >>> layer(Lorentz().origin(3, 7, 5)).shape
        torch.Size([3, 7, 5])
    """

    models = (Lorentz,)

    def __init__(
        self,
        manifold: Lorentz,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"num_heads must divide embed_dim {embed_dim}, got {num_heads}")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout = Dropout(dropout, device=device)
        self.head_dim = embed_dim // num_heads
        self.query, self.key, self.value, self.out = (
            Linear(manifold, embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
            for _ in range(4)
        )

    def _heads(self, linear: Linear, x: Tensor) -> Float[Tensor, "*batch heads n ambient"]:
        s = wide(linear(x)[..., 1:]).unflatten(-1, (self.num_heads, -1))
        return hyperboloid_point(self.manifold, s.transpose(-2, -3))

    @override
    def forward(
        self,
        x: Float[Tensor, "*batch n ambient"],
        context: Float[Tensor, "*batch m ambient"] | None = None,
        *,
        mask: Bool[Tensor, "*#batch n m"] | None = None,
    ) -> Float[Tensor, "*batch n ambient"]:
        """Attend from each point of ``x`` to the points of ``context``.

        Args:
            x: Points that give the queries.
            context: Points that give the keys and values; by default ``x``.
            mask: True where a query may attend to a key, at least once per query; by default
                everywhere.

        Raises:
            ValueError: If a tensor has the wrong shape or dtype.
        """
        context = x if context is None else context
        for name, points in (("x", x), ("context", context)):
            self.check(points, self.embed_dim, self.query.weight, name=name)
            if points.ndim < 2:
                raise ValueError(
                    f"{name} must be sets of points (..., n, {self.embed_dim + 1}), got shape "
                    f"{tuple(points.shape)}: unsqueeze(-2) makes a point a set"
                )
        if mask is not None:
            _check_mask(mask, x.shape[-2], context.shape[-2])
        space = self.manifold
        query, key, value = (
            self._heads(linear, points)
            for linear, points in ((self.query, x), (self.key, context), (self.value, context))
        )
        turned = torch.cat((-query[..., :1], query[..., 1:]), -1)
        with torch.autocast(x.device.type, enabled=False):  # bfloat16 would leave two digits
            scores = 2 * space.c * self.head_dim**-0.5 * (turned @ key.mT)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -torch.inf)
            weights = self.dropout(scores.softmax(-1))
            mean = weights @ value
        time, s = mean[..., :1], mean[..., 1:]
        size = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
        length = (space.c * (time - size) * (time + size)).clamp(min=1).sqrt()
        s = (s / length).transpose(-2, -3).flatten(-2)
        return self.out(self.rounded(hyperboloid_point(space, s), x, self.query.weight))

    @override
    def extra_repr(self) -> str:
        return self.describe(embed_dim=self.embed_dim, num_heads=self.num_heads)


def _check_mask(mask: Tensor, n: int, m: int) -> None:
    """Check the mask between ``n`` queries and ``m`` keys.

    Raises:
        ValueError: If the mask is not boolean or its last two axes do not broadcast to (n, m).
    """
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be of torch.bool, got {mask.dtype}: use mask.bool()")
    rows, columns = mask.shape[-2:] if mask.ndim > 1 else (0, 0)
    if rows not in (1, n) or columns not in (1, m):
        raise ValueError(
            f"mask must have the shape (..., {n}, {m}), or 1 for either, got shape "
            f"{tuple(mask.shape)}: rows are queries, columns are keys"
        )
