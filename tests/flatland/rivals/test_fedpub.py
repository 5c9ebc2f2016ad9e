"""FED-PUB's random graph, similarities and masks; its algorithm is in ``tests/conformance``."""

import dataclasses

import networkx
import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine
from torch.testing import assert_close

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.federated import Cohort, Sequential, Trainer
from fedbolic.optim import Adam
from flatland import GCN, FedPub, FlatLand, MaskedGCN
from flatland.rivals.fedpub import random_graph, similarity
from tests.flatland.cases import ODD, federation
from tests.flatland.test_joint import ALIKE, agree
from tests.flatland.test_method import begin, work

NET = MaskedGCN((6, 4), dropout=0.0)
METHOD = FedPub(NET, rounds=2)


@pytest.fixture(scope="module")
def data():
    return federation(ALIKE)


def test_the_random_graph_has_five_parts_that_nothing_joins():
    graph = random_graph(3, 40, torch.device("cpu"), torch.float32)
    plain = networkx.Graph(graph.edges.T.tolist())
    assert sorted(map(len, networkx.connected_components(plain))) == [100] * 5
    assert graph.num_edges == pytest.approx(5 * 4950 * 0.1, rel=0.08)
    assert float(graph.features.mean()) == pytest.approx(0, abs=0.03)
    assert float(graph.features.std()) == pytest.approx(1, abs=0.03)
    again = random_graph(4, 40, torch.device("cpu"), torch.float32)
    assert not torch.equal(again.features, graph.features)


@pytest.mark.parametrize("temperature", [0.0, 3.0, 10.0])
def test_similarity_is_a_softmax_of_cosines(temperature):
    x = np.random.default_rng(0).normal(size=(5, 7))
    expected = np.array([[np.exp(temperature * (1 - cosine(a, b))) for b in x] for a in x])
    expected /= expected.sum(1, keepdims=True)
    assert_close(similarity(torch.from_numpy(x), temperature), torch.from_numpy(expected))


def test_masks_stay_and_everything_else_is_declared(data):
    server_state = begin(METHOD, data)
    for update, client_state in work(METHOD, data.clients, server_state).values():
        assert tree.signature(update.payload) == tree.signature(METHOD.template(server_state))
        assert not any("mask" in name for name in update.payload["delta"])
        assert set(client_state["parameters"]) == {"body.0.mask", "body.1.mask", "head.mask"}


def test_without_masks_and_similarity_it_is_fedavg(data):
    sharing = {"*.mask": "fixed", "*": "shared"}
    ours = dataclasses.replace(METHOD, rounds=3, sharing=sharing, temperature=0.0)
    theirs = FlatLand(
        GCN((6, 4), dropout=0.0), rounds=3, sharing={"*": "shared"}, weights="uniform"
    )
    ends = [
        list(Trainer(Sequential()).run(m, data, Rng(3)))[-1][0].server_state for m in (ours, theirs)
    ]
    for client in data.clients:
        assert_close(ends[0]["clients"][str(client.id)], ends[1]["parameters"])


@pytest.mark.parametrize("graphs", [ALIKE, list(ODD.values())], ids=["alike", "odd"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_block_of_clients_is_each_of_them_alone(graphs, sparse, caplog):
    network = dataclasses.replace(NET, dropout=0.5)
    method = dataclasses.replace(METHOD, network=network, rounds=3, proximal=0.1, sparsity=0.01)
    agree(method, federation(graphs, sparse=sparse), caplog, cohort=Cohort(0.6))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"sparsity": -1.0},
        {"sharing": {"*": "personal", "x": "shared"}},
        {"rounds": 0},
        {"optimizer": Adam(weight_decay=0.1)},
    ],
)
def test_settings_that_cannot_be_are_refused(data, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FedPub(**wrong).init(data.meta, Rng(0))
