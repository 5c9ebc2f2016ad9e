"""Points of the patches of images, and absolute positions."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.manifolds import Lorentz
from fedbolic.nn.functional.coordinates import hyperboloid_point
from fedbolic.nn.functional.lorentz_sum import lorentz_sum
from fedbolic.nn.functional.space import HyperbolicModule, wide
from fedbolic.nn.layers.embedding import HyperbolicEmbedding
from fedbolic.nn.layers.linear import Linear
from fedbolic.nn.transformer.attention import flat_std


class LorentzPositions(HyperbolicModule[Lorentz]):
    r"""Absolute positions: a learnt point for each place of a set, added to what lies there.

    .. math:: y_i = x_i \oplus p_i

    with the sum of ``LorentzEncoderBlock`` with weight 1. The points are learnt as tangents at the
    origin, and start as those of tokens in ``LorentzTransformer``: near the origin, places would
    hardly differ.

    Args:
        manifold: ``Lorentz(c)``; ``c`` may be a ``Curvature``.
        num_positions: Number of places, at least 1.
        embed_dim: Dimensions of the space, without time.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Sets of points ``(*, n, embed_dim + 1)`` with ``n`` up to ``num_positions`` to points of the
        same shape.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the inputs have
            the wrong width or dtype or are too many.

    References:
        He et al. (2025), arXiv:2504.08912, whose ViT adds points by the residual connection of
        arXiv:2412.14695; Gehring et al. (2017), arXiv:1705.03122, for learnt positions.

    Example:
        >>> LorentzPositions(Lorentz(c=1.0), 7, 4)(Lorentz().origin(3, 7, 5)).shape
        torch.Size([3, 7, 5])
    """

    models = (Lorentz,)

    def __init__(
        self,
        manifold: Lorentz,
        num_positions: int,
        embed_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, num_positions=num_positions, embed_dim=embed_dim)
        self.num_positions, self.embed_dim = num_positions, embed_dim
        self.points = HyperbolicEmbedding(
            manifold, num_positions, embed_dim, std=token_std(embed_dim), device=device, dtype=dtype
        )

    @override
    def forward(
        self, x: Float[Tensor, "*batch n ambient"], *, start: int = 0
    ) -> Float[Tensor, "*batch n ambient"]:
        """Points at their positions.

        Args:
            x: Points.
            start: Position of the first of them.

        Raises:
            ValueError: If there are more points than positions from ``start`` on.
        """
        self.check(x, self.embed_dim, self.points.weight)
        n = x.shape[-2] if x.ndim > 1 else self.num_positions + 1
        if start + n > self.num_positions:
            raise ValueError(
                f"x must be sets of points (..., n, {self.embed_dim + 1}) with n up to "
                f"{self.num_positions - start}, got shape {tuple(x.shape)}: num_positions bounds "
                "the length, rotary positions have no bound"
            )
        p = wide(self.points(torch.arange(start, start + n, device=x.device)))
        s, space = wide(x[..., 1:]), self.manifold
        s = lorentz_sum(s, p[..., 1:], s.new_ones(()), space.c)
        return self.rounded(hyperboloid_point(space, s), x, self.points.weight)

    @override
    def extra_repr(self) -> str:
        return self.describe(num_positions=self.num_positions, embed_dim=self.embed_dim)


def token_std(embed_dim: int) -> float:
    """Standard deviation of tangents whose points lie where an RMS norm puts them, c = 1."""
    return math.asinh(embed_dim**0.5) / embed_dim**0.5


class PatchEmbedding(HyperbolicModule[Lorentz]):
    r"""Points of the patches of an image: the pixels of a patch concatenated and mapped linearly.

    The pixels are points whose space coordinates are the channels. Their Lorentz direct
    concatenation is the point whose space coordinates are all numbers of the patch, and a
    ``Linear`` follows: the layer is the convolution of Bdeir et al. with the size of a patch as
    kernel and stride. Its weights start with the variance of ``nn.Linear``.

    Args:
        manifold: ``Lorentz(c)``; ``c`` may be a ``Curvature``.
        num_channels: Channels of the images.
        patch_size: Height and width of a patch, which divide those of the images.
        embed_dim: Dimensions of the space of the points, without time.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Shapes:
        Images in torch's layout ``(*, num_channels, height, width)`` to points ``(*, patches,
        embed_dim + 1)``, row by row.

    Raises:
        ValueError: If a number is below 1 or the space is refused; when called, if the images have
            the wrong shape or dtype.

    References:
        Dosovitskiy et al. (2021), arXiv:2010.11929, Eq. (1); Bdeir et al. (2024),
        arXiv:2303.15919, for the convolution; He et al. (2025), arXiv:2504.08912.

    Example:
        >>> layer = PatchEmbedding(Lorentz(c=1.0), 3, 4, 8)
        >>> layer(torch.zeros(2, 3, 8, 12)).shape
        torch.Size([2, 6, 9])
    """

    models = (Lorentz,)

    def __init__(
        self,
        manifold: Lorentz,
        num_channels: int,
        patch_size: int,
        embed_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        check.at_least(1, num_channels=num_channels, patch_size=patch_size)
        self.num_channels, self.patch_size = num_channels, patch_size
        inputs = num_channels * patch_size**2
        self.linear = Linear(
            manifold, inputs, embed_dim, std=flat_std(inputs), device=device, dtype=dtype
        )

    @override
    def forward(
        self, x: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch patches ambient"]:
        size, shape = self.patch_size, tuple(x.shape)
        if not x.is_floating_point():
            raise ValueError(f"x must be floating, got {x.dtype}: use x.float()")
        sides = shape[-2:] if len(shape) > 2 and shape[-3] == self.num_channels else (1, 1)
        if size > min(sides) or any(side % size for side in sides):
            raise ValueError(
                f"x must be images (..., {self.num_channels}, height, width) whose sides are "
                f"multiples of {size}, got shape {shape}: resize or pad them"
            )
        cut = x.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))  # rows at -4, columns at -2
        patches = cut.movedim((-4, -2), (-5, -4)).flatten(-3).flatten(-3, -2)
        points = hyperboloid_point(self.manifold, wide(patches))
        return self.linear(self.rounded(points, x))

    @override
    def extra_repr(self) -> str:
        return self.describe(num_channels=self.num_channels, patch_size=self.patch_size)
