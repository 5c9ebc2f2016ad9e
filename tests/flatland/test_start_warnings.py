"""Warnings about features and curvatures with which training starts badly."""

import logging

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import Client, Graph, GraphSplit
from fedbolic.data.graphs.graph import simple_edges
from flatland import Constant, FlatLand, FormanInverse, LorentzGCN, start_warnings


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(start_warnings, "_GIVEN", set())


def star(num_leaves, length, client_id=0):
    """A client whose graph is a star: edges with Forman-Ricci curvature 3 - num_leaves."""
    leaves = torch.arange(1, num_leaves + 1)
    edges = simple_edges(torch.stack((torch.zeros_like(leaves), leaves)), num_leaves + 1)
    features = length * torch.nn.functional.one_hot(torch.arange(num_leaves + 1) % 2).float()
    graph = Graph(features, edges, torch.arange(num_leaves + 1) % 2)
    split = GraphSplit(graph, torch.arange(num_leaves + 1))
    return Client(client_id, split, split, split, Meta(2, (2,), 3))


def messages(caplog, clients, **settings):
    """Warnings of the first turn of several clients."""
    method = FlatLand(LorentzGCN((4,)), **settings)
    message = method.init(clients[0].meta, Rng(0))
    with caplog.at_level(logging.WARNING, "fedbolic"):
        for client in clients:
            method.received(message, client, {})
    return [record.getMessage() for record in caplog.records]


def test_a_clamped_estimate_is_reported_once(caplog):
    clients = [star(10, 0.01), star(203, 0.01, 1), star(303, 0.01, 2)]
    (text,) = messages(caplog, clients, curvature=FormanInverse())
    assert text.startswith("client 1: FormanInverse estimates a curvature of 200, ")
    assert "clamped to 99" in text


def test_features_beyond_three_radii_are_reported_once(caplog):
    clients = [star(3, 2.9), star(3, 3.5, 1), star(3, 9.0, 2)]
    (text,) = messages(caplog, clients, curvature=Constant())
    assert text.startswith("client 1: the features of 100 % of the nodes lie more than 3 curvature")
    assert "the farthest 3.5" in text


def test_the_radius_is_that_of_the_curvature_the_client_starts_with(caplog):
    # c = 9: features of length 1.1 lie 3.3 radii out
    (text,) = messages(caplog, [star(3, 1.1)], curvature=Constant(9.0))
    assert "the farthest 3.3" in text
    caplog.clear()
    assert not messages(caplog, [star(3, 1.1)], curvature=Constant(9.0), sharing={"*": "shared"})


def test_a_client_that_has_trained_is_not_reported(caplog):
    method = FlatLand(LorentzGCN((4,)), curvature=Constant())
    client = star(3, 5.0)
    local, _ = method.received(method.init(client.meta, Rng(0)), client, {})
    caplog.clear()
    start_warnings._GIVEN.clear()
    with caplog.at_level(logging.WARNING, "fedbolic"):
        state = {"parameters": local["parameters"]}
        method.received(method.init(client.meta, Rng(0)), client, state)
    assert not caplog.records
