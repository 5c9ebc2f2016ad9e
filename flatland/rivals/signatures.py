"""Anonymous neighbours of nodes: buckets of equal signatures, and graphs with one node for each."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import Graph
from fedbolic.data.graphs.graph import simple_edges
from flatland.graphs.blocks import Sparse, block_diagonal
from flatland.graphs.model import (
    ConvolutionalNetwork,
    Flat,
    FlatHead,
    SpaceLinear,
    widths_of,
)
from flatland.graphs.weak_cache import WeakCache, derived

NEIGHBOUR_TABLE = "body.0.table"
"""Parameter name of the anonymous neighbours' embeddings, which come from the server."""


@dataclass(frozen=True)
class ExpandedGCN(ConvolutionalNetwork):
    r"""``GCN`` on a graph with one anonymous node for every bucket of signatures.

    .. math:: H_1 = \mathrm{drop}\Bigl(\sigma\Bigl(D^{-1/2} (A + I) D^{-1/2}
        \binom{X M}{T} + b\Bigr)\Bigr)

    The rows of the table T take the place of :math:`X M` for anonymous nodes: they are embeddings
    of other clients' nodes, not features. They are not trained.

    Args:
        bits: Number of bits of a signature, at least 1 and at most 16; there are ``2 ** bits``
            buckets.
    """

    bits: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.bits <= 16:
            raise ValueError(f"a signature has 1 to 16 bits, got bits={self.bits}")

    @property
    def num_buckets(self) -> int:
        """Number of different signatures."""
        return 2**self.bits

    @override
    def build(self, meta: Meta) -> nn.Module:
        sizes = widths_of(meta, self.widths)
        head = FlatHead(sizes[-1], meta.num_classes)
        network = Flat(sizes, head, self.dropout, self.activation)
        network.body[0] = TableLinear(sizes[0], sizes[1], num_buckets=self.num_buckets)
        return network


class TableLinear(SpaceLinear):
    """Linear layer with a table of further rows, for inputs with one-hot columns at the end."""

    def __init__(self, in_features: int, out_features: int, *, num_buckets: int) -> None:
        super().__init__(in_features, out_features)
        self.table = nn.Parameter(torch.zeros(num_buckets, out_features))

    @property
    @override
    def matrix(self) -> Float[Tensor, "*clients width_and_buckets out"]:
        return torch.cat((self.space, self.table), -2)


def signatures(features: Float[Tensor, "n width"], bits: int, seed: int) -> Int64[Tensor, " n"]:
    r"""Bucket of every node: the signs of random projections of its features, as a number.

    .. math:: \sum_k 2^k \, 1[r_k \cdot x > 0], \qquad r_k \sim N(0, I)

    Two nodes have an equal bit with probability 1 minus their angle over :math:`\pi`.

    Args:
        features: One row per node; may be sparse.
        bits: Number of projections.
        seed: Seed of the projections, the same for all clients.

    References:
        Charikar (2002), Sec. 3, doi:10.1145/509907.509965.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
        >>> len(signatures(x, 8, seed=0).unique())
        1
    """
    generator = Rng(seed).at("signatures").generator()
    planes = torch.randn(features.shape[1], bits, generator=generator).to(features)
    ones = (features @ planes > 0).long()
    return (ones << torch.arange(bits, device=ones.device)).sum(1)


def expanded(graph: Graph, bits: int, seed: int) -> tuple[Int64[Tensor, " n"], Graph]:
    """Bucket of every node, and the graph with one more node for each bucket that occurs.

    The new node of a bucket is joined to the nodes in it. Features have one column more for every
    possible bucket, in which new nodes have a one and all others zeros.

    Args:
        graph: Graph of a client.
        bits: Number of bits of a signature.
        seed: Seed of the signatures.

    Example:
        >>> single = Graph(torch.ones(1, 2), torch.zeros(2, 0).long(), torch.zeros(1).long())
        >>> buckets, whole = expanded(single, 2, seed=0)
        >>> whole.features.shape, whole.degrees.tolist()
        (torch.Size([2, 6]), [1, 1])
    """
    return derived(graph, _expanded, bits, seed)


def _expanded(graph: Graph, bits: int, seed: int) -> tuple[Tensor, Graph]:
    buckets = signatures(graph.features, bits, seed)
    return buckets, _with_buckets(graph, buckets, 2**bits)


def _memberships(graphs: tuple[Graph, ...], bits: int, seed: int) -> Sparse:
    """Block-diagonal matrix of the sums over the nodes in every bucket of each client.

    Args:
        graphs: Graphs of the clients.
        bits: Number of bits of a signature.
        seed: Seed of the signatures.
    """
    parts = []
    for graph in graphs:
        buckets, _ = expanded(graph, bits, seed)
        counts = buckets.bincount(minlength=2**bits)
        ones = torch.ones(len(graph), dtype=graph.features.dtype, device=buckets.device)
        parts.append(Sparse.of(counts, buckets.argsort(stable=True), ones, len(graph)))
    return block_diagonal(parts, 2**bits, max(map(len, graphs)))


memberships = WeakCache(_memberships, size=4)
"""Result of :func:`_memberships`, as an engine groups the same clients in every round."""


def _with_buckets(graph: Graph, buckets: Tensor, num_buckets: int) -> Graph:
    n, (found, place) = len(graph), buckets.unique(return_inverse=True)
    joins = torch.stack((torch.arange(n, device=buckets.device), n + place))
    size = n + len(found)
    edges = simple_edges(torch.cat((graph.edges, joins), 1), size)
    labels = torch.cat((graph.labels, graph.labels.new_zeros(len(found))))
    width = graph.features.shape[1]
    if not graph.features.is_sparse:
        ones = one_hot(found, num_buckets).to(graph.features)
        features = graph.features.new_zeros(size, width + num_buckets)
        features[:n, :width], features[n:, width:] = graph.features, ones
        return Graph(features, edges, labels)
    new = torch.stack((n + torch.arange(len(found), device=found.device), width + found))
    index = torch.cat((graph.features.indices(), new), 1)
    entries = torch.cat((graph.features.values(), graph.features.values().new_ones(len(found))))
    shape = (size, width + num_buckets)
    features = torch.sparse_coo_tensor(index, entries, shape, check_invariants=False).coalesce()
    return Graph(features, edges, labels)
