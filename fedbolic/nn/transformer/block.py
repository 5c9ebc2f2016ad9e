"""Blocks of a transformer on the hyperboloid: attention and a feed-forward network."""

from abc import ABC
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz
from fedbolic.nn.functional.coordinates import hyperboloid_point
from fedbolic.nn.functional.lorentz_sum import lorentz_sum
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.functional.tangent import points_to_tangents, tangents_to_points
from fedbolic.nn.layers.dropout import Dropout
from fedbolic.nn.layers.linear import Linear
from fedbolic.nn.layers.normalize import HyperbolicRMSNorm, rms_norm
from fedbolic.nn.transformer.attention import Heads, LorentzAttention, Stream, check_mask, flat_std


class TransformerBlock(HyperbolicModule[Lorentz], ABC):
    """Base of blocks: branches, each after a norm and added to the stream.

    Arguments and errors are those of ``LorentzEncoderBlock``.
    """

    models = (Lorentz,)
    crosses: ClassVar[bool]
    """True if there is a branch of attention to another set."""

    def __init__(
        self,
        manifold: Lorentz,
        embed_dim: int,
        num_heads: int,
        *,
        hidden_dim: int | None = None,
        dropout: float = 0.0,
        rotary_base: float | None = None,
        stream: Stream = "points",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        hidden_dim = 4 * embed_dim if hidden_dim is None else hidden_dim
        check.at_least(1, hidden_dim=hidden_dim)
        self.embed_dim, self.hidden_dim, self.stream = embed_dim, hidden_dim, stream
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        shared = {"dropout": dropout, "stream": stream, **made}
        self.attention = LorentzAttention(
            manifold, embed_dim, num_heads, rotary_base=rotary_base, **shared
        )
        if self.crosses:
            self.cross_attention = LorentzAttention(manifold, embed_dim, num_heads, **shared)
        hidden = nn.GELU(), Dropout(dropout, device=device)
        if stream == "points":
            act = nn.Sequential(*hidden)
            self.up: nn.Module = Linear(
                manifold, embed_dim, hidden_dim, activation=act, std=flat_std(embed_dim), **made
            )
            self.down: Linear | nn.Linear = Linear(
                manifold, hidden_dim, embed_dim, std=flat_std(hidden_dim), **made
            )
        else:
            self.up = nn.Sequential(nn.Linear(embed_dim, hidden_dim, **made), *hidden)
            self.down = nn.Linear(hidden_dim, embed_dim, **made)
        branches = 3 if self.crosses else 2
        self.norms = nn.ModuleList(
            _norm(manifold, embed_dim, stream, **made) for _ in range(branches)
        )
        self.log_weights = nn.Parameter(torch.zeros(branches, **made))

    def reset_parameters(self) -> None:
        """Weight all branches alike again."""
        nn.init.zeros_(self.log_weights)

    def run(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        past: Heads = (),
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, Heads]:
        """Points after all branches, and the keys and values of attention.

        Args:
            x: Points that follow those of ``past``.
            memory: Points of the other set; not read if ``past`` is given.
            past: Keys and values that the last call returned, at first empty.
            mask: True where a point of ``x`` may attend to a past or a new one.
            memory_mask: True where a point of ``x`` may attend to one of ``memory``.
        """
        space, start = self.manifold, past[0].shape[-2] if past else 0
        points = self.stream == "points"
        self.attention.check_sets(x)
        check_mask(mask, x, start + x.shape[-2])
        v = wide(x[..., 1:]) if points else points_to_tangents(space, x)
        h = self._normed(v, 0)
        query, *kept = self.attention.heads(h, start=start)
        if past:
            kept = [torch.cat(both, -2) for both in zip(past[:2], kept, strict=True)]
        v = self._added(v, 0, self.attention.attend(query, kept, mask=mask))
        if memory is not None:
            across, cross = past[2:], self.cross_attention
            if not past:
                self.attention.check_sets(memory, name="memory", like=x)
                given = memory if points else points_to_tangents(space, memory)
                across = cross.heads(given, ("key", "value"))
            check_mask(memory_mask, x, across[0].shape[-2], name="memory_mask")
            (query,) = cross.heads(self._normed(v, 1), ("query",))
            v = self._added(v, 1, cross.attend(query, across, mask=memory_mask))
            kept += across
        v = self._added(v, len(self.norms) - 1, self._fed_forward(v))
        place = hyperboloid_point if points else tangents_to_points
        return self.rounded(place(space, v), x, self.log_weights), tuple(kept)

    def _normed(self, v: Tensor, branch: int) -> Tensor:
        """Points or tangents in the dtype of the parameters, the inputs of a branch."""
        norm: Any = self.norms[branch]
        v = rms_norm(v, norm.weight, norm.eps)
        if self.stream == "tangents":
            return v.to(self.log_weights.dtype)
        return self.rounded(hyperboloid_point(self.manifold, v), self.log_weights)

    def _fed_forward(self, v: Tensor) -> Tensor:
        x, down = self.up(self._normed(v, len(self.norms) - 1)), self.down
        return down.space_coordinates(x) if isinstance(down, Linear) else wide(down(x))

    def _added(self, v: Tensor, branch: int, y: Tensor) -> Tensor:
        """The stream with the output of a branch added to it."""
        weight = wide(self.log_weights[branch]).exp()
        if self.stream == "tangents":
            return v + weight * y
        return lorentz_sum(v, y, weight, self.c)

    @override
    def extra_repr(self) -> str:
        return self.describe(
            embed_dim=self.embed_dim, hidden_dim=self.hidden_dim, stream=self.stream
        )


class LorentzEncoderBlock(TransformerBlock):
    r"""Block of a transformer: attention and a feed-forward network, each added to the points.

    .. math:: x \leftarrow x \oplus \operatorname{attention}(\operatorname{norm}(x)), \quad
        x \leftarrow x \oplus \operatorname{down}(\operatorname{up}(\operatorname{norm}(x))), \quad
        (x \oplus y)_s = \frac{(1 + w) (x_s + w y_s)}{\sqrt c \, |x + w y|_{\mathcal L}}

    with a learnt :math:`w > 0` for each branch, which starts as 1. The sum is the centroid with
    weights 1 and :math:`w`, its space coordinates scaled by :math:`1 + w`: the residual connection
    of He et al. with that scale, and :math:`x + w y` in flat space. The norm is
    ``HyperbolicRMSNorm``, *up* a ``Linear`` with GELU on the space coordinates, *down* a
    ``Linear``; their weights start with the variance of ``nn.Linear``.

    With the stream ``tangents`` the block is a hybrid: norms, sums and linear maps are those of
    flat space on tangents at the origin, and attention alone is hyperbolic.

    Args:
        manifold: ``Lorentz(c)``; ``c`` may be a ``Curvature``.
        embed_dim: Dimensions of the space, without time.
        num_heads: Number of heads, a divisor of ``embed_dim``.
        hidden_dim: Dimensions between *up* and *down*; by default four times ``embed_dim``.
        dropout: Probability that an attention weight or a space coordinate between *up* and *down*
            is dropped in training, in [0, 1).
        rotary_base: Base of rotary positions, as of ``LorentzAttention``; ``None`` for none.
        stream: ``points`` for a fully hyperbolic block, ``tangents`` for a hybrid.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Sets of points ``(*, n, embed_dim + 1)`` with a ``mask`` ``(*, n, n)`` to points of the same
        shape.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if the inputs
            have the wrong width or dtype.

    References:
        Yang et al. (2024), arXiv:2407.01290, and He et al. (2025), arXiv:2504.08912, for the
        block; He et al. (2024), arXiv:2412.14695, Eq. (8), for the sum; Xiong et al. (2020),
        arXiv:2002.04745, for norms before branches.

    Example:
        >>> block = LorentzEncoderBlock(Lorentz(c=1.0), 4, num_heads=2)
        >>> block(Lorentz().origin(3, 7, 5)).shape
        torch.Size([3, 7, 5])
    """

    crosses = False

    @override
    def forward(
        self,
        x: Float[Tensor, "*batch n ambient"],
        *,
        mask: Bool[Tensor, "*#batch n n"] | None = None,
    ) -> Float[Tensor, "*batch n ambient"]:
        """Points after attention to one another.

        Args:
            x: Points.
            mask: True where a point may attend to another.
        """
        return self.run(x, mask=mask)[0]


class LorentzDecoderBlock(TransformerBlock):
    """Block of a transformer with attention to another set of points, the memory.

    A branch of attention to the memory stands between the two branches of a
    ``LorentzEncoderBlock``, whose arguments, formulas and sources it shares. Attention among the
    points themselves is masked by the caller; a decoder that gives one token after another masks
    what follows a token.

    Args:
        manifold: ``Lorentz(c)``; ``c`` may be a ``Curvature``.
        embed_dim: Dimensions of the space of both sets, without time.
        num_heads: Number of heads, a divisor of ``embed_dim``.
        hidden_dim: Dimensions between *up* and *down*; by default four times ``embed_dim``.
        dropout: Probability that a weight or a hidden coordinate is dropped, in [0, 1).
        rotary_base: Base of rotary positions among the points; ``None`` for none.
        stream: ``points`` for a fully hyperbolic block, ``tangents`` for a hybrid.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Sets of points ``(*, n, embed_dim + 1)`` and memories ``(*, m, embed_dim + 1)`` with a
        ``mask`` ``(*, n, n)`` and a ``memory_mask`` ``(*, n, m)`` to points of the first shape.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if the inputs
            have the wrong width or dtype.

    References:
        Vaswani et al. (2017), arXiv:1706.03762, for the order of the branches.

    Example:
        >>> block = LorentzDecoderBlock(Lorentz(c=1.0), 4, num_heads=2)
        >>> block(Lorentz().origin(3, 7, 5), Lorentz().origin(3, 2, 5)).shape
        torch.Size([3, 7, 5])
    """

    crosses = True

    @override
    def forward(
        self,
        x: Float[Tensor, "*batch n ambient"],
        memory: Float[Tensor, "*batch m ambient"],
        *,
        mask: Bool[Tensor, "*#batch n n"] | None = None,
        memory_mask: Bool[Tensor, "*#batch n m"] | None = None,
    ) -> Float[Tensor, "*batch n ambient"]:
        """Points after attention to one another and to the memory.

        Args:
            x: Points.
            memory: Points of the other set.
            mask: True where a point may attend to another.
            memory_mask: True where a point may attend to one of ``memory``.
        """
        return self.run(x, memory, mask=mask, memory_mask=memory_mask)[0]


def _norm(
    manifold: Lorentz,
    num_features: int,
    stream: Stream,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """RMS norm of points or of tangents."""
    made: dict[str, Any] = {"eps": 1e-5, "device": device, "dtype": dtype}
    if stream == "points":
        return HyperbolicRMSNorm(manifold, num_features, **made)
    return nn.RMSNorm(num_features, **made)
