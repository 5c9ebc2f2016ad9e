"""Payloads of FedGTA, whose algorithm is in ``tests/conformance``, and PyG's label propagation."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.models import LabelPropagation

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.federated import Cohort, Graphed, Sequential, Trainer
from flatland import GCN, FedGta, FlatLand, GraphReadout
from flatland.graphs.blocks import graph_block
from flatland.rivals.fedgta import propagated, smoothing_confidence
from tests.conformance.fedgta import LOOPS, confidence, moments, soft_labels
from tests.conformance.graphs import closed
from tests.federated.simple_method import assert_near
from tests.flatland.cases import ODD, federation, graph_of, path, star
from tests.flatland.test_joint import ALIKE, agree
from tests.flatland.test_method import begin, work

NET = GCN((6, 4), dropout=0.0)
METHOD = FedGta(NET, rounds=2, threshold=0.9)
SIX = [*ALIKE, *ALIKE[:2]]


@pytest.fixture(scope="module")
def data():
    return federation(SIX)


@pytest.mark.parametrize("name", LOOPS)
def test_a_client_sends_the_moments_and_the_confidence_of_the_loop(name):
    method, data = LOOPS[name].method, LOOPS[name].data()
    server_state = begin(method, data)
    for i, (update, _) in work(method, data.clients, server_state).items():
        client = data.clients[i]
        trained = tree.add(server_state["parameters"], update.payload["delta"])
        sharp, soft = (soft_labels(method, client, trained, t) for t in (1.0, method.temperature))
        assert_close(update.payload["moments"], moments(method, sharp))
        degrees = closed(client.train.graph).sum(1)
        assert float(update.payload["confidence"]) == pytest.approx(confidence(soft, degrees))
        assert tree.signature(update.payload) == tree.signature(
            method.template(method.broadcast(server_state, i))
        )


@pytest.mark.parametrize("teleport", [0.0, 0.3, 1.0])
def test_labels_are_propagated_as_by_pyg(teleport):
    graph = graph_of([*star(5), *path(9)], 10)
    first = torch.rand(10, 3, generator=Rng(0).generator(), dtype=torch.float64)
    edges, weights = gcn_norm(graph.edges, num_nodes=10, dtype=torch.float64)
    theirs = LabelPropagation(num_layers=4, alpha=1 - teleport)
    expected = theirs(first, edges, edge_weight=weights, post_step=lambda labels: labels)
    found = propagated(graph_block((graph,)), first[None], steps=4, teleport=teleport)
    assert_close(found[0], expected)


def test_confidence_lies_between_that_of_equal_probabilities_and_that_of_labels():
    generator, degrees = Rng(0).generator(), torch.ones(1, 4, 1)
    soft = torch.randn(1, 4, 5, generator=generator).softmax(-1)
    certain, vague = torch.eye(5)[None, :4], torch.full((1, 4, 5), 0.2)
    low, middle, high = (float(smoothing_confidence(p, degrees)) for p in (vague, soft, certain))
    assert 0 < low < middle < high
    assert high == pytest.approx(4 * 5 / math.e)
    assert low == pytest.approx(4 * (5 / math.e + np.log(0.2)))


def test_without_similar_clients_it_is_local_training(data):
    ours = dataclasses.replace(METHOD, threshold=1.0)
    theirs = FlatLand(NET, rounds=2, sharing={"*": "personal"})
    ends = [list(Trainer(Sequential()).run(m, data, Rng(3)))[-1][0] for m in (ours, theirs)]
    for i in range(6):
        alone = ends[1].client_states[i]["parameters"]
        assert_close(ends[0].server_state["clients"][str(i)], alone)


@pytest.mark.parametrize("graphs", [SIX, list(ODD.values())], ids=["alike", "odd"])
@pytest.mark.parametrize(("sparse", "cohort"), [(False, 1.0), (True, 0.6)])
def test_a_block_of_clients_is_each_of_them_alone(graphs, sparse, cohort, caplog):
    network = dataclasses.replace(NET, dropout=0.5)
    method = dataclasses.replace(METHOD, network=network, rounds=3, proximal=0.1)
    agree(method, federation(graphs, sparse=sparse), caplog, cohort=Cohort(cohort))


def test_personal_layers_stay_and_a_captured_step_gives_the_same(data):
    sharing = {"head.*": "personal", "*": "shared"}
    method = dataclasses.replace(METHOD, sharing=sharing)
    plain, fast = (
        list(Trainer(engine).run(method, data, Rng(3)))[-1][0]
        for engine in (Sequential(), Graphed())
    )
    assert not any(name.startswith("head") for name in plain.server_state["parameters"])
    assert_near(fast.server_state, plain.server_state, 1e-10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 1.1},
        {"steps": -1},
        {"teleport": 1.5},
        {"temperature": 0.0},
        {"orders": 0},
        {"orders": 1, "moments": "central"},
        {"moments": "other"},
        {"network": GraphReadout(GCN((4,)))},
        {"sharing": {"*": "personal"}},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, data):
    with pytest.raises(Exception, match=next(iter(wrong))):
        FedGta(**wrong).init(data.meta, Rng(0))
