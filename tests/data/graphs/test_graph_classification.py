"""Federations of whole graphs: every graph has one client and one split."""

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import (
    IID,
    Dirichlet,
    GraphClassification,
    GraphFamily,
    TreesAndRings,
    pick_graphs,
)
from fedbolic.data.graphs.graph import Graph
from fedbolic.data.graphs.whole_graphs import graph_labels
from tests.data.graphs.test_whole_graphs import as_networkx


def canonical(graph):
    """Size and edges of a graph; a pick keeps the order of the nodes."""
    return len(graph), graph.edges.tolist()


def names(union):
    labels = graph_labels(union).tolist()
    parts = (pick_graphs(union, torch.tensor([i])) for i in range(len(labels)))
    return sorted((label, canonical(part)) for label, part in zip(labels, parts, strict=True))


@pytest.mark.parametrize("partition", [IID(3), Dirichlet(3, alpha=1.0, min_size=5)])
def test_every_graph_has_one_client_and_one_split(partition):
    family = TreesAndRings()
    data = GraphClassification((family,), partition).load(Rng(1))
    everything = family.read(Rng(1).at("family", 0), None)
    held = [client.train.graph for client in data.clients]
    assert sorted(n for union in held for n in names(union)) == names(everything)
    for client in data.clients:
        places = torch.cat([s.places for s in (client.train, client.validation, client.test)])
        num_graphs = len(graph_labels(client.train.graph))
        assert places.sort().values.tolist() == list(range(num_graphs))
        assert len(client.train) == round(0.6 * num_graphs)
    tests = [pick_graphs(client.test.graph, client.test.places) for client in data.clients]
    assert names(data.holdout.test.graph) == sorted(n for union in tests for n in names(union))


def test_each_family_is_one_client_without_a_partition():
    families = (TreesAndRings(num_graphs=10), TreesAndRings(num_graphs=20))
    data = GraphClassification(families).load(Rng(0))
    assert [len(graph_labels(client.train.graph)) for client in data.clients] == [10, 20]
    assert data.meta.num_clients == 2
    both = GraphClassification(families, IID(2)).load(Rng(0))
    assert [len(graph_labels(c.train.graph)) for c in both.clients] == [5, 5, 10, 10]


def test_degrees_are_one_hot_and_end_at_the_largest():
    graph = GraphClassification(most_degree=3).load(Rng(0)).clients[0].train.graph
    expected = [min(degree, 3) for _, degree in sorted(as_networkx(graph).degree)]
    assert graph.features.shape[1] == 4
    assert graph.features.argmax(1).tolist() == expected
    assert (graph.features.sum(1) == 1).all()


class Wide(GraphFamily):
    """Ten points with features of a given width."""

    def __init__(self, width):
        self.width = width

    def __repr__(self):
        return f"Wide({self.width})"

    def read(self, rng, root):
        ten = torch.arange(10)
        edges = torch.empty(2, 0, dtype=torch.long)
        return Graph(torch.ones(10, self.width), edges, ten % 2, batch=ten)


def test_given_features_must_be_there_and_alike():
    with pytest.raises(ValueError, match="has no features"):
        GraphClassification(features="given").load(Rng(0))
    with pytest.raises(ValueError, match=r"Wide\(3\) has 3 features per node and Wide\(2\) has 2"):
        GraphClassification((Wide(2), Wide(3)), features="given").load(Rng(0))
    data = GraphClassification((Wide(2), Wide(2)), features="given", scale="l1").load(Rng(0))
    assert data.clients[1].train.all()["x"].tolist() == [[0.5, 0.5]] * 6


def test_a_client_without_a_training_graph_is_refused():
    with pytest.raises(ValueError, match="none for training"):
        GraphClassification((TreesAndRings(num_graphs=2),), IID(2), train_rate=0.4).load(Rng(0))
