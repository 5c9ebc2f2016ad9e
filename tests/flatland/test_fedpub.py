"""FED-PUB compared with its equations: masks, embeddings, similarity means, personal parameters."""

import dataclasses
from itertools import pairwise

import networkx
import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedbolic import tree
from fedbolic.data import HOLDOUT
from fedbolic.federated import Cohort, Sequential, Trainer
from fedbolic.optim import Adam
from fedbolic.rng import Rng
from flatland import GCN, FedPub, FlatLand, MaskedGCN
from flatland.fedpub import random_graph, similarity
from tests.flatland.cases import ODD, federation, graph_of, path
from tests.flatland.test_joint import ALIKE, agree
from tests.flatland.test_method import begin, next_state, start, work
from tests.flatland.test_model import dense, logits_of, values

NET = MaskedGCN((6, 4), dropout=0.0)
METHOD = FedPub(NET, rounds=2)


@pytest.fixture(scope="module")
def data():
    return federation(ALIKE)


def normalised(graph):
    a, x = dense(graph)
    share = a.sum(1).rsqrt()
    return share[:, None] * a * share, x.double()


def hidden(graph, p):
    """Output of the second convolution, on dense matrices."""
    a, h = normalised(graph)
    h = (a @ h @ (p["body.0.space"] * p["body.0.mask"]) + p["body.0.bias"]).relu()
    return a @ h @ (p["body.1.space"] * p["body.1.mask"]) + p["body.1.bias"]


def by_the_paper(graph, p):
    return hidden(graph, p).relu() @ (p["head.space"] * p["head.mask"]) + p["head.bias"]


def test_the_network_is_one_of_weights_times_masks():
    graph = graph_of(path(9), 9)
    model, p, buffers = values(NET)
    generator = torch.Generator().manual_seed(1)
    for name in [name for name in p if name.endswith("mask")]:
        p[name] = 0.1 + torch.rand(p[name].shape, generator=generator).double()
    assert_close(logits_of(model, p, buffers, graph), by_the_paper(graph, p))


def test_small_masks_count_as_zero_outside_training():
    graph = graph_of(path(9), 9)
    model, p, buffers = values(NET)
    p["head.mask"][0], p["head.mask"][1] = 0.9e-3, -1.1e-3
    gone = {**p, "head.mask": p["head.mask"].clone()}
    gone["head.mask"][0] = 0
    assert_close(logits_of(model, p, buffers, graph), by_the_paper(graph, gone))


def test_the_random_graph_has_five_parts_that_nothing_joins():
    graph = random_graph(3, 40, torch.device("cpu"), torch.float32)
    plain = networkx.Graph(graph.edges.T.tolist())
    assert sorted(map(len, networkx.connected_components(plain))) == [100] * 5
    assert graph.num_edges == pytest.approx(5 * 4950 * 0.1, rel=0.08)
    assert float(graph.features.mean()) == pytest.approx(0, abs=0.03)
    assert float(graph.features.std()) == pytest.approx(1, abs=0.03)
    again = random_graph(4, 40, torch.device("cpu"), torch.float32)
    assert not torch.equal(again.features, graph.features)


def test_an_embedding_is_the_mean_over_the_random_graph(data):
    server_state = begin(METHOD, data)
    graph = random_graph(server_state["seed"], 5, torch.device("cpu"), torch.float64)
    found = []
    for update, client_state in work(METHOD, data.clients, server_state).values():
        after = tree.add(server_state["parameters"], update.payload["delta"])
        p = {**after, **client_state["parameters"]}
        assert_close(update.payload["embedding"], hidden(graph, p).mean(0))
        found.append(update.payload["embedding"])
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize("temperature", [0.0, 3.0, 10.0])
def test_likeness_is_a_softmax_of_cosines(temperature):
    x = np.random.default_rng(0).normal(size=(5, 7))
    expected = np.array([[np.exp(temperature * (1 - cosine(a, b))) for b in x] for a in x])
    expected /= expected.sum(1, keepdims=True)
    assert_close(similarity(torch.from_numpy(x), temperature), torch.from_numpy(expected))


def test_every_client_gets_a_mean_of_its_own(data):
    server_state = begin(METHOD, data)
    results = work(METHOD, data.clients, server_state)
    after = next_state(METHOD, server_state, results)
    trained = {
        i: tree.add(server_state["parameters"], u.payload["delta"]) for i, (u, _) in results.items()
    }
    embeddings = torch.stack([u.payload["embedding"] for u, _ in results.values()])
    shares = similarity(embeddings, METHOD.temperature).tolist()
    for i, row in zip(results, shares, strict=True):
        message = METHOD.broadcast(after, i)
        for name, value in message["parameters"].items():
            mean = sum(a * trained[j][name] for a, j in zip(row, results, strict=True))
            assert_close(value, mean)
    for a, b in pairwise(results):
        first, second = (METHOD.broadcast(after, i)["parameters"]["head.space"] for i in (a, b))
        assert not torch.equal(first, second)


def test_who_did_not_answer_keeps_its_mean_and_who_is_new_gets_that_of_all(data):
    server_state = begin(METHOD, data)
    results = work(METHOD, data.clients[:3], server_state)
    after = next_state(METHOD, server_state, results)
    later = next_state(METHOD, after, work(METHOD, data.clients[:2], after))
    assert later["clients"]["2"] is after["clients"]["2"]
    changes = [u.payload["delta"]["head.space"] for u, _ in results.values()]
    common = server_state["parameters"]["head.space"] + torch.stack(changes).mean(0)
    for client_id in (3, HOLDOUT):
        assert_close(METHOD.broadcast(after, client_id)["parameters"]["head.space"], common)


def test_masks_stay_and_everything_else_is_declared(data):
    server_state = begin(METHOD, data)
    for update, client_state in work(METHOD, data.clients, server_state).values():
        assert tree.signature(update.payload) == tree.signature(METHOD.template(server_state))
        assert not any("mask" in name for name in update.payload["delta"])
        assert set(client_state["parameters"]) == {"body.0.mask", "body.1.mask", "head.mask"}


def test_a_local_update_is_adam_on_the_papers_loss(data):
    method = dataclasses.replace(
        METHOD, proximal=0.02, sparsity=0.003, weight_decay=1e-3, optimizer=Adam(eps=1e-3)
    )
    server_state = begin(method, data)
    for i, (update, client_state) in work(method, data.clients, server_state).items():
        p = tree.clone(start(method, data, server_state, i)[0]["parameters"])
        first = tree.clone(p)
        for value in p.values():
            value.requires_grad_()
        optimizer = torch.optim.Adam(p.values(), lr=0.01, weight_decay=1e-3, eps=1e-3)
        batch = data.clients[i].train.all()
        for _ in range(3):
            optimizer.zero_grad()
            logits = by_the_paper(data.clients[i].train.graph, p)[batch["node"]]
            distance = sum((p[n] - first[n]).square().sum() for n in server_state["parameters"])
            masks = sum(p[n].abs().sum() for n in p if n.endswith("mask"))
            (cross_entropy(logits, batch["y"]) + 0.01 * distance + 0.003 * masks).backward()
            optimizer.step()
        for name, value in p.items():
            new = value.detach()
            if name in server_state["parameters"]:
                assert_close(update.payload["delta"][name], new - first[name])
            else:
                assert_close(client_state["parameters"][name], new)


def test_without_masks_and_likeness_it_is_fedavg(data):
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
