"""Networks that predict links between the nodes of a client's graph."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad, softplus
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Meta
from fedbolic.data import Graph
from fedbolic.data.graphs.link_split import num_non_edges, ranked_pairs
from fedbolic.federated.contract.jagged import JaggedBlock
from fedbolic.formulas.analytic import asinhc
from fedbolic.formulas.numerics import square
from fedbolic.manifolds import Lorentz
from flatland.graphs.model import (
    GCN,
    Flat,
    FlatHead,
    GraphNetwork,
    LorentzGCN,
    LorentzNetwork,
    SpaceTimeLinear,
    time_of,
    widths_of,
)
from flatland.graphs.weak_cache import WeakCache, derived

DRAWS = 2**62
"""Range of the random numbers of negatives; much larger than any number of pairs."""


@dataclass(frozen=True)
class LinkNetwork(GraphNetwork):
    r"""A graph network as an encoder of nodes, and a Fermi-Dirac decoder of squared distances.

    .. math:: \text{logit}(i, j) = (r - d(x_i, x_j)^2) / t

    The head gives vectors, or the space coordinates of points in the client's Lorentz space, so
    with ``GCN`` and ``LorentzGCN`` the network and its flat twin differ in geometry alone if the
    twin has ``neighbours="mean"``.

    Args:
        network: Encoder, ``GCN`` or ``LorentzGCN``.
        dim: Number of coordinates of a node, at least 1.
        radius: Squared distance r at which the probability of a link is 1/2, above 0.
        temperature: Temperature t, above 0.

    Raises:
        ValueError: If a value is out of range, or the encoder is of another kind.

    References:
        Chami et al. (2019), Sec. 4.3, arXiv:1910.12933, for the decoder and its r = 2 and t = 1.

    Example:
        >>> LinkNetwork(GCN((32,), neighbours="mean")).dim
        16
    """

    network: GraphNetwork = LorentzGCN((64,))
    dim: int = 16
    radius: float = 2.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check.at_least(1, dim=self.dim)
        check.positive(radius=self.radius, temperature=self.temperature)
        if not isinstance(self.network, GCN | LorentzGCN):
            raise ValueError(
                f"links are decoded from the nodes of a GCN or LorentzGCN, got {self.network}"
            )

    @override
    def build(self, meta: Meta) -> nn.Module:
        network = self.network
        assert isinstance(network, GCN | LorentzGCN)
        sizes = widths_of(meta, network.widths)
        given = network.dropout, network.activation
        if isinstance(network, LorentzGCN):
            return LorentzNetwork(sizes, LinkPoints(sizes[-1], self.dim), *given)
        head = FlatHead(sizes[-1], self.dim)
        return Flat(sizes, head, *given, neighbours=network.neighbours)

    def decode(
        self, x: Float[Tensor, "*pairs width"], y: Float[Tensor, "*pairs width"]
    ) -> Float[Tensor, "*pairs"]:
        """Logits of links between nodes.

        Args:
            x: Rows of the network's output for the first node of every pair.
            y: Rows for the second node.
        """
        if isinstance(self.network, LorentzGCN):
            # |x - y|^2 in the Minkowski form is 4 sinh^2(d / 2) at c = 1: exact for near points
            gap = square(x[..., 2:] - y[..., 2:]) - (x[..., 1:2] - y[..., 1:2]).square()
            t = gap.clamp(min=0) / 4
            squared = 4 * t * asinhc(t, 1.0).square() / x[..., :1]
        else:
            squared = square(x - y)
        return ((self.radius - squared) / self.temperature).squeeze(-1)


class LinkPoints(SpaceTimeLinear):
    """Head that gives points: the curvature, then their coordinates in units of its radius."""

    @override
    def forward(
        self,
        time: Float[Tensor, "clients n 1"],
        s: Float[Tensor, "clients n width"],
        space: Lorentz | None = None,
    ) -> Float[Tensor, "clients n out"]:
        """Curvature, time and space coordinates of one point per node."""
        assert space is not None
        y = super().forward(time, s)
        c = torch.as_tensor(space.c).expand(*y.shape[:-1], 1)
        return torch.cat((c, c.sqrt() * time_of(space, y), c.sqrt() * y), dim=-1)


@dataclass(frozen=True, eq=False)
class NonEdges(JaggedBlock):
    """Pairs of different nodes without an edge, of each of several graphs.

    Args:
        before: Number of non-edges before each edge, as of :class:`~fedbolic.data.Graph`; padding
            is larger than any number of pairs.
        counts: Number of non-edges; 1 for a client without a graph.
    """

    before: Int64[Tensor, "clients edges"]
    counts: Int64[Tensor, " clients"]

    def chosen(self, drawn: Int64[Tensor, "clients m"]) -> Int64[Tensor, "2 clients m"]:
        """Both nodes of random non-edges.

        Args:
            drawn: Random numbers below :data:`DRAWS`.
        """
        place = drawn % self.counts[:, None]
        return ranked_pairs(place + torch.searchsorted(self.before, place, right=True))

    @classmethod
    @override
    def kind(cls, parts: tuple[Graph, ...]) -> Hashable:
        return ()

    @classmethod
    @override
    def with_room(cls, parts: tuple[Graph, ...], num_clients: int, like: Any) -> "NonEdges":
        width = max(non_edges_of((graph,)).before.shape[1] for graph in parts)
        if like is not None:
            width = max(like.before.shape[1], 6 * width // 5)
        return _join(parts, num_clients, width)

    @override
    def fits(self, parts: tuple[Graph, ...]) -> bool:
        width = max(non_edges_of((graph,)).before.shape[1] for graph in parts)
        return len(parts) <= len(self.counts) and width <= self.before.shape[1]

    @override
    def load(self, parts: tuple[Graph, ...]) -> None:
        other = _joined(parts, *self.before.shape)
        self.before.copy_(other.before)
        self.counts.copy_(other.counts)

    @override
    def mapped(self, function: Callable[[Tensor], Tensor]) -> "NonEdges":
        return NonEdges(function(self.before), function(self.counts))


def non_edges_of(graphs: tuple[Any, ...]) -> NonEdges:
    """Non-edges of graphs, or of a single block of them.

    Args:
        graphs: One graph per client, or their non-edges.
    """
    first, *others = graphs
    if isinstance(first, NonEdges):
        return first
    return _joined(graphs) if others else derived(first, _alone)


def _alone(graph: Graph) -> NonEdges:
    before = graph.non_edges_before
    return NonEdges(before[None], torch.tensor([num_non_edges(graph)], device=before.device))


def _join(graphs: tuple[Graph, ...], num_clients: int = 0, width: int = 0) -> NonEdges:
    """Non-edges of several graphs, and of none up to a number of clients."""
    parts = [non_edges_of((graph,)) for graph in graphs]
    width = max(width, *(part.before.shape[1] for part in parts))
    empty = max(0, num_clients - len(parts))
    rows = [pad(part.before, (0, width - part.before.shape[1]), value=DRAWS) for part in parts]
    counts = torch.cat([part.counts for part in parts])
    return NonEdges(
        pad(torch.cat(rows), (0, 0, 0, empty), value=DRAWS), pad(counts, (0, empty), value=1)
    )


_joined = WeakCache(_join, size=4)
"""Result of :func:`_join`, as an engine groups the same clients in every round."""


def pair_logits(
    network: LinkNetwork, outputs: Float[Tensor, "n width"], pairs: Int64[Tensor, "m 2"]
) -> Float[Tensor, "m 2"]:
    """Logits of the classes 0 (no edge) and 1 (edge) of pairs of nodes.

    Args:
        network: The network that gave the outputs.
        outputs: Output of the network, one row per node.
        pairs: Two nodes of every pair.
    """
    logit = network.decode(outputs[pairs[:, 0]], outputs[pairs[:, 1]])
    return torch.stack((torch.zeros_like(logit), logit), dim=-1)


def link_losses(
    network: LinkNetwork,
    outputs: Float[Tensor, "clients n width"],
    batch: dict[str, Tensor],
    graphs: tuple[Graph, ...] | tuple[NonEdges],
) -> Float[Tensor, "clients m"]:
    r"""Cross-entropy of training edges, each with one random pair without a training edge.

    .. math:: \tfrac 1 2 \bigl(-\log p(i, j) - \log(1 - p(i', j'))\bigr)

    Args:
        network: The network that gave the outputs.
        outputs: Output of the network for a block of clients, one row per node.
        batch: Edges, ``node``, and one random number of each, ``negative``, below :data:`DRAWS`,
            with a leading axis of clients.
        graphs: Graph of each client, with its training edges, or their non-edges.
    """
    edges, drawn = batch["node"], batch["negative"]
    # a batch uses the first draws, and rows that fill it up need none
    drawn = pad(drawn, (0, edges.shape[1] - drawn.shape[1]))
    client = torch.arange(len(outputs), device=outputs.device)[:, None]
    positives, negatives = (
        network.decode(outputs[client, i], outputs[client, j])
        for i, j in (edges.unbind(-1), non_edges_of(graphs).chosen(drawn))
    )
    return (softplus(-positives) + softplus(negatives)) / 2


def draw_negatives(num_steps: int, batch_size: int, generator: torch.Generator) -> Tensor:
    """Random numbers from which negatives are chosen, one per step and example."""
    return torch.randint(DRAWS, (num_steps, batch_size), generator=generator)
