"""Hyperbolic convolutions that gather from key nodes alone: a reconstruction of FedHGCN."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Meta
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.manifolds import Lorentz
from flatland.graphs.blocks import GraphBlock
from flatland.graphs.model import (
    Activation,
    ConvolutionalNetwork,
    LorentzNetwork,
    SpaceTimeLinear,
    centroids,
    lifted,
    time_of,
    widths_of,
)
from flatland.graphs.weak_cache import derived

ONE_SPACE: Sharing = {"curvature.*": "fixed", "*": "shared"}
"""Sharing table of FedHGCN: one space of curvature -1 for all clients, everything else shared."""


@dataclass(frozen=True)
class KeyNodeGCN(ConvolutionalNetwork):
    r"""``LorentzGCN`` in which only key nodes send messages, for FedHGCN.

    .. math:: \mathrm{score}_i = d(x_i, z_i), \qquad
        z_i = \text{centroid of } x_i \text{ and its neighbours}

    A node that lies at the centroid of its neighbours tells them nothing new. The
    ``ceil(share n)`` nodes of a client with the largest scores are key nodes: each node gathers
    from itself and from the key nodes among its neighbours. The other nodes receive, and are
    classified like all.

    FedHGCN is hyperbolic graph convolutions, federated averaging, and a selection of nodes against
    redundancy, for the classification of graphs. How nodes are selected where nodes are classified
    is not published, so this is a reconstruction. Decided here: the score above, at the points of
    the features and at curvature -1, once before training; the centroids of ``LorentzGCN`` in
    place of means in tangent spaces; and the sharing table :data:`ONE_SPACE` of ``FlatLand``,
    which is then federated averaging in one space.

    Args:
        share: Share of the nodes that send messages, in [0, 1]; 1 gives ``LorentzGCN``.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Du et al. (2024), Knowledge-Based Systems 289, doi:10.1016/j.knosys.2024.111438, for graph
        classification; Chami et al. (2019), arXiv:1910.12933, for the convolutions.

    Example:
        >>> KeyNodeGCN(share=0.8).widths
        (128, 128)
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check.rate(share=self.share)

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = widths_of(meta, self.widths)
        head = SpaceTimeLinear(sizes[-1], meta.num_classes)
        return KeyNodeNetwork(sizes, head, self.dropout, self.activation, share=self.share)


class KeyNodeNetwork(LorentzNetwork):
    """Graph convolutions in a Lorentz space that gather from key nodes alone.

    Args:
        head: Module from time and space coordinates of one point per node to logits.
        share: Share of the nodes of a client that send messages, in [0, 1].
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        head: nn.Module,
        dropout: float,
        activation: Activation,
        *,
        share: float,
    ) -> None:
        super().__init__(widths, head, dropout, activation)
        self.share = share

    @override
    def forward(self, block: GraphBlock) -> Float[Tensor, "clients n classes"]:
        """One logit per class for each node."""
        return super().forward(thinned(block, self.share))


def thinned(block: GraphBlock, share: float) -> GraphBlock:
    """The block in which each node gathers from itself and from key nodes; built once.

    Args:
        block: Graphs of some clients.
        share: Share of the nodes of a client that are key nodes, in [0, 1].
    """
    return derived(block, _thinned, share)


def _thinned(block: GraphBlock, share: float) -> GraphBlock:
    return _without(block, key_nodes(block, share))


@torch.no_grad()
def key_nodes(block: GraphBlock, share: float) -> Bool[Tensor, "clients n"]:
    """Nodes with the largest distance from the centroid of themselves and their neighbours.

    Nodes that lie equally far count in their order. The padding of a block is never selected.

    Args:
        block: Graphs of some clients.
        share: Share of the nodes of a client to select, in [0, 1]; rounded up to whole nodes.
    """
    scores = novelties(block).round(decimals=9)  # ties must not be broken by rounding errors
    real = block.num_neighbours > 0
    order = scores.masked_fill(~real, -1).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    wanted = [math.ceil(round(share * n, 9)) for n in real.sum(1).tolist()]
    return real & (rank < torch.tensor(wanted, device=rank.device).unsqueeze(1))


def novelties(block: GraphBlock) -> Float[Tensor, "clients n"]:
    r"""Distance of every node from the centroid of itself and its neighbours, in float64.

    .. math:: d(x, z) = 2 \operatorname{asinh} \tfrac12 | x - z |_L

    at curvature -1, for the points of the features; 0 for a redundant node.

    Args:
        block: Graphs of some clients.
    """
    space = Lorentz(torch.ones((), dtype=torch.float64, device=block.norms.device))
    factor, _ = lifted(space, block.norms.double())
    points = factor * dense_features(block).double()
    centre = centroids(space, points, block)
    times = time_of(space, points) - time_of(space, centre)
    gap = (points - centre).square().sum(-1) - times.squeeze(-1).square()
    return 2 * torch.asinh(gap.clamp(min=0).sqrt() / 2)


def dense_features(block: GraphBlock) -> Float[Tensor, "clients n width"]:
    """Features of the nodes of a block as dense rows."""
    if isinstance(block.features, Tensor):
        return block.features
    num_clients, _ = block.shape
    width = block.features.width // num_clients
    eye = torch.eye(width, dtype=block.norms.dtype, device=block.norms.device)
    return block.map_features(eye.expand(num_clients, -1, -1))


def _without(block: GraphBlock, keys: Tensor) -> GraphBlock:
    """The block with messages from ``keys`` and from each node to itself.

    Other messages have weight 0, so that the matrix has the size of the block's, whatever the keys:
    :meth:`~flatland.graphs.blocks.GraphBlock.load` can then renew it.
    """
    matrix = block.neighbours
    column = matrix.column.long()
    kept = (keys.flatten()[column] | (matrix.row == column)) & (matrix.value != 0)
    counts = torch.zeros(len(matrix.counts), dtype=torch.float64, device=keys.device)
    counts = counts.index_add(0, matrix.row, kept.double())
    shares = torch.where(kept, 1 / counts[matrix.row], 0)
    return replace(block, neighbours=replace(matrix, value=shares))
