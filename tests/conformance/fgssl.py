"""FGSSL: dense views of a graph, and both further terms node by node and pair by pair."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.nn.layers.dropout import mixed_bits
from flatland import ContrastedGCN, Fgssl
from flatland.rivals.fgssl import kept
from tests.conformance.graphs import (
    SETTINGS,
    WIDTHS,
    Learner,
    closed,
    convolutions,
    gcn,
    models_of,
    normalised,
    odd_graphs,
    six_graphs,
    weights_of,
)
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average

METHOD = Fgssl(
    ContrastedGCN(**WIDTHS, strong_edges=0.6, relation_temperature=0.4),
    contrast=0.7,
    distillation=0.9,
    **SETTINGS,
)


def view(graph, seed, edges, features):
    """Matrix of the convolutions and features of a random view."""
    n, width = graph.features.shape
    start, at = mixed_bits(torch.tensor(seed)), torch.arange(n)
    pairs = torch.maximum(at[:, None], at) * 2**31 + torch.minimum(at[:, None], at)
    there = kept(start, pairs, edges) | torch.eye(n).bool()
    taken = kept(start, -1 - torch.arange(width), features)
    return normalised(closed(graph) * there), graph.features * taken


def encoded(a, x, p):
    """Features and logits."""
    h = convolutions(a, x @ p["body.0.space"], p)
    return h, h @ p["head.space"] + p["head.bias"]


def cosines(x, y):
    """Cosines of the rows of two matrices; shorter rows count less."""
    x, y = (z / z.norm(dim=1, keepdim=True).clamp(min=1e-3) for z in (x, y))
    return x @ y.T


def gap(graph, z, other, temperature):
    """Mean over nodes of the divergence between the shares of their neighbours."""
    near = (closed(graph) - torch.eye(len(graph))).bool()
    total = 0.0
    for i in range(len(graph)):
        if near[i].any():
            goal, found = (
                (cosines(x[i : i + 1], x)[0, near[i]] / temperature).softmax(0) for x in (other, z)
            )
            total = total + (goal * (goal / found).log()).sum()
    return total / len(graph)


def contrast(h, other, y, temperature):
    """Mean over nodes of their contrastive losses."""
    phi, total = (cosines(h, other) / temperature).exp(), 0.0
    for i in range(len(y)):
        near = phi[i, y == y[i]]
        total = total - (near / (near + phi[i, y != y[i]].sum())).log().mean()
    return total / len(y)


class Contrasting(Learner):
    """A client with the received model and the seeds of its views."""

    def begin(self, theta, stream):
        self.theta = theta
        self.seeds = {
            kind: stream.at(f"{kind}.dropout_seed").number() for kind in ("weak", "strong")
        }

    def loss(self):
        method, graph, train = self.method, self.client.train.graph, self.client.train
        of, at, y = method.network, train.nodes, train.labels
        weak = view(graph, self.seeds["weak"], of.weak_edges, of.weak_features)
        strong = view(graph, self.seeds["strong"], of.strong_edges, of.strong_features)
        self.seeds = {kind: seed + 1 for kind, seed in self.seeds.items()}
        other, z_other = encoded(*weak, self.theta)
        h, z = encoded(*strong, self.p)
        pairs = contrast(h[at], other[at], y, method.temperature)
        relations = gap(graph, z, z_other, of.relation_temperature)
        entropy = cross_entropy(gcn(graph, self.p)[at], y)
        return entropy + method.contrast * pairs + method.distillation * relations


def run(method, data, cohorts):
    theta = initial(method, data)
    theta = {n: x for n, x in theta.items() if not n.startswith("received.")}
    learners = {client.id: Contrasting(method, client, theta) for client in data.clients}
    for r, cohort in enumerate(cohorts, start=1):
        for i in cohort:
            stream = RNG.at("round", r, "exchange", 0, "client", i).at("dropout")
            learners[i].begin(theta, stream)
        ends = [learners[i].train(theta) for i in cohort]
        theta = average(ends, weights_of(method, data, cohort))
    models = models_of(learners, dict.fromkeys(learners, theta))
    models[None] = lambda graph: gcn(graph, theta)
    return End({"parameters": theta}, {}, models)


SOURCE = "Huang et al. (2023), arXiv:2406.18937, and its authors' code"
LOOPS = {
    "FGSSL": Loop(METHOD, SOURCE, run, six_graphs),
    "FGSSL, odd graphs": Loop(METHOD, SOURCE, run, odd_graphs),
}
