"""Partitions of triples among clients: by relation, by entity, or at random."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data.contract.partition import deal_evenly
from fedbolic.data.knowledge.triples import Triples


@dataclass(frozen=True)
class TriplePartition(ABC):
    """A recipe that gives each triple of a graph to one client.

    Args:
        num_clients: Number of clients, at least 1.
    """

    num_clients: int = 3

    def __post_init__(self) -> None:
        check.at_least(1, num_clients=self.num_clients)

    @abstractmethod
    def owners(self, graph: Triples, rng: Rng) -> Int64[Tensor, " total"]:
        """Client of every triple of ``graph.all``, from 0.

        Args:
            graph: The graph.
            rng: Source of random choices.

        Raises:
            ValueError: If there is too little to give every client a training triple.
        """


@dataclass(frozen=True)
class ByRelation(TriplePartition):
    """Clients that hold relations: all triples of a relation are at one client.

    The relation with the most triples goes to the client with the fewest so far, and so on.

    Args:
        num_clients: Number of clients, at least 1.

    References:
        Chen et al. (2021), FedE, Sec. 4.1, arXiv:2010.12882, who divide relations at random.

    Example:
        >>> graph = Triples.named([("a", "r", "b"), ("b", "r", "a"), ("a", "s", "b")])
        >>> ByRelation(2).owners(graph, Rng(0))
        tensor([0, 0, 1])
    """

    @override
    def owners(self, graph: Triples, rng: Rng) -> Int64[Tensor, " total"]:
        counts = torch.bincount(graph.train[:, 1], minlength=len(graph.relations))
        _require(self.num_clients, int((counts > 0).sum()), "relations with training triples")
        return deal_evenly(counts, self.num_clients)[graph.all[:, 1]]


@dataclass(frozen=True)
class ByEntity(TriplePartition):
    """Clients that hold entities: a triple is at the client of its head.

    The head with the most triples goes to the client with the fewest so far, and so on; heads with
    equally many are dealt in random order.

    Args:
        num_clients: Number of clients, at least 1.
    """

    @override
    def owners(self, graph: Triples, rng: Rng) -> Int64[Tensor, " total"]:
        counts = torch.bincount(graph.train[:, 0], minlength=len(graph.entities))
        _require(self.num_clients, int((counts > 0).sum()), "heads of training triples")
        order = torch.randperm(len(counts), generator=rng.generator())
        owner = torch.empty_like(order)
        owner[order] = deal_evenly(counts[order], self.num_clients)
        return owner[graph.all[:, 0]]


@dataclass(frozen=True)
class RandomTriples(TriplePartition):
    """Clients that hold equally many triples at random.

    Args:
        num_clients: Number of clients, at least 1.
    """

    @override
    def owners(self, graph: Triples, rng: Rng) -> Int64[Tensor, " total"]:
        _require(self.num_clients, len(graph.train), "training triples")
        parts = [
            torch.randperm(len(part), generator=rng.at(name).generator()) % self.num_clients
            for name, part in vars(graph).items()
            if isinstance(part, Tensor)
        ]
        return torch.cat(parts)


def _require(num_clients: int, found: int, kind: str) -> None:
    if found < num_clients:
        raise ValueError(f"{num_clients} clients cannot share {found} {kind}: use fewer clients")
