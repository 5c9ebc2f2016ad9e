"""FedGTA compared with a literal transcription in loops, and with PyG's label propagation."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine
from torch.testing import assert_close
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.models import LabelPropagation

from fedbolic import tree
from fedbolic.data import HOLDOUT
from fedbolic.federated import Cohort, Graphed, Sequential, Trainer
from fedbolic.rng import Rng
from flatland import GCN, FedGta, FlatLand, GraphReadout
from flatland.blocks import graph_block
from flatland.fedgta import propagated, smoothing_confidence
from tests.federated.simple_method import assert_near
from tests.flatland.cases import ODD, federation, graph_of, path, star
from tests.flatland.test_joint import ALIKE, agree
from tests.flatland.test_method import begin, next_state, work
from tests.flatland.test_model import logits_of

NET = GCN((6, 4), dropout=0.0)
METHOD = FedGta(NET, rounds=2, threshold=0.9)
SIX = [*ALIKE, *ALIKE[:2]]


@pytest.fixture(scope="module")
def data():
    return federation(SIX)


def softmax(row, temperature=1.0):
    powers = [math.exp(x / temperature) for x in row]
    return [x / sum(powers) for x in powers]


def one_hot(label, classes=3):
    return [1.0 if c == label else 0.0 for c in range(classes)]


class Transcription:
    """A client of the algorithm, node by node, from the logits of its trained network."""

    def __init__(self, method, client, logits):
        graph, self.method = client.train.graph, method
        self.nodes, self.classes = range(len(graph)), range(3)
        self.neighbours = {v: {v} for v in self.nodes}
        for a, b in graph.edges.T.tolist():
            self.neighbours[a].add(b)
        nodes = client.train.nodes.tolist()
        self.labels = {v: one_hot(int(graph.labels[v])) for v in nodes}
        first = {v: self.labels.get(v, softmax(logits[v])) for v in self.nodes}
        self.last = first
        for _ in range(method.steps):
            self.last = {v: self.step(v, first, self.last) for v in self.nodes}

    def step(self, v, first, labels):
        def weight(u):
            return 1 / math.sqrt(len(self.neighbours[u]) * len(self.neighbours[v]))

        mixed = [sum(weight(u) * labels[u][c] for u in self.neighbours[v]) for c in self.classes]
        keep = self.method.teleport
        return [(1 - keep) * mixed[c] + keep * first[v][c] for c in self.classes]

    def soft(self, temperature):
        return [self.labels.get(v, softmax(self.last[v], temperature)) for v in self.nodes]

    def confidence(self):
        total = 0.0
        for v, row in zip(self.nodes, self.soft(self.method.temperature), strict=True):
            for p in row:
                total += len(self.neighbours[v]) * (1 / math.e + (p * math.log(p) if p else 0))
        return total

    def moments(self):
        rows, found = self.soft(1.0), []
        mean = [sum(row[c] for row in rows) / len(rows) for c in self.classes]
        if self.method.moments in ("raw", "both"):
            for order in range(1, self.method.orders + 1):
                found += [sum(row[c] ** order for row in rows) / len(rows) for c in self.classes]
        if self.method.moments in ("central", "both"):
            for order in range(2, self.method.orders + 1):
                for c in self.classes:
                    found.append(sum((row[c] - mean[c]) ** order for row in rows) / len(rows))
        return found


def served(models, moments, confidences, threshold):
    """The server of the algorithm: a mean for every client."""
    found = {}
    for i in models:
        near = [j for j in models if j == i or 1 - cosine(moments[i], moments[j]) >= threshold]
        total = sum(confidences[j] for j in near)
        found[i] = {
            name: sum(confidences[j] / total * models[j][name] for j in near) for name in models[i]
        }
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"moments": "raw", "orders": 3, "steps": 2, "teleport": 0.2},
        {"moments": "central", "temperature": 1.0, "steps": 0},
    ],
)
@pytest.mark.parametrize("graphs", [SIX, list(ODD.values())], ids=["alike", "odd"])
def test_a_client_sends_what_the_algorithm_says(graphs, settings):
    data, method = federation(graphs), dataclasses.replace(METHOD, **settings)
    server_state, model = begin(method, data), method.model(data.meta)
    for i, (update, _) in work(method, data.clients, server_state).items():
        trained = tree.add(server_state["parameters"], update.payload["delta"])
        logits = logits_of(model, trained, {}, data.clients[i].train.graph)
        slow = Transcription(method, data.clients[i], logits.tolist())
        expected = torch.tensor(slow.moments(), dtype=torch.float64)
        assert_close(update.payload["moments"], expected)
        assert float(update.payload["confidence"]) == pytest.approx(slow.confidence())
        assert tree.signature(update.payload) == tree.signature(
            method.template(method.broadcast(server_state, i))
        )


@pytest.mark.parametrize("threshold", [-1.0, 0.95, 0.98, 1.0])
def test_the_server_is_that_of_the_algorithm(data, threshold):
    method = dataclasses.replace(METHOD, threshold=threshold)
    server_state = begin(method, data)
    models = dict.fromkeys(range(6), server_state["parameters"])
    for ids in (range(6), (0, 2, 3, 5)):
        results = work(method, [data.clients[i] for i in ids], server_state)
        payloads = {i: update.payload for i, (update, _) in results.items()}
        trained = {i: tree.add(models[i], payload["delta"]) for i, payload in payloads.items()}
        moments = {i: payload["moments"].numpy() for i, payload in payloads.items()}
        confidences = {i: float(payload["confidence"]) for i, payload in payloads.items()}
        models |= served(trained, moments, confidences, threshold)
        server_state = next_state(method, server_state, results)
        for i in range(6):
            assert_close(method.broadcast(server_state, i)["parameters"], models[i])


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


def test_who_did_not_answer_keeps_its_mean_and_who_is_new_gets_that_of_all(data):
    server_state = begin(METHOD, data)
    results = work(METHOD, data.clients[:3], server_state)
    after = next_state(METHOD, server_state, results)
    later = next_state(METHOD, after, work(METHOD, data.clients[:2], after))
    assert later["clients"]["2"] is after["clients"]["2"]
    confidences = torch.stack([u.payload["confidence"] for u, _ in results.values()])
    deltas = torch.stack([u.payload["delta"]["head.space"] for u, _ in results.values()])
    mean = torch.tensordot(confidences / confidences.sum(), deltas, 1)
    for client_id in (3, HOLDOUT):
        found = METHOD.broadcast(after, client_id)["parameters"]["head.space"]
        assert_close(found, server_state["parameters"]["head.space"] + mean)


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
