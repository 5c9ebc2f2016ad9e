"""GCFL and GCFL+ compared with a literal transcription of the algorithm, with networkx's cut."""

import dataclasses
import itertools

import networkx
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedbolic import tree
from fedbolic.data import HOLDOUT
from fedbolic.federated import Cohort, Sequential, Trainer, Update
from fedbolic.rng import Rng
from flatland import GCN, FlatLand, Gcfl, GradientNorms
from flatland.affinities import dtw_distance
from tests.flatland.cases import ODD, federation
from tests.flatland.test_joint import ALIKE, agree
from tests.flatland.test_method import begin, start, work
from tests.flatland.test_model import dense

NET = GCN((6, 4), dropout=0.0)
METHOD = Gcfl(NET, rounds=3, warmup=1)
PLUS = dataclasses.replace(METHOD, affinity=GradientNorms(2))
SIX = [*ALIKE, *ALIKE[:2]]


def invented(method, server_state, round, present):
    """Updates of two groups of clients that pull in opposite directions, with invented norms."""
    generator = torch.Generator().manual_seed(round)
    payloads = {}
    for i in present:
        message = method.broadcast(server_state, i)
        delta = {
            name: (1 if i % 2 else -1) * torch.ones_like(x)
            + 0.3 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
            for name, x in message["parameters"].items()
        }
        norm = torch.tensor((round + 0.1 * i) ** (2.0 if i % 2 else 0.5), dtype=torch.float64)
        payloads[i] = {"delta": delta, "gradient_norm": norm}
        if not method.affinity.window:
            del payloads[i]["gradient_norm"]
    return payloads


def flat(delta):
    return np.concatenate([x.numpy().ravel() for x in delta.values()])


def cut_of(weights, members):
    graph = networkx.Graph()
    for (a, i), (b, j) in itertools.combinations(enumerate(members), 2):
        graph.add_edge(i, j, weight=float(weights[a, b]))
    return [sorted(side) for side in networkx.stoer_wagner(graph)[1]]


class Transcription:
    """The server of the papers' algorithm, with lists and NumPy."""

    def __init__(self, method, parameters, sizes):
        self.method, self.sizes = method, sizes
        self.clusters = [list(range(len(sizes)))]
        self.models = {i: dict(parameters) for i in range(len(sizes))}
        self.norms = {i: [] for i in range(len(sizes))}
        self.round, self.unit = 0, None

    def serve(self, payloads):
        self.round += 1
        changes = {i: flat(payload["delta"]) for i, payload in payloads.items()}
        self.unit = self.unit or max(np.linalg.norm(x) for x in changes.values())
        for i, payload in payloads.items():
            self.norms[i].append(float(payload.get("gradient_norm", 0.0)))
        clusters = []
        for members in self.clusters:
            clusters += self.split(members, changes)
        self.clusters = clusters
        for members in self.clusters:
            there = [i for i in members if i in payloads]
            total = sum(self.sizes[i] for i in there)
            for name in self.models[members[0]]:
                moved = self.models[members[0]][name] + sum(
                    self.sizes[i] / total * payloads[i]["delta"][name] for i in there
                )
                for i in members:
                    self.models[i][name] = moved

    def split(self, members, changes):
        method, window = self.method, self.method.affinity.window
        if self.round <= method.warmup or len(members) <= 2 or not set(members) <= set(changes):
            return [members]
        total = sum(self.sizes[i] for i in members)
        mean = np.linalg.norm(sum(self.sizes[i] / total * changes[i] for i in members))
        largest = max(np.linalg.norm(changes[i]) for i in members)
        scale = self.unit if method.units == "first round" else 1
        if not (mean < method.mean_bound * scale and largest > method.largest_bound * scale):
            return [members]
        if not window:
            rows = np.array([changes[i] / np.linalg.norm(changes[i]) for i in members])
            return cut_of(np.maximum(rows @ rows.T, 0), members)
        if any(len(self.norms[i]) < window for i in members):
            return [members]
        rows = np.array([self.norms[i][-window:] for i in members])
        rows = rows / rows.std(axis=1, keepdims=True)
        distances = np.array([[dtw_distance(list(a), list(b)) for b in rows] for a in rows])
        for i in members:
            self.norms[i] = []
        return cut_of(distances.max() - distances, members)


@pytest.mark.parametrize("units", ["first round", "absolute"])
@pytest.mark.parametrize("method", [METHOD, PLUS], ids=["GCFL", "GCFL+"])
def test_the_server_is_that_of_the_papers_algorithm(method, units):
    method = dataclasses.replace(method, units=units, mean_bound=0.9 if units[0] == "f" else 5.0)
    data = federation(SIX)
    server_state = method.admit(begin(method, data), data.sizes)
    slow = Transcription(method, method.broadcast(server_state, 0)["parameters"], data.sizes)
    present = [range(6), range(6), (0, 1, 2, 5), range(6), range(1, 6), range(6), range(6)]
    for round, ids in enumerate(present, 1):
        payloads = invented(method, server_state, round, ids)
        updates = [(i, Update(payload)) for i, payload in payloads.items()]
        server_state = method.server_update(server_state, method.aggregator.aggregate(updates))
        slow.serve(payloads)
        members = [of["members"].tolist() for of in server_state["clusters"].values()]
        assert sorted(members) == sorted(slow.clusters)
        for i in range(6):
            assert_close(method.broadcast(server_state, i)["parameters"], slow.models[i])
    assert len(slow.clusters) > 1
    if not method.affinity.window:
        assert sorted(slow.clusters)[0] == [0, 2, 4]


def test_no_cluster_of_two_and_no_early_round_is_split():
    data = federation(ALIKE[:2])
    method = dataclasses.replace(METHOD, warmup=0, mean_bound=9.0)
    server_state = method.admit(begin(method, data), data.sizes)
    for round in (1, 2):
        payloads = invented(method, server_state, round, range(2))
        updates = [(i, Update(payload)) for i, payload in payloads.items()]
        server_state = method.server_update(server_state, method.aggregator.aggregate(updates))
    assert len(server_state["clusters"]) == 1


def test_a_payload_holds_the_norm_of_the_last_gradient():
    data = federation(ALIKE)
    method = dataclasses.replace(PLUS, local=dataclasses.replace(PLUS.local, epochs=1))
    server_state = begin(method, data)
    for i, (update, _) in work(method, data.clients, server_state).items():
        graph, batch = data.clients[i].train.graph, data.clients[i].train.all()
        p = tree.clone(start(method, data, server_state, i)[0]["parameters"])
        for value in p.values():
            value.requires_grad_()
        a, h = dense(graph)
        share = a.sum(1).rsqrt()
        a = share[:, None] * a * share
        for layer in ("body.0", "body.1"):
            h = (a @ h @ p[f"{layer}.space"] + p[f"{layer}.bias"]).relu()
        logits = (h @ p["head.space"] + p["head.bias"])[batch["node"]]
        gradients = torch.autograd.grad(cross_entropy(logits, batch["y"]), list(p.values()))
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        assert_close(update.payload["gradient_norm"], norm)


def test_in_one_cluster_it_is_fedavg():
    data = federation(ALIKE)
    ours = dataclasses.replace(METHOD, warmup=9)
    theirs = FlatLand(NET, rounds=3, sharing={"*": "shared"})
    ends = [
        list(Trainer(Sequential()).run(m, data, Rng(3)))[-1][0].server_state for m in (ours, theirs)
    ]
    assert_close(ends[0]["clusters"]["0"]["parameters"], ends[1]["parameters"])


def test_the_server_has_no_model_of_all():
    data = federation(ALIKE)
    server_state = begin(METHOD, data)
    assert METHOD.evaluate(METHOD.broadcast(server_state, HOLDOUT), data.holdout, {}, Rng(0)) == {}


@pytest.mark.parametrize("graphs", [SIX, list(ODD.values())], ids=["alike", "odd"])
@pytest.mark.parametrize("method", [METHOD, PLUS], ids=["GCFL", "GCFL+"])
@pytest.mark.parametrize("cohort", [1.0, 0.6])
def test_a_block_of_clients_is_each_of_them_alone(method, graphs, cohort, caplog):
    network = dataclasses.replace(NET, dropout=0.5)
    method = dataclasses.replace(method, network=network, proximal=0.1, mean_bound=2.0)
    agree(method, federation(graphs), caplog, cohort=Cohort(cohort))


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean_bound": 0.0},
        {"largest_bound": -1.0},
        {"warmup": -1},
        {"units": "other"},
        {"weights": "other"},
        {"sharing": {"*": "personal"}},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(Exception, match=next(iter(wrong))):
        Gcfl(**wrong).init(federation(ALIKE).meta, Rng(0))
