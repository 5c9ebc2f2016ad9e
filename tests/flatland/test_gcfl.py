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
from flatland import GCN, FlatLand, Gcfl, GradientNorms, ShiftedCosines, UpdateCosines
from flatland.affinities import dtw_distance, minimum_cut
from tests.flatland.cases import ODD, federation
from tests.flatland.test_joint import ALIKE, agree
from tests.flatland.test_method import begin, start, work
from tests.flatland.test_model import dense

NET = GCN((6, 4), dropout=0.0)
METHOD = Gcfl(NET, rounds=3, warmup=1)
PLUS = dataclasses.replace(METHOD, affinity=GradientNorms(2))
SIX = [*ALIKE, *ALIKE[:2]]


def invented(method, server_state, round, present, *, noise=0.3):
    """Updates of two groups of clients that pull in opposite directions, with invented norms."""
    generator = torch.Generator().manual_seed(round)
    payloads = {}
    for i in present:
        message = method.broadcast(server_state, i)
        delta = {
            name: (1 if i % 2 else -1) * torch.ones_like(x)
            + noise * torch.randn(x.shape, generator=generator, dtype=x.dtype)
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


class AuthorsLoop:
    """The authors' loop: every client holds its model, and one list of sequences is for all.

    The side of a cut with the smallest client comes first; networkx gives them in any order.
    """

    def __init__(self, method, parameters, sizes):
        self.method, self.sizes = method, sizes
        self.cluster_indices = [list(range(len(sizes)))]
        self.models = {i: {n: x.clone() for n, x in parameters.items()} for i in range(len(sizes))}
        self.seqs = {i: [] for i in range(len(sizes))}
        self.c_round = 0

    def serve(self, payloads):
        method, window = self.method, self.method.affinity.window
        self.c_round += 1
        dws = {i: flat(payload["delta"]) for i, payload in payloads.items()}
        for i, payload in payloads.items():
            self.seqs[i].append(float(payload.get("gradient_norm", 0.0)))
        new = []
        for idc in self.cluster_indices:
            max_norm = max(np.linalg.norm(dws[i]) for i in idc)
            mean_norm = np.linalg.norm(np.mean([dws[i] for i in idc], axis=0))
            divided = mean_norm < method.mean_bound and max_norm > method.largest_bound
            full = all(len(seq) >= window for seq in self.seqs.values())
            if not (divided and len(idc) > 2 and self.c_round > method.warmup and full):
                new.append(idc)
                continue
            if window:
                rows = [self.seqs[i][-window:] for i in idc]
                distances = np.array([[dtw_distance(a, b) for b in rows] for a in rows])
                new += sorted(cut_of(distances.max() - distances, idc))
                self.seqs = {i: [] for i in self.seqs}
            else:
                rows = np.array([dws[i] / np.linalg.norm(dws[i]) for i in idc])
                new += sorted(cut_of(rows @ rows.T + 1, idc))
        self.cluster_indices = new
        for cluster in new:
            total = sum(self.sizes[i] for i in cluster)
            for name in self.models[cluster[0]]:
                average = sum(self.sizes[i] * payloads[i]["delta"][name] for i in cluster) / total
                for i in cluster:
                    self.models[i][name] += average


AUTHORS = Gcfl(
    NET,
    warmup=2,
    affinity=ShiftedCosines(),
    units="absolute",
    mean_bound=3.3,  # above the plain mean of these updates, and below the weighted one
    bounded_mean="uniform",
    normed="body.*",
    forgets="all",
)
NORMS = GradientNorms(2, standardised=False)
AUTHORS_PLUS = dataclasses.replace(AUTHORS, affinity=NORMS, mean_bound=20.0)


@pytest.mark.parametrize("method", [AUTHORS, AUTHORS_PLUS], ids=["GCFL", "GCFL+"])
def test_the_authors_form_is_their_loop(method):
    data = federation([*SIX, *SIX[:3]])
    server_state = method.admit(begin(method, data), data.sizes)
    slow = AuthorsLoop(method, method.broadcast(server_state, 0)["parameters"], data.sizes)
    for round in range(1, 9):
        payloads = invented(method, server_state, round, range(9), noise=1.0)
        updates = [(i, Update(payload)) for i, payload in payloads.items()]
        server_state = method.server_update(server_state, method.aggregator.aggregate(updates))
        slow.serve(payloads)
        members = [of["members"].tolist() for of in server_state["clusters"].values()]
        assert sorted(members) == sorted(slow.cluster_indices)
        for i in range(9):
            assert_close(method.broadcast(server_state, i)["parameters"], slow.models[i])
    assert len(slow.cluster_indices) >= (4 if method.affinity.window else 2)


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_found_at_cosines_cut_at_zero_and_lost_at_cosines_plus_one(seed):
    """Two groups of 4 to 6 clients with cosines near 0.5 within and -0.5 between them."""
    generator = torch.Generator().manual_seed(seed)
    size = 4 + seed % 3
    groups = torch.tensor([1.0] * size + [-1.0] * size, dtype=torch.float64)
    order = torch.randperm(2 * size, generator=generator)
    groups = groups[order]
    noise = torch.randn(2 * size, 5000, generator=generator, dtype=torch.float64)
    common = torch.randn(5000, generator=generator, dtype=torch.float64)
    updates, none = groups[:, None] * common + noise, torch.zeros(2 * size, 0)
    planted = [sorted((groups == side).nonzero()[:, 0].tolist()) for side in (1, -1)]
    assert sorted(minimum_cut(UpdateCosines().matrix(updates, none))) == sorted(planted)
    assert 1 in map(len, minimum_cut(ShiftedCosines().matrix(updates, none)))


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


@pytest.mark.parametrize("normed", ["*", "body.*"])
def test_a_payload_holds_the_norm_of_the_last_gradient(normed):
    data = federation(ALIKE)
    local = dataclasses.replace(PLUS.local, epochs=1)
    method = dataclasses.replace(PLUS, local=local, normed=normed)
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
        counted = [
            g.flatten() for n, g in zip(p, gradients, strict=True) if n.startswith(normed[:-1])
        ]
        norm = torch.cat(counted).norm()
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
        {"bounded_mean": "other"},
        {"forgets": "other"},
        {"normed": "convolution.*"},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(Exception, match=next(iter(wrong))):
        Gcfl(**wrong).init(federation(ALIKE).meta, Rng(0))
