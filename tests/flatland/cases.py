"""Small graphs and federations of graphs, some of them unusual."""

import torch

from fedbolic.core.types import Meta
from fedbolic.data import HOLDOUT, Client, FederatedData, Graph, GraphSplit
from fedbolic.data.graphs.graph import simple_edges

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)


def graph_of(pairs, n, *, dim=5, classes=3, seed=0, sparse=False):
    """A graph with the edges ``pairs`` and random features and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, dim, generator=generator, dtype=torch.float64)
    x = torch.where(torch.rand(n, dim, generator=generator) < 0.5, x, 0.0)
    edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    labels = torch.randint(classes, (n,), generator=generator)
    features = x.to_sparse().coalesce() if sparse else x
    return Graph(features, simple_edges(edges, n), labels)


def complete(n):
    return [(i, j) for i in range(n) for j in range(i)]


def path(n):
    return [(i, i + 1) for i in range(n - 1)]


def star(n):
    return [(0, i) for i in range(1, n)]


ODD = {
    "path": (path(9), 9),
    "without edges": ([], 5),
    "full of triangles": (complete(6), 6),
    "one node": ([], 1),
    "star and isolated nodes": (star(6), 8),
}


def federation(graphs=None, *, sparse=False):
    """One client per graph: half of its nodes train, one validates, and the rest test."""
    made = [
        graph_of(pairs, n, seed=i, sparse=sparse)
        for i, (pairs, n) in enumerate(graphs or ODD.values())
    ]
    meta = Meta(3, (5,), len(made))

    def client(client_id, graph):
        train, rest = torch.arange(0, len(graph), 2), torch.arange(1, len(graph), 2)
        parts = (train, rest[:1], rest[1:])
        return Client(client_id, *(GraphSplit(graph, nodes) for nodes in parts), meta=meta)

    whole = graph_of(path(12), 12, seed=99, sparse=sparse)
    empty, test = GraphSplit(whole, torch.arange(0)), GraphSplit(whole, torch.arange(12))
    holdout = Client(HOLDOUT, empty, empty, test, meta)
    clients = tuple(client(i, graph) for i, graph in enumerate(made))
    return FederatedData(clients, meta, holdout)
