"""Clients that lack a share of their edges: how many, which, and what stays."""

from dataclasses import dataclass

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import (
    IID,
    BlockModel,
    FederatedData,
    Graphs,
    MissingEdges,
    Source,
)
from tests.federated.simple_method import federation as vectors

SOURCE = Graphs(BlockModel(), IID(3))


def edges_of(client):
    return set(map(tuple, client.train.graph.edges.T.tolist()))


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.55, 1.0])
def test_a_share_of_every_clients_edges_is_missing(rate):
    whole, data = SOURCE.load(Rng(1)), MissingEdges(SOURCE, rate).load(Rng(1))
    for old, new in zip(whole.clients, data.clients, strict=True):
        left = edges_of(new)
        assert left <= edges_of(old)
        assert left == {(j, i) for i, j in left}
        num_edges = len(edges_of(old)) // 2
        assert len(left) // 2 == num_edges - round(rate * num_edges)


def test_an_edge_that_is_missing_stays_missing_at_larger_rates():
    lists = [MissingEdges(SOURCE, rate).load(Rng(0)).clients for rate in (0.2, 0.6)]
    for few, many in zip(*lists, strict=True):
        assert edges_of(many) < edges_of(few)


@dataclass(frozen=True, eq=False)
class Given(Source):
    """One federation, whatever the stream."""

    data: FederatedData

    def load(self, rng):
        return self.data


def test_every_edge_can_be_missing():
    whole = Graphs(BlockModel(num_nodes=40), IID(1)).load(Rng(0))
    thinned = [MissingEdges(Given(whole), 0.5).load(Rng(seed)) for seed in range(24)]
    everything = edges_of(whole.clients[0])
    assert set().union(*(everything - edges_of(data.clients[0]) for data in thinned)) == everything


def test_nodes_splits_and_the_servers_graph_stay():
    whole, data = SOURCE.load(Rng(2)), MissingEdges(SOURCE, 0.4).load(Rng(2))
    assert data.meta == whole.meta
    for old, new in zip(whole.clients, data.clients, strict=True):
        assert torch.equal(new.train.graph.labels, old.train.graph.labels)
        rows = [client.train.graph.features.to_dense() for client in (old, new)]
        assert torch.equal(*rows)
        for name in ("train", "validation", "test"):
            assert torch.equal(getattr(new, name).nodes, getattr(old, name).nodes)
            assert getattr(new, name).graph is new.train.graph
    assert torch.equal(data.holdout.test.graph.edges, whole.holdout.test.graph.edges)


def test_rates_and_data_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\], got 1\.5"):
        MissingEdges(SOURCE, 1.5)
    with pytest.raises(ValueError, match="client 0 has no graph whose edges could be missing"):
        MissingEdges(Given(vectors())).load(Rng(0))
