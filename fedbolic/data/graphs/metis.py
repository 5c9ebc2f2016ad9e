"""Graph partitions with few cut edges; the only file that imports pymetis."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.check import at_least
from fedbolic.core.imports import extra
from fedbolic.core.rng import Rng
from fedbolic.data.contract.partition import Partition
from fedbolic.data.graphs.graph import Graph


class GraphPartition(ABC):
    """Assignment of every node of a graph to exactly one client, based on the edges.

    The same graph and stream give the same parts. Every partition has ``num_clients``.
    """

    num_clients: int

    @abstractmethod
    def parts(self, graph: Graph, rng: Rng) -> list[Tensor]:
        """Nodes of every client, ascending (int64); they are disjoint and cover the graph.

        Args:
            graph: Graph to partition.
            rng: Random stream of the partition.

        Raises:
            ValueError: If the graph has too few nodes or the partition cannot be computed.
        """


def parts_of(partition: GraphPartition | Partition, graph: Graph, rng: Rng) -> list[Tensor]:
    """Nodes of every client by a partition of the graph or, without its edges, of its labels."""
    if isinstance(partition, GraphPartition):
        return partition.parts(graph, rng)
    return partition.split(graph.labels, rng)


@dataclass(frozen=True)
class Metis(GraphPartition):
    """METIS partition: parts of nearly equal size with few cut edges.

    Needs the extra ``graphs`` (pymetis).

    Args:
        num_clients: Number of clients, at least 1.
        seed: Seed of METIS, at least -1, which fixes the parts independently of the run's seed; -1
            is METIS's own default. ``None`` derives it from the run's seed.

    References:
        Karypis and Kumar (1998), doi:10.1137/S1064827595287997.
    """

    num_clients: int = 10
    seed: int | None = None

    def __post_init__(self) -> None:
        at_least(1, num_clients=self.num_clients)
        if self.seed is not None:
            at_least(-1, seed=self.seed)

    @override
    def parts(self, graph: Graph, rng: Rng) -> list[Tensor]:
        with extra("graphs", "Metis", "use another partition"):
            import pymetis

        if self.num_clients > len(graph):
            raise ValueError(
                f"{self.num_clients} clients cannot share {len(graph)} nodes: ask for fewer"
            )
        if self.num_clients == 1:
            return [torch.arange(len(graph))]
        seed = rng.number() % 2**31 if self.seed is None else self.seed
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), graph.degrees.cumsum(0)))
        _, owners = pymetis.part_graph(
            self.num_clients,
            adjacency=pymetis.CSRAdjacency(starts.tolist(), graph.edges[1].tolist()),
            options=pymetis.Options(seed=seed),
        )
        owner = torch.as_tensor(owners)
        return [torch.nonzero(owner == i).flatten() for i in range(self.num_clients)]
