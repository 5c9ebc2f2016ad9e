"""Federated link prediction: what clients hold, compared with brute force on the whole graph."""

import networkx as nx
import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import IID, BlockModel, FederatedLinks, GivenGraph, LinkExamples, Metis
from fedbolic.data.graphs.graphs import largest_component
from fedbolic.data.graphs.link_split import split_links

SEEDS = pytest.mark.parametrize("seed", range(3))


def whole_graph(seed):
    """The largest component of the block model that a source reads, computed again."""
    graph = BlockModel().read(Rng(seed).at("graph"), None, download=False)
    return graph.induced(largest_component(graph))


def owners(whole, split, partition, rng):
    """Nodes of every client, by the same partition of the training graph."""
    if isinstance(partition, IID):
        return partition.split(whole.labels, rng.at("partition"))
    return partition.parts(split.graph, rng.at("partition"))


def edges_of(pairs):
    return {frozenset(pair) for pair in pairs}


@SEEDS
@pytest.mark.parametrize("partition", [IID(3), Metis(3)], ids=["iid", "metis"])
def test_no_held_out_edge_is_in_any_training_graph(seed, partition):
    if isinstance(partition, Metis):
        pytest.importorskip("pymetis")
    rng = Rng(seed)
    data = FederatedLinks(partition=partition).load(rng)
    whole = whole_graph(seed)
    split = split_links(whole, rng.at("split"))
    parts = owners(whole, split, partition, rng)
    all_edges = edges_of(whole.edges.T.tolist())
    held_out = set()
    for part in (split.validation, split.test):
        held_out |= edges_of(part.pairs[:, part.labels == 1].T.tolist())
    seen = {"validation": set(), "test": set()}
    for client, nodes in zip(data.clients, parts, strict=True):
        names = nodes.tolist()
        known = edges_of([names[i], names[j]] for i, j in client.train.graph.edges.T.tolist())
        inside = {edge for edge in all_edges if edge <= set(names)}
        assert not known & held_out
        assert known == inside - held_out
        trained = edges_of([names[i], names[j]] for i, j in client.train.places.tolist())
        assert trained == known
        assert (client.train.labels == 1).all()
        negatives = set()
        for name in ("validation", "test"):
            examples = getattr(client, name)
            pairs = [frozenset((names[i], names[j])) for i, j in examples.places.tolist()]
            assert len(set(pairs)) == len(pairs)
            for pair, label in zip(pairs, examples.labels.tolist(), strict=True):
                assert len(pair) == 2
                assert (pair in all_edges) == label
                (seen[name] if label else negatives).add(pair)
            assert int(examples.labels.sum()) * 2 == len(examples)
        assert len(negatives) * 2 == len(client.validation) + len(client.test)
    for name in ("validation", "test"):
        part = getattr(split, name)
        own = edges_of(part.pairs[:, part.labels == 1].T.tolist())
        within = {edge for edge in own if any(edge <= set(nodes.tolist()) for nodes in parts)}
        assert seen[name] == within


def test_the_server_tests_all_pairs_on_all_training_edges():
    rng = Rng(1)
    data = FederatedLinks(partition=IID(3)).load(rng)
    split = split_links(whole_graph(1), rng.at("split"))
    test = data.holdout.test
    assert torch.equal(test.graph.edges, split.graph.edges)
    assert torch.equal(test.places.T, split.test.pairs)
    assert not len(data.holdout.train)
    assert test.labels.double().mean() == 0.5


def test_examples_of_other_methods_are_products_of_features():
    data = FederatedLinks(partition=IID(3)).load(Rng(0))
    split = data.clients[0].test
    assert isinstance(split, LinkExamples)
    x = split.graph.features
    x = x.to_dense() if x.is_sparse else x
    expected = torch.stack([x[i] * x[j] for i, j in split.places.tolist()])
    torch.testing.assert_close(split.all()["x"], expected)
    assert split.part(torch.tensor([1])).all()["node"].tolist() == [split.places[1].tolist()]
    assert split.to("cpu", torch.float64).all()["x"].dtype == torch.float64


def test_a_client_without_training_edges_or_negatives_is_refused():
    from torch_geometric.data import Data

    def given(graph):
        edges = torch.tensor(list(graph.edges)).T
        n = len(graph)
        data = Data(x=torch.eye(n), edge_index=edges, y=torch.zeros(n, dtype=torch.long))
        return FederatedLinks(GivenGraph(data), IID(8), validation_rate=0.2, test_rate=0.2)

    with pytest.raises(ValueError, match="has no training edge: use fewer clients"):
        given(nx.path_graph(24)).load(Rng(0))
    with pytest.raises(ValueError, match="pairs of them without an edge"):
        given(nx.barbell_graph(8, 0)).load(Rng(0))
