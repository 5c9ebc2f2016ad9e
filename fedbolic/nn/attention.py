"""Attention among points of the hyperboloid."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from fedbolic import check
from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn.coordinates import hyperboloid_point
from fedbolic.nn.dropout import Dropout
from fedbolic.nn.linear import LorentzLinear
from fedbolic.nn.space import HyperbolicModule, wide


class LorentzAttention(HyperbolicModule[Lorentz]):
    r"""Multi-head attention: weights by distance, and the centroid of the values.

    .. math:: y_i = \frac{m_i}{\sqrt c \, \sqrt{-\langle m_i, m_i \rangle}}, \quad
        m_i = \sum_j w_{ij} v_j, \quad w_{ij} \propto \exp \Bigl( -\frac{c}{\sqrt d}
        \bigl( -\tfrac 2 c - 2 \langle q_i, k_j \rangle \bigr) \Bigr)

    in every head of :math:`d` dimensions. Queries, keys and values are ``LorentzLinear`` of the
    inputs, whose space coordinates are dealt among the heads; those of the centroids, side by side,
    go through one more. The bracket is the squared Lorentzian distance. Products of points are
    taken in float32 also under autocast.

    The length of :math:`m_i` is a difference of squares: values beyond about 5 radii in float32
    (14 in float64) give a centroid in the right direction, at a distance with few digits; beyond 10
    (80) derivatives may be larger than any float.

    Args:
        embed_dim: Dimensions of the space of inputs and outputs, without time.
        num_heads: Divides ``embed_dim``.
        curvature: Minus the sectional curvature, a number or a module.
        dropout: The probability that a weight is dropped in training, in [0, 1).
        bias: Whether the linear maps have biases.
        device: Where the parameters are made.
        dtype: Of the parameters.

    Raises:
        ValueError: If a number is outside its range, or ``curvature`` is invalid; when called, for
            inputs of another width or type.

    References:
        Chen et al. (2022), arXiv:2105.14686; Law et al. (2019), PMLR 97.

    Example:
        >>> layer = LorentzAttention(4, num_heads=2)
        >>> layer(Lorentz().origin(3, 7, 5)).shape
        torch.Size([3, 7, 5])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        curvature: Curvature | float = 1.0,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(Lorentz, curvature)
        check.at_least(1, embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"num_heads must divide embed_dim {embed_dim}, got {num_heads}")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout = Dropout(dropout, device=device)
        self.head_dim = embed_dim // num_heads
        self.query, self.key, self.value, self.out = (
            LorentzLinear(
                embed_dim, embed_dim, curvature=curvature, bias=bias, device=device, dtype=dtype
            )
            for _ in range(4)
        )

    def _heads(self, linear: LorentzLinear, x: Tensor) -> Float[Tensor, "*batch heads n ambient"]:
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
        """The points after attention.

        Args:
            x: Points that ask.
            context: Points that are attended to; by default ``x``.
            mask: Which of them each may attend to, at least one; by default all.

        Raises:
            ValueError: If a tensor has the wrong shape or type.
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
            check_mask(mask, x.shape[-2], context.shape[-2])
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


def check_mask(mask: Tensor, n: int, m: int) -> None:
    """Refuse what does not say which of ``m`` points each of ``n`` may attend to.

    Raises:
        ValueError: Naming what came and the remedy.
    """
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be of torch.bool, got {mask.dtype}: use mask.bool()")
    rows, columns = mask.shape[-2:] if mask.ndim > 1 else (0, 0)
    if rows not in (1, n) or columns not in (1, m):
        raise ValueError(
            f"mask must have the shape (..., {n}, {m}), or 1 for either, got shape "
            f"{tuple(mask.shape)}: rows are those that ask, columns those attended to"
        )
