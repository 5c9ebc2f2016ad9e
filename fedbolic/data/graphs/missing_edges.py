"""Federated graphs with missing edges at the clients."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data.contract.client import Client, FederatedData
from fedbolic.data.contract.source import Source
from fedbolic.data.graphs.graph import Graph, GraphSplit, simple_edges


@dataclass(frozen=True)
class MissingEdges(Source):
    """A source of node classification in which every client lacks a random share of its edges.

    A partition already loses the edges between clients. This source drops further edges, within
    the clients: of a client's E edges, ``round(rate * E)`` drawn uniformly. A client trains and is
    scored on what is left. Nodes, features, labels and splits stay as they are, and so does the
    server's own graph. In the same random stream, an edge that is missing at one rate is also
    missing at every larger rate.

    Args:
        source: Source of graphs, such as :class:`~fedbolic.data.graphs.graphs.Graphs`.
        rate: Share of a client's edges that are missing, in [0, 1].

    Raises:
        ValueError: If the rate is out of range, or (from ``load``) a client has no graph.

    Example:
        >>> from fedbolic.data.graphs.graphs import Graphs
        >>> from fedbolic.data.contract.partition import IID
        >>> source = Graphs(partition=IID(2))
        >>> found = [s.load(Rng(0)).clients[0] for s in (source, MissingEdges(source, rate=0.5))]
        >>> [client.train.graph.num_edges for client in found]
        [134, 67]
    """

    source: Source
    rate: float = 0.3

    def __post_init__(self) -> None:
        check.rate(rate=self.rate)

    @override
    def load(self, rng: Rng) -> FederatedData:
        data = self.source.load(rng)
        clients = (self._thinned(client, rng.at("missing", client.id)) for client in data.clients)
        return dataclasses.replace(data, clients=tuple(clients))

    @override
    def raw_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.source.raw_shape(shape)

    @override
    def preprocess(self, x: Tensor) -> Tensor:
        return self.source.preprocess(x)

    def _thinned(self, client: Client, rng: Rng) -> Client:
        splits = (client.train, client.validation, client.test)
        whole = [split for split in splits if isinstance(split, GraphSplit)]
        if len(whole) < len(splits):
            raise ValueError(
                f"client {client.id} has no graph whose edges could be missing: use the source "
                "fedbolic.data.Graphs"
            )
        graph = _without_edges(whole[0].graph, self.rate, rng)
        train, validation, test = (GraphSplit(graph, split.nodes) for split in whole)
        return Client(client.id, train, validation, test, client.meta)


def _without_edges(graph: Graph, share: float, rng: Rng) -> Graph:
    """The graph without a share of its edges, drawn uniformly."""
    edges = graph.edges[:, graph.edges[0] < graph.edges[1]]
    order = torch.randperm(graph.num_edges, generator=rng.generator())
    kept = edges[:, order[round(share * graph.num_edges) :]]
    return Graph(graph.features, simple_edges(kept, len(graph)), graph.labels)
