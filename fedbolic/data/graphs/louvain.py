"""Graph partitions by communities; the only file that imports networkx."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.check import at_least, positive
from fedbolic.core.imports import extra
from fedbolic.core.rng import Rng
from fedbolic.data.contract.partition import deal_evenly
from fedbolic.data.graphs.graph import Graph
from fedbolic.data.graphs.metis import GraphPartition

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True)
class Louvain(GraphPartition):
    r"""Louvain partition: communities of high modularity, merged into parts of similar size.

    A community of more than :math:`\lfloor n / K \rfloor` nodes is divided by Louvain's algorithm
    again; if that finds one community alone, it is cut into pieces of at most this size, in the
    order of a breadth-first search. Then, from the largest piece on, each goes to the client with
    the fewest nodes. So the sizes of two clients differ by at most :math:`\lfloor n / K \rfloor`,
    and usually by far less.

    The algorithm is that of networkx, in Python: seconds for 10,000 edges, minutes for a million.

    Args:
        num_clients: Number K of clients, at least 1.
        resolution: Resolution of the modularity, above 0; larger values give smaller communities.
        seed: Seed of the algorithm, at least 0, which fixes the parts independently of the run's
            seed. ``None`` derives it from the run's seed.

    References:
        Blondel et al. (2008), arXiv:0803.0476; Zhang et al. (2021), arXiv:2106.13430, for clients
        of communities.

    Example:
        >>> from fedbolic.data.graphs.graph_sets import BlockModel
        >>> graph = BlockModel(num_nodes=60).read(Rng(0), None, download=False)
        >>> parts = Louvain(3).parts(graph, Rng(0))
        >>> len(parts), sum(len(part) for part in parts)
        (3, 60)
    """

    num_clients: int = 10
    resolution: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        at_least(1, num_clients=self.num_clients)
        positive(resolution=self.resolution)
        if self.seed is not None:
            at_least(0, seed=self.seed)

    @override
    def parts(self, graph: Graph, rng: Rng) -> list[Tensor]:
        with extra("graphs", "Louvain"):
            import networkx  # imported here because networkx is slow to import

        if self.num_clients > len(graph):
            raise ValueError(
                f"{self.num_clients} clients cannot share {len(graph)} nodes: ask for fewer"
            )
        edges = networkx.Graph()
        edges.add_nodes_from(range(len(graph)))
        edges.add_edges_from(graph.edges[:, graph.edges[0] < graph.edges[1]].T.tolist())
        seed = rng.number() % 2**32 if self.seed is None else self.seed
        pieces = sorted(self._pieces(edges, len(graph) // self.num_clients, seed))
        owned: list[list[int]] = [[] for _ in range(self.num_clients)]
        owners = deal_evenly(torch.tensor([len(piece) for piece in pieces]), self.num_clients)
        for piece, client in zip(pieces, owners.tolist(), strict=True):
            owned[client] += piece
        return [torch.tensor(nodes).sort().values for nodes in owned]

    def _pieces(self, edges: "networkx.Graph", most: int, seed: int) -> Iterator[list[int]]:
        """Communities of at most ``most`` nodes; larger ones are divided again."""
        from networkx.algorithms.community import louvain_communities

        found = louvain_communities(edges, resolution=self.resolution, seed=seed)
        for community in found:
            if len(community) <= most:
                yield sorted(community)
            elif len(found) > 1:
                yield from self._pieces(edges.subgraph(sorted(community)).copy(), most, seed)
            else:
                yield from _cut(edges, most)


def _cut(edges: "networkx.Graph", most: int) -> Iterator[list[int]]:
    """Pieces of at most ``most`` nodes, in the order of a breadth-first search."""
    from networkx import bfs_tree, connected_components

    order = [node for part in connected_components(edges) for node in bfs_tree(edges, min(part))]
    for start in range(0, len(order), most):
        yield sorted(order[start : start + most])
