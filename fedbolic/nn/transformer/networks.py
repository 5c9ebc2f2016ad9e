"""Whole transformers: of tokens, and of images."""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz
from fedbolic.nn.functional.space import HyperbolicModule
from fedbolic.nn.layers.embedding import HyperbolicEmbedding
from fedbolic.nn.layers.normalize import HyperbolicRMSNorm
from fedbolic.nn.layers.pool import CentroidPool
from fedbolic.nn.transformer.attention import Heads, Stream, check_mask
from fedbolic.nn.transformer.block import (
    LorentzDecoderBlock,
    LorentzEncoderBlock,
    TransformerBlock,
)
from fedbolic.nn.transformer.embedding import LorentzPositions, PatchEmbedding, token_std


class LorentzTransformer(HyperbolicModule[Lorentz]):
    r"""Transformer from tokens to points of the hyperboloid: a table, blocks, and a norm.

    An encoder by default; a language model with ``causal`` and a head, whose ``decode`` continues a
    text by keys and values of the past; and with ``cross`` the decoder of another transformer's
    points. As a head, ``nn.Linear`` of the coordinates gives Lorentz products with learnt vectors;
    ``MLR``, whose logits grow with distances only, learns a text more slowly.

    Points of tokens start about as far out as the norm puts points if :math:`c = 1`, at
    :math:`\operatorname{asinh} \sqrt n` in :math:`n` dimensions.

    Args:
        manifold: ``Lorentz(c)``; ``c`` may be a ``Curvature``, which all layers share.
        num_tokens: Number of tokens, at least 1.
        embed_dim: Dimensions of the space, without time.
        num_heads: Number of heads, a divisor of ``embed_dim``.
        depth: Number of blocks, at least 1.
        causal: Whether a token attends to itself and to earlier ones alone.
        cross: Whether blocks attend to a memory as well: ``LorentzDecoderBlock`` in place of
            ``LorentzEncoderBlock``.
        rotary_base: Base of rotary positions; ``None`` for none.
        num_positions: Number of absolute positions, learnt, which bounds the length; ``None`` for
            none.
        hidden_dim: Hidden dimensions of the blocks; by default four times ``embed_dim``.
        dropout: Probability of dropout in the blocks, in [0, 1).
        stream: ``points`` for a fully hyperbolic network, ``tangents`` for a hybrid.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Tokens ``(*, n)`` with a ``mask`` ``(*, n, n)`` to points ``(*, n, embed_dim + 1)``; with
        ``cross``, a memory ``(*, m, embed_dim + 1)`` with a ``memory_mask`` ``(*, n, m)`` as well.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if tokens are
            not integers, or a memory lacks or is not wanted.

    References:
        Chen et al. (2022), arXiv:2105.14686; Yang et al. (2024), arXiv:2407.01290; He et al.
        (2025), arXiv:2504.08912. Sources of the layers stand in their classes.

    Example:
        >>> space = Lorentz(c=1.0)
        >>> body = LorentzTransformer(space, 100, 8, num_heads=2, depth=2, causal=True)
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> nn.Linear(9, 100)(body(tokens)).shape
        torch.Size([1, 5, 100])
        >>> _, past = body.decode(tokens[:, :4])
        >>> last, _ = body.decode(tokens[:, 4:], past)
        >>> torch.allclose(last, body(tokens)[:, 4:], atol=1e-5)
        True
    """

    models = (Lorentz,)

    def __init__(
        self,
        manifold: Lorentz,
        num_tokens: int,
        embed_dim: int,
        num_heads: int,
        depth: int,
        *,
        causal: bool = False,
        cross: bool = False,
        rotary_base: float | None = 10_000.0,
        num_positions: int | None = None,
        hidden_dim: int | None = None,
        dropout: float = 0.0,
        stream: Stream = "points",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, depth=depth)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.causal, self.cross = causal, cross
        self.embedding = HyperbolicEmbedding(
            manifold, num_tokens, embed_dim, std=token_std(embed_dim), **made
        )
        self.positions = (
            None
            if num_positions is None
            else LorentzPositions(manifold, num_positions, embed_dim, **made)
        )
        block = LorentzDecoderBlock if cross else LorentzEncoderBlock
        self.blocks = nn.ModuleList(
            block(
                manifold,
                embed_dim,
                num_heads,
                hidden_dim=hidden_dim,
                dropout=dropout,
                rotary_base=rotary_base,
                stream=stream,
                **made,
            )
            for _ in range(depth)
        )
        self.norm = HyperbolicRMSNorm(manifold, embed_dim, **made)

    @override
    def forward(
        self,
        tokens: Int[Tensor, "*batch n"],
        memory: Float[Tensor, "*batch m ambient"] | None = None,
        *,
        mask: Bool[Tensor, "*#batch n n"] | None = None,
        memory_mask: Bool[Tensor, "*#batch n m"] | None = None,
    ) -> Float[Tensor, "*batch n ambient"]:
        """A point per token.

        Args:
            tokens: Indices of tokens.
            memory: Points of another transformer, with ``cross``.
            mask: True where a token may attend to another, besides what ``causal`` forbids.
            memory_mask: True where a token may attend to a point of the memory.
        """
        return self._run(tokens, memory, (), mask, memory_mask)[0]

    def decode(
        self,
        tokens: Int[Tensor, "*batch n"],
        past: tuple[Heads, ...] = (),
        *,
        memory: Float[Tensor, "*batch m ambient"] | None = None,
    ) -> tuple[Float[Tensor, "*batch n ambient"], tuple[Heads, ...]]:
        """Points of tokens that follow others, and the keys and values of all of them.

        Args:
            tokens: Tokens that follow those of ``past``.
            past: Second result of the last call; at first empty.
            memory: Points of another transformer, with ``cross``; its keys and values are computed
                in the first call alone.

        Raises:
            ValueError: If the network is not causal, or ``past`` is of other sets or of another
                network.
        """
        if not self.causal:
            raise ValueError("decode needs a causal network: build it with causal=True")
        sets, kinds = tokens.shape[:-1], [4 if self.cross else 2] * len(self.blocks)
        fits = all(x.shape[:-3] == sets for heads in past for x in heads)
        if past and not (fits and [*map(len, past)] == kinds):
            raise ValueError(
                f"past must be what decode gave for sets {tuple(sets)} of tokens, got {len(past)} "
                f"blocks of keys {tuple(past[0][0].shape)}: index its tensors to choose sets"
            )
        return self._run(tokens, memory, past, None, None)

    def _run(
        self,
        tokens: Tensor,
        memory: Tensor | None,
        past: tuple[Heads, ...],
        mask: Tensor | None,
        memory_mask: Tensor | None,
    ) -> tuple[Tensor, tuple[Heads, ...]]:
        if (memory is None) == self.cross:
            raise ValueError(
                "memory goes with cross=True, got "
                f"{'none' if memory is None else 'one'} with cross={self.cross}"
            )
        if not tokens.ndim:
            raise ValueError(
                "tokens must be sets (..., n), got a single one: use tokens.unsqueeze(0)"
            )
        start = past[0][0].shape[-2] if past else 0
        x = self.embedding(tokens)
        x = x if self.positions is None else self.positions(x, start=start)
        n = x.shape[-2]
        check_mask(mask, x, start + n)
        if self.causal and n > 1:
            earlier = torch.ones(n, start + n, dtype=torch.bool, device=x.device).tril(start)
            mask = earlier if mask is None else mask & earlier
        kept = []
        for block, heads in zip(self.blocks, past or [()] * len(self.blocks), strict=True):
            run = cast(TransformerBlock, block).run
            x, heads = run(x, memory, past=heads, mask=mask, memory_mask=memory_mask)
            kept.append(heads)
        return self.norm(x), tuple(kept)


class LorentzViT(HyperbolicModule[Lorentz]):
    """Vision transformer on the hyperboloid: patches, positions, blocks, a centroid and logits.

    The last norm is that of the centroid: one of every point would put all of them equally far out,
    where ``power`` is without effect and centroids lie near the origin. The head is a linear map of
    all coordinates, as after ``LorentzTransformer``.

    Args:
        manifold: ``Lorentz(c)``; ``c`` may be a ``Curvature``, which all layers share.
        image_size: Height and width of the images.
        patch_size: Height and width of a patch, a divisor of ``image_size``.
        embed_dim: Dimensions of the space, without time.
        num_heads: Number of heads, a divisor of ``embed_dim``.
        depth: Number of blocks, at least 1.
        num_classes: Number of logits, at least 1.
        num_channels: Channels of the images.
        hidden_dim: Hidden dimensions of the blocks; by default four times ``embed_dim``.
        dropout: Probability of dropout in the blocks, in [0, 1).
        power: Power of the time coordinates in the centroid of all points, as of ``CentroidPool``.
        stream: ``points`` for a fully hyperbolic network, ``tangents`` for a hybrid.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Images in torch's layout ``(*, num_channels, image_size, image_size)`` to logits ``(*,
        num_classes)``.

    Raises:
        ValueError: If a number is out of range or the space is refused; when called, if the images
            have the wrong shape or dtype.

    References:
        Dosovitskiy et al. (2021), arXiv:2010.11929; He et al. (2025), arXiv:2504.08912, whose LViT
        has a centroid in place of a class token, too.

    Example:
        >>> network = LorentzViT(Lorentz(c=1.0), 8, 4, 16, num_heads=2, depth=2, num_classes=10)
        >>> network(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 10])
    """

    models = (Lorentz,)

    def __init__(
        self,
        manifold: Lorentz,
        image_size: int,
        patch_size: int,
        embed_dim: int,
        num_heads: int,
        depth: int,
        num_classes: int,
        *,
        num_channels: int = 3,
        hidden_dim: int | None = None,
        dropout: float = 0.0,
        power: float = 0.0,
        stream: Stream = "points",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        sizes = {"image_size": image_size, "patch_size": patch_size, "num_classes": num_classes}
        check.at_least(1, **sizes, depth=depth)
        if image_size % patch_size:
            raise ValueError(f"patch_size must divide image_size {image_size}, got {patch_size}")
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.image_size = image_size
        self.patches = PatchEmbedding(manifold, num_channels, patch_size, embed_dim, **made)
        self.positions = LorentzPositions(
            manifold, (image_size // patch_size) ** 2, embed_dim, **made
        )
        options = {"hidden_dim": hidden_dim, "dropout": dropout, "stream": stream, **made}
        self.blocks = nn.Sequential(
            *(LorentzEncoderBlock(manifold, embed_dim, num_heads, **options) for _ in range(depth))
        )
        self.norm = HyperbolicRMSNorm(manifold, embed_dim, **made)
        self.pool = CentroidPool(manifold, power=power)
        self.head = nn.Linear(embed_dim + 1, num_classes, **made)

    @override
    def forward(
        self, x: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch classes"]:
        if tuple(x.shape[-2:]) != (self.image_size,) * 2:
            raise ValueError(
                f"x must be images (..., {self.patches.num_channels}, {self.image_size}, "
                f"{self.image_size}), got shape {tuple(x.shape)}: resize or crop them"
            )
        return self.head(self.norm(self.pool(self.blocks(self.positions(self.patches(x))))))

    @override
    def extra_repr(self) -> str:
        return self.describe(image_size=self.image_size)
