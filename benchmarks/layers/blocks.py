"""Blocks of transformers, as ``benchmarks.layers`` times them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from typing_extensions import override

from fedbolic.manifolds import Lorentz
from fedbolic.nn import LorentzEncoderBlock

SETS, POINTS, DIM, HEADS, HIDDEN = 8, 128, 128, 4, 512

Built = tuple[Callable[[Tensor], Tensor], list[Tensor], Tensor]


def vectors(device: str) -> Tensor:
    """Sets of normal vectors."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SETS, POINTS, DIM, generator=generator).to(device)


def torchs_layer() -> nn.Module:
    """The encoder layer of torch with norms before its branches, without dropout."""
    return nn.TransformerEncoderLayer(
        DIM, HEADS, HIDDEN, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


class HyperCoreBlock(nn.Module):
    """The operators of HyperCore's ``LorentzTransformerBlock`` (arXiv:2504.08912), c = 1.

    HyperCore is not on PyPI, so they were written down from its source: layer norms of space
    coordinates, attention by products and a centroid, residual connections by centroids that are
    scaled, and a time coordinate after each of them. A head has 32 coordinates, one of them time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM - 1) for _ in range(2))
        space = HEADS * (DIM // HEADS - 1)
        self.query, self.key, self.value = (nn.Linear(DIM, space) for _ in range(3))
        self.out, self.up = nn.Linear(DIM, DIM - 1), nn.Linear(DIM, HIDDEN)
        self.down = nn.Linear(HIDDEN + 1, DIM - 1)
        self.scale, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(()))
        self.weights = nn.Parameter(torch.ones(2))

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = with_time(self.norms[0](x[..., 1:]))
        x = self.added(x, 0, with_time(self.out(self.attended(x))))
        y = with_time(gelu(with_time(self.up(with_time(self.norms[1](x[..., 1:]))))[..., 1:]))
        return self.added(x, 1, with_time(self.down(y)))

    def attended(self, x: Tensor) -> Tensor:
        """Centroids of the values of all heads, concatenated with their times."""
        query, key, value = (
            with_time(of(x).unflatten(-1, (HEADS, -1))).transpose(1, 2)
            for of in (self.query, self.key, self.value)
        )
        turned = torch.cat((-query[..., :1], query[..., 1:]), -1)
        scores = (2 + 2 * turned @ key.mT) / self.scale + self.bias
        return normalised(scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)

    def added(self, x: Tensor, branch: int, y: Tensor) -> Tensor:
        """Residual connection with HyperCore's scale."""
        return with_time(27.5 * normalised(x + self.weights[branch] * y)[..., 1:])


def with_time(s: Tensor) -> Tensor:
    """Points with the space coordinates ``s``."""
    return torch.cat((((s**2).sum(-1, keepdim=True) + 1).clamp(min=1e-6).sqrt(), s), -1)


def normalised(m: Tensor) -> Tensor:
    """A vector scaled to the hyperboloid."""
    square = m[..., :1] ** 2 - (m[..., 1:] ** 2).sum(-1, keepdim=True)
    return m / square.abs().clamp(min=1e-6).sqrt()


def built(layer: Callable[[], nn.Module], dim: int | None, device: str) -> Built:
    """A block, its parameters, and points of so many dimensions, or vectors for none."""
    made, x = layer().to(device), vectors(device)
    return made, list(made.parameters()), x if dim is None else with_time(x[..., :dim])


def ours(**options: object) -> Callable[[str], Built]:
    """Builder of a block of this library."""
    block = partial(LorentzEncoderBlock, Lorentz(), DIM, HEADS, hidden_dim=HIDDEN, **options)
    return partial(built, block, DIM)


ROWS: tuple[tuple[str, str, Callable[[str], Built], str], ...] = (
    ("TransformerEncoderLayer", "torch", partial(built, torchs_layer, None), ""),
    ("LorentzEncoderBlock", "fedbolic", ours(), "2105.14686"),
    ("LorentzEncoderBlock, rotary", "fedbolic", ours(rotary_base=1e4), "2104.09864"),
    ("LorentzEncoderBlock of tangents", "fedbolic", ours(stream="tangents"), "1805.09786"),
    ("operators of HyperCore's", "torch", partial(built, HyperCoreBlock, DIM - 1), "2504.08912"),
)
"""Names, libraries, builders and papers; the first is the reference."""
