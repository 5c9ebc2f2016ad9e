"""Parts of a graph with few edges between them: the only file that imports pymetis."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.check import at_least
from fedbolic.data.graph import Graph
from fedbolic.rng import Rng


class GraphPartition(ABC):
    """A rule that gives every node of a graph to exactly one client, looking at the edges.

    The same graph and stream give the same parts. A partition also has ``num_clients``.
    """

    num_clients: int

    @abstractmethod
    def parts(self, graph: Graph, rng: Rng) -> list[Tensor]:
        """Nodes of every client, ascending (int64); they are disjoint and cover the graph.

        Args:
            graph: What is divided.
            rng: The stream of the partition.

        Raises:
            ValueError: If the graph cannot be divided as asked.
        """


@dataclass(frozen=True)
class Metis(GraphPartition):
    """Parts of nearly equal size, found by METIS so that few edges are cut.

    Needs the extra ``graphs`` (pymetis).

    Args:
        num_clients: Number of clients, at least 1.
        seed: Of METIS, for the same parts whatever the run's seed is; -1 is the one that METIS
            takes by default. None: drawn from the run's.

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
        try:
            import pymetis
        except ModuleNotFoundError as error:
            raise ValueError(
                "Metis needs pymetis: pip install 'fedbolic[graphs]', or use another partition"
            ) from error

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
