"""Attention between points of the hyperboloid."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz
from fedbolic.nn.functional.attention import attended
from fedbolic.nn.functional.coordinates import hyperboloid_point
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.functional.tangent import (
    exp_factors,
    length_of,
    log_factor,
    points_to_tangents,
    tangents_to_points,
)
from fedbolic.nn.layers.dropout import Dropout
from fedbolic.nn.layers.linear import Linear
from fedbolic.nn.transformer.rotary import rotated

Stream: TypeAlias = Literal["points", "tangents"]
"""Inputs of linear maps, norms and residual connections: points, or tangents at the origin."""

Heads: TypeAlias = tuple[Float[Tensor, "*batch heads _ width"], ...]
"""Points of all heads."""


class LorentzAttention(HyperbolicModule[Lorentz]):
    r"""Multi-head attention with weights from distances and centroids of the values.

    .. math:: y_i = \frac{m_i}{\sqrt c \, \sqrt{-\langle m_i, m_i \rangle}}, \quad
        m_i = \sum_j w_{ij} v_j, \quad w_{ij} \propto \exp \Bigl( -\frac{c}{\sqrt d}
        \bigl( -\tfrac 2 c - 2 \langle q_i, k_j \rangle \bigr) \Bigr)

    in every head of :math:`d` dimensions. A ``Linear`` each gives queries, keys and values,
    whose space coordinates are split among the heads. The space coordinates of the centroids are
    concatenated and mapped by a fourth ``Linear``. The bracket is the squared Lorentzian
    distance. Products of points are computed in float32 even under autocast, by torch's kernels of
    attention unless weights are dropped; under ``vmap`` and for second and forward derivatives by
    plain products.

    With the stream ``tangents`` the linear maps are those of ``torch.nn``, of tangents at the
    origin. Queries, keys and values are exponential maps of the tangents of each head over
    :math:`\sqrt d`, and the logarithms of the centroids, times :math:`\sqrt d`, are concatenated.
    The scale of the squared distances is :math:`\sqrt d / 2` in place of :math:`c / \sqrt d`: in
    flat space, scores then are :math:`-|q_i - k_j|^2 / (2 \sqrt d)`, whose products are those of
    Vaswani et al. The weights of all four maps start with the variance of ``nn.Linear``.

    The Minkowski length of :math:`m_i` is a difference of squares. For values beyond about 5 radii
    in float32 (14 in float64) the direction of the centroid is accurate but its distance from the
    origin has few correct digits; beyond 10 radii (80) derivatives may overflow.

    Args:
        manifold: ``Lorentz(c)``; ``c`` may be a ``Curvature``.
        embed_dim: Dimensions of the input and output space, without time.
        num_heads: Number of heads, a divisor of ``embed_dim``.
        dropout: Probability that an attention weight is dropped in training, in [0, 1).
        rotary_base: Base of the rotary positions of queries and keys, above 1; ``None`` for no
            positions. The dimensions of a head must then be even.
        stream: Linear maps of ``points`` or of ``tangents``.
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
        Chen et al. (2022), arXiv:2105.14686, Eq. (7) and (8); Law et al. (2019), PMLR 97; Su et
        al. (2021), arXiv:2104.09864, for rotary positions; Vaswani et al. (2017),
        arXiv:1706.03762; Gulcehre et al. (2019),
        arXiv:1805.09786, for exponential maps of queries and keys.

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
        rotary_base: float | None = None,
        stream: Stream = "points",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, embed_dim=embed_dim, num_heads=num_heads)
        check.one_of(("points", "tangents"), stream=stream)
        if embed_dim % num_heads:
            raise ValueError(f"num_heads must divide embed_dim {embed_dim}, got {num_heads}")
        self.embed_dim, self.num_heads, self.stream = embed_dim, num_heads, stream
        self.head_dim, self.rotary_base = embed_dim // num_heads, rotary_base
        if rotary_base is not None and (not rotary_base > 1 or self.head_dim % 2):
            raise ValueError(
                f"rotary_base must be above 1 and heads of even dimensions, got {rotary_base} and "
                f"{self.head_dim} dimensions: None gives no positions"
            )
        self.dropout = Dropout(dropout, device=device)
        made = {"bias": bias, "device": device, "dtype": dtype}
        self.query, self.key, self.value, self.out = (
            Linear(manifold, embed_dim, embed_dim, std=flat_std(embed_dim), **made)
            if stream == "points"
            else nn.Linear(embed_dim, embed_dim, **made)
            for _ in range(4)
        )

    @property
    @override
    def recorded(self) -> tuple[float, ...]:
        tangents = self.stream == "tangents"  # their scores had another factor in old state dicts
        return (*super().recorded, *((-(self.head_dim**0.5) / 2,) if tangents else ()))

    @override
    def refusal(self, other: tuple[float, ...]) -> str:
        if self.stream == "points" or min(other, default=0.0) < 0:
            return super().refusal(tuple(number for number in other if number > 0))
        return (
            "the state dict is of attention of tangents that does not say the factor of squared "
            "distances in its scores, which was c / sqrt(d) and is sqrt(d) / 2 now, for heads of d "
            "dimensions: train it again, or, if it was trained with the factor of now, delete its "
            "_extra_state"
        )

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
            context: Points that give the keys and values; by default ``x``. The centroid of none is
                the origin.
            mask: True where a query may attend to a key; by default everywhere.

        Raises:
            ValueError: If a tensor has the wrong shape or dtype.
        """
        self.check_sets(x)
        if context is not None:
            self.check_sets(context, name="context", like=x)
        check_mask(mask, x, (x if context is None else context).shape[-2])
        space, points = self.manifold, self.stream == "points"
        v = x if points else points_to_tangents(space, x)
        if context is None:
            query, *given = self.heads(v)
        else:
            (query,) = self.heads(v, ("query",))
            w = context if points else points_to_tangents(space, context)
            given = self.heads(w, ("key", "value"))
        place = hyperboloid_point if points else tangents_to_points
        y = place(space, self.attend(query, given, mask=mask))
        return self.rounded(y, x, self.query.weight)

    def check_sets(self, x: Tensor, *, name: str = "x", like: Tensor | None = None) -> None:
        """Check the shape and dtype of sets of points.

        Args:
            x: Sets of points.
            name: Name of ``x`` in messages.
            like: Other sets, one for each of ``x``.

        Raises:
            ValueError: If ``x`` has the wrong shape or dtype.
        """
        self.check(x, self.embed_dim, self.query.weight, name=name)
        if x.ndim < 2:
            raise ValueError(
                f"{name} must be sets of points (..., n, {self.embed_dim + 1}), got shape "
                f"{tuple(x.shape)}: unsqueeze(-2) makes a point a set"
            )
        if like is not None and x.shape[:-2] != like.shape[:-2]:
            raise ValueError(
                f"{name} must have the axes {tuple(like.shape[:-2])} of x before its last two, got "
                f"shape {tuple(x.shape)}: use expand"
            )

    def heads(
        self,
        x: Float[Tensor, "*batch n _"],
        maps: Sequence[str] = ("query", "key", "value"),
        *,
        start: int = 0,
    ) -> Heads:
        """Points of all heads for each of some maps, in float32 or float64.

        Args:
            x: Points, or tangents if the stream is ``tangents``.
            maps: Names of the maps, in this order.
            start: Position of the first of ``x``.
        """
        chosen: list[Any] = [getattr(self, name) for name in maps]
        points = isinstance(self.out, Linear)
        each = [
            of.space_coordinates(x) if points else wide(of(x.to(of.weight.dtype))) for of in chosen
        ]
        s = torch.cat(each, -1) if len(each) > 1 else each[0]
        s = s.unflatten(-1, (len(chosen), self.num_heads, self.head_dim))
        if self.rotary_base is not None:
            number = len(chosen) - (maps[-1] == "value")  # values are not turned
            turned, *rest = s.split((number, len(chosen) - number), -3)
            turned = rotated(turned, self.rotary_base, start=start, axis=-4)
            s = torch.cat((turned, *rest), -3)
        if not points:
            scale = self.head_dim**-0.5
            s = s * (scale * exp_factors(self.c, scale * length_of(s))[0])
        return hyperboloid_point(self.manifold, s).movedim(-4, -2).unbind(-4)

    def attend(
        self,
        query: Float[Tensor, "*batch heads n ambient"],
        keys_and_values: Sequence[Tensor],
        *,
        mask: Bool[Tensor, "*#batch n m"] | None = None,
    ) -> Float[Tensor, "*batch n dim"]:
        """Outputs of the attention: space coordinates of points, or tangents at the origin.

        They are in float32 or float64. Nothing is checked.

        Args:
            query: Queries of all heads.
            keys_and_values: Keys and values of all heads.
            mask: True where a query may attend to a key.
        """
        space, root = self.manifold, self.head_dim**0.5
        drops = self.training and self.dropout.p > 0
        s = attended(
            space,
            query,
            *keys_and_values,
            scale=space.c / root if isinstance(self.out, Linear) else root / 2,
            mask=mask if mask is None or mask.ndim == 2 else mask.unsqueeze(-3),
            dropout=self.dropout if drops else None,
        )
        if isinstance(self.out, Linear):
            whole = hyperboloid_point(space, s.transpose(-2, -3).flatten(-2))
            return self.out.space_coordinates(self.rounded(whole, self.out.weight))
        v = s * (root * log_factor(space.c, length_of(s)))
        return wide(self.out(v.transpose(-2, -3).flatten(-2).to(self.out.weight.dtype)))

    @override
    def extra_repr(self) -> str:
        sizes = {"embed_dim": self.embed_dim, "num_heads": self.num_heads}
        rotary = {} if self.rotary_base is None else {"rotary_base": self.rotary_base}
        return self.describe(**sizes, **rotary, stream=self.stream)


def flat_std(in_features: int) -> float:
    """Standard deviation of the initial weights of ``nn.Linear``."""
    return (3 * in_features) ** -0.5


def check_mask(mask: Tensor | None, x: Tensor, num_keys: int, *, name: str = "mask") -> None:
    """Check the mask between the queries ``x`` and their keys.

    Args:
        mask: The mask, or ``None`` for none.
        x: Sets of points or tangents.
        num_keys: Number of keys in each set.
        name: Name of the mask in messages.

    Raises:
        ValueError: If the mask is not boolean or does not broadcast to all pairs.
    """
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(f"{name} must be of torch.bool, got {mask.dtype}: use {name}.bool()")
    pairs, shape = (*x.shape[:-1], num_keys), tuple(mask.shape)
    sizes = zip(reversed(shape), reversed(pairs), strict=False)
    if not 2 <= mask.ndim <= len(pairs) or any(size not in (1, of) for size, of in sizes):
        raise ValueError(
            f"{name} must have the shape (..., {pairs[-2]}, {num_keys}), or 1 for either, after "
            f"axes that broadcast to {pairs[:-2]}, got shape {shape}: rows are queries, columns "
            "are keys"
        )
