"""Refusals of FedTAD, and its case of federated averaging."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from fedbolic.data import Graph, GraphSplit
from fedbolic.federated import RunStoppedError
from flatland import GCN, Distillation, FedTad, FlatLand, Gcfl
from flatland.rivals import fedtad
from flatland.rivals.fedtad import class_similarity, pseudo_graph
from tests.conformance.loop import gap
from tests.federated.simple_method import RNG, train
from tests.flatland.cases import ODD, federation


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: FedTad(walks=0), "walks"),
        (lambda: FedTad(sharing={"*": "personal"}), "shared"),
        (lambda: Distillation(epochs=-1), "epochs"),
        (lambda: Distillation(model_lr=0.0), "model_lr"),
        (lambda: Distillation(diversity=-1.0), "diversity"),
        (
            lambda: FedTad(distillation=Distillation(nodes=2)).init(federation().meta, RNG),
            "nodes",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_without_pseudo_graphs_it_is_federated_averaging():
    network, data = GCN((4,), dropout=0.0), federation()
    method = FedTad(network, rounds=2, distillation=Distillation(epochs=0))
    plain = FlatLand(network, rounds=2, proximal=0.0, sharing={"*": "shared"})
    ours, theirs = (train(one, data, RNG)[0][-1].server_state for one in (method, plain))
    assert gap(ours["parameters"], theirs["parameters"]) < 1e-12


@pytest.mark.parametrize("method", [FedTad(GCN((4,))), Gcfl(GCN((4,)))])
def test_clients_without_training_nodes_have_no_mean(method):
    data = federation()
    empty = [replace(x, train=replace(x.train, nodes=x.train.nodes[:0])) for x in data.clients]
    with pytest.raises(RunStoppedError, match="training data"):
        train(method, replace(data, clients=tuple(empty)), RNG)


@pytest.mark.parametrize("i", range(len(ODD)))
def test_similarities_are_those_of_the_classes_of_a_client(i):
    client = federation().clients[i]
    found = class_similarity(client.train, 3, 4)
    assert 0 < float(found.sum()) <= 1 + 1e-12
    missing = set(range(3)) - set(client.train.labels.tolist())
    assert not found[list(missing)].any()


def test_similarities_do_not_depend_on_the_edges_at_once(monkeypatch):
    whole, parts = (federation(sparse=True).clients[2].train for _ in range(2))
    expected = class_similarity(whole, 3, 4)
    monkeypatch.setattr(fedtad, "EDGES_AT_ONCE", 7)
    assert torch.equal(class_similarity(parts, 3, 4), expected)


def test_a_node_has_its_nearest_nodes_as_neighbours_in_both_directions():
    x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    graph = pseudo_graph(x, torch.arange(3), 2)
    assert graph.edges.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]


@pytest.mark.parametrize(
    ("shares", "fault"),
    [
        ([-0.5, 1.0, 0.5], "0 .. 1"),
        ([1e6, 0.0, 0.0], "0 .. 1"),
        ([math.nan, 0.0, 1.0], "0 .. 1"),
        ([1.0, 1.0, 1.0], "sum to 1"),
    ],
)
def test_similarities_that_no_nodes_have_are_refused(shares, fault):
    payload = {"delta": {}, "similarity": torch.tensor(shares)}
    assert fault in (FedTad().find_fault({}, payload, math.inf) or "")


@pytest.mark.parametrize("i", range(len(ODD)))
def test_similarities_of_honest_clients_are_not_refused(i):
    shares = class_similarity(federation().clients[i].train, 3, 4)
    for dtype in (torch.float32, torch.float64):
        payload = {"delta": {}, "similarity": shares.to(dtype)}
        assert FedTad().find_fault({}, payload, math.inf) is None


def test_a_similarity_that_rounds_to_more_than_1_is_not_refused():
    for n in range(2, 25):  # all nodes are alike, of one class
        edges = torch.tensor(list(itertools.permutations(range(n), 2))).T
        graph = Graph(torch.ones(n, 2), edges, torch.zeros(n, dtype=torch.int64))
        found = class_similarity(GraphSplit(graph, torch.arange(n)), 3, 4)
        torch.testing.assert_close(found, torch.tensor([1.0, 0.0, 0.0], dtype=found.dtype))
        payload = {"delta": {}, "similarity": found}
        assert FedTad().find_fault({}, payload, math.inf) is None
