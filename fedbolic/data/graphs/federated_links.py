"""Federated link prediction: clients hold parts of one graph, some of whose edges are held out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData, LabelledSplit, Meta
from fedbolic.data.contract.partition import Partition
from fedbolic.data.contract.source import Source
from fedbolic.data.graphs.graph import Graph
from fedbolic.data.graphs.graph_sets import BlockModel, GraphSet
from fedbolic.data.graphs.graphs import Scale, largest_component, scaled
from fedbolic.data.graphs.link_split import (
    LabelledPairs,
    LinkSplit,
    non_edges,
    num_non_edges,
    split_links,
)
from fedbolic.data.graphs.metis import GraphPartition, Metis, parts_of


@dataclass(frozen=True, eq=False)
class LinkExamples(LabelledSplit):
    """Examples that are pairs of nodes, with label 1 for an edge and 0 for a non-edge.

    An example has its two nodes, ``node``, its label ``y``, and for methods that know no edges the
    elementwise product ``x`` of the features of both nodes.

    Args:
        graph: Graph of one client, with training edges only.
        places: Two nodes of every pair.
        labels: 1 for an edge, 0 for a non-edge.

    Example:
        >>> nodes, pairs = torch.zeros(2, dtype=torch.long), torch.tensor([[0, 1]])
        >>> graph = Graph(2 * torch.ones(2, 3), torch.tensor([[0, 1], [1, 0]]), nodes)
        >>> LinkExamples(graph, pairs, torch.tensor([1])).all()["x"]
        tensor([[4., 4., 4.]])
    """

    graph: Graph
    places: Int64[Tensor, "n 2"]
    labels: Int64[Tensor, " n"]

    @override
    def __len__(self) -> int:
        return len(self.labels)

    @override
    def at(self, index: Tensor) -> dict[str, Tensor]:
        some = self.part(index)
        first, second = (self._features(some.places[:, end]) for end in (0, 1))
        return {"x": first * second, "y": some.labels, "node": some.places}

    def _features(self, nodes: Tensor) -> Tensor:
        rows = self.graph.features.index_select(0, nodes)
        return rows.to_dense() if rows.is_sparse else rows

    @override
    def part(self, index: Tensor) -> "LinkExamples":
        index = index.to(self.labels.device)
        return LinkExamples(self.graph, self.places[index], self.labels[index])

    @override
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "LinkExamples":
        graph = self.graph.to(device, dtype)
        return LinkExamples(graph, self.places.to(device), self.labels.to(device))


@dataclass(frozen=True)
class FederatedLinks(Source):
    """Link prediction on one graph whose nodes are partitioned among clients.

    Edges are held out first, and the rest is partitioned, so that no held-out edge has a part in
    the choice of the clients. A client holds the training edges between its nodes; its examples are
    held-out edges between its nodes and as many random pairs of its nodes without an edge. Its
    training examples are edges alone: a method draws negatives for every step. The server's own
    test set is the graph of all training edges with all test pairs, also those across clients,
    which no client holds.

    Use methods of ``flatland`` with a ``LinkNetwork``.

    Args:
        graph: Graph data set to read.
        partition: Partition of the nodes among clients. A partition by labels, such as ``IID``,
            ignores the edges.
        validation_rate: Share of the edges that are validation examples, in (0, 1).
        test_rate: Share of the edges that are test examples, in (0, 1).
        scale: Scaling of the features of the whole graph, as in :class:`Graphs`.
        largest_component: Whether to keep only the largest connected component.
        root: Folder to read from, as in :class:`Graphs`.
        download: Whether to download missing files into the cache.

    Raises:
        ValueError: If a rate is out of range.

    References:
        Chami et al. (2019), Sec. 5, arXiv:1910.12933, for the shares.

    Example:
        >>> from fedbolic.data.contract.partition import IID
        >>> data = FederatedLinks(partition=IID(2)).load(Rng(0))
        >>> data.meta.num_clients, data.meta.num_classes, data.clients[0].train.labels.unique()
        (2, 2, tensor([1]))
    """

    graph: GraphSet = field(default_factory=BlockModel)
    partition: GraphPartition | Partition = field(default_factory=Metis)
    validation_rate: float = 0.05
    test_rate: float = 0.1
    scale: Scale = "l2"
    largest_component: bool = True
    root: Path | None = None
    download: bool = True

    def __post_init__(self) -> None:
        check.rate(below_one=True, validation_rate=self.validation_rate, test_rate=self.test_rate)
        check.one_of(get_args(Scale), scale=self.scale)

    @override
    def load(self, rng: Rng) -> FederatedData:
        whole = self.graph.read(rng.at("graph"), self.root, download=self.download)
        if self.largest_component:
            whole = whole.induced(largest_component(whole))
        whole = Graph(scaled(whole.features, self.scale), whole.edges, whole.labels)
        rates = {"validation": self.validation_rate, "test": self.test_rate}
        split = split_links(whole, rng.at("split"), **rates)
        parts = parts_of(self.partition, split.graph, rng.at("partition"))
        meta = Meta(2, tuple(whole.features.shape[1:]), len(parts))
        clients = tuple(
            Client(i, *_examples(whole, split, nodes, rng.at("negatives", i)), meta=meta)
            for i, nodes in enumerate(parts)
        )
        _refuse_empty(clients)
        nothing = _labelled(split.graph, torch.zeros(2, 0, dtype=torch.long), split.train[:, :0])
        pairs = split.test.pairs.T.contiguous()
        test = LinkExamples(split.graph, pairs, split.test.labels.long())
        return FederatedData(clients, meta, Client(HOLDOUT, nothing, nothing, test, meta))


def _examples(
    whole: Graph, split: LinkSplit, nodes: Tensor, rng: Rng
) -> tuple[LinkExamples, LinkExamples, LinkExamples]:
    """A client's training edges, and its validation and test pairs."""
    graph, full = split.graph.induced(nodes), whole.induced(nodes)
    place = torch.full((len(whole),), -1)
    place[nodes] = torch.arange(len(nodes))
    positives = [_inside(of, place) for of in (split.validation, split.test)]
    sizes = [of.shape[1] for of in positives]
    population = num_non_edges(full)
    if population < max(sum(sizes), 1):
        raise ValueError(
            f"a client has {len(nodes)} nodes and {population} pairs of them without an edge, but "
            f"needs {max(sum(sizes), 1)} as negatives: use fewer clients"
        )
    chosen = torch.from_numpy(rng.numpy().choice(population, sum(sizes), replace=False))
    negatives = non_edges(full, chosen).split(sizes, dim=1)
    none = torch.zeros(2, 0, dtype=torch.long)
    train = graph.edges[:, graph.edges[0] < graph.edges[1]]
    parts = zip((train, *positives), (none, *negatives), strict=True)
    train_part, validation, test = (_labelled(graph, *both) for both in parts)
    return train_part, validation, test


def _inside(examples: LabelledPairs, place: Tensor) -> Int64[Tensor, "2 n"]:
    """The edges among the examples with both ends at a client, by the client's own numbers."""
    ends = place[examples.pairs[:, examples.labels == 1]]
    return ends[:, (ends >= 0).all(0)]


def _labelled(graph: Graph, edges: Tensor, others: Tensor) -> LinkExamples:
    labels = torch.zeros(edges.shape[1] + others.shape[1], dtype=torch.long)
    labels[: edges.shape[1]] = 1
    return LinkExamples(graph, torch.cat((edges, others), 1).T.contiguous(), labels)


def _refuse_empty(clients: tuple[Client, ...]) -> None:
    for client in clients:
        if not len(client.train):
            raise ValueError(
                f"client {client.id} has no training edge: use fewer clients or another partition"
            )
