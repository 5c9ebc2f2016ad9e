"""A federation whose clients hold triples of one knowledge graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData
from fedbolic.data.contract.source import Source
from fedbolic.data.knowledge.triple_partition import ByRelation, TriplePartition
from fedbolic.data.knowledge.triple_sets import Families, TripleSet
from fedbolic.data.knowledge.triple_split import TripleSplit
from fedbolic.data.knowledge.triples import Triples


@dataclass(frozen=True)
class PartitionedTriples(Source):
    """A knowledge graph whose triples are split among clients; nobody holds all of them.

    The names of entities and relations are public, and so is their numbering. The partition
    divides training, validation and test triples alike, so a mean over clients of their scores is
    a score of all test triples. A client knows its own triples to be true, and the server's test
    set, which holds all test triples, those of all clients.

    ``meta.num_classes`` is the number of entities. ``meta.input_shape`` is 3, for the numbers of a
    triple, and the number of relations.

    Args:
        graph: Graph to read.
        partition: Partition of the triples among clients.
        validation_rate: Share of the triples to hold out for validation if the graph has no test
            triples of its own, in [0, 1).
        test_rate: Share to hold out for the test, in [0, 1), likewise.
        root: The only folder to read from. By default, the folder named by the environment variable
            FEDBOLIC_DATA, then the working directory.

    Example:
        >>> data = PartitionedTriples(Families(), ByRelation(2)).load(Rng(0))
        >>> data.meta.num_clients, data.meta.num_classes, data.sizes
        (2, 62, (55, 77))
    """

    graph: TripleSet = field(default_factory=Families)
    partition: TriplePartition = field(default_factory=ByRelation)
    validation_rate: float = 0.05
    test_rate: float = 0.05
    root: Path | None = None

    def __post_init__(self) -> None:
        rates = {"validation_rate": self.validation_rate, "test_rate": self.test_rate}
        check.rate(below_one=True, **rates)

    @override
    def load(self, rng: Rng) -> FederatedData:
        graph = self.graph.read(self.root)
        if not len(graph.test):
            graph = graph.held_out(rng.at("held out"), self.validation_rate, self.test_rate)
        owners = self.partition.owners(graph, rng.at("partition"))
        return federation(graph, [(owners == i) for i in range(int(owners.max()) + 1)])


def federation(
    graph: Triples, held: Sequence[Bool[Tensor, " total"]], digest: str | None = None
) -> FederatedData:
    """Clients that hold some triples of a graph each, and the server's test set.

    Args:
        graph: The graph.
        held: Triples of every client, among ``graph.all``; several clients may hold one triple.
        digest: Digest of the names by which all parties number; ``None`` for that of the graph's.
    """
    every = graph.all
    sizes = [len(graph.train), len(graph.validation), len(graph.test)]
    part = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    shape = (3, len(graph.relations))
    meta = Meta(len(graph.entities), shape, len(held))

    def split(triples: Tensor, known: Tensor) -> TripleSplit:
        return TripleSplit(graph.entities, graph.relations, triples, known, digest=digest)

    def client(number: int, own: Tensor) -> Client:
        train, validation, test = (every[own & (part == i)] for i in range(3))
        known = every[own]
        splits = split(train, train[:0]), split(validation, known), split(test, known)
        return Client(number, *splits, meta)

    none = split(every[:0], every[:0])
    holdout = Client(HOLDOUT, none, none, split(graph.test, every), meta)
    return FederatedData(tuple(client(i, own) for i, own in enumerate(held)), meta, holdout)
