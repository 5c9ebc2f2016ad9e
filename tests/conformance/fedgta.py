"""FedGTA: means over clients whose propagated predictions have similar moments."""

import math
from dataclasses import replace

import torch
from torch.nn.functional import one_hot

from flatland import FedGta
from tests.conformance.graphs import (
    NET,
    SETTINGS,
    Learner,
    closed,
    gcn,
    kept_by,
    models_of,
    normalised,
    odd_graphs,
    six_graphs,
)
from tests.conformance.loop import End, Loop, initial

METHOD = FedGta(NET, threshold=0.7, **SETTINGS)


def soft_labels(method, client, p, temperature):
    """Propagated predictions, where training nodes have their labels."""
    graph, nodes = client.train.graph, client.train.nodes
    with torch.no_grad():
        first = gcn(graph, p).softmax(1)
    first[nodes] = one_hot(client.train.labels, first.shape[1]).double()
    labels, a = first, normalised(closed(graph))
    for _ in range(method.steps):
        labels = (1 - method.teleport) * (a @ labels) + method.teleport * first
    labels = (labels / temperature).softmax(1)
    labels[nodes] = first[nodes]
    return labels


def moments(method, labels):
    raw = [(labels**k).mean(0) for k in range(1, method.orders + 1)]
    central = [((labels - labels.mean(0)) ** k).mean(0) for k in range(2, method.orders + 1)]
    kinds = {"raw": raw, "central": central, "both": raw + central}
    return torch.cat(kinds[method.moments])


def confidence(labels, degrees):
    """Local smoothing confidence, with degrees that count the node itself."""
    total = 0.0
    for row, degree in zip(labels.tolist(), degrees.tolist(), strict=True):
        total += degree * sum(1 / math.e + (q * math.log(q) if q else 0) for q in row)
    return total


def weighted(models, weights):
    total = sum(weights)
    return {
        n: sum(w / total * x[n] for w, x in zip(weights, models, strict=True)) for n in models[0]
    }


def run(method, data, cohorts):
    common = initial(method, data)
    learners = {client.id: Learner(method, client, common) for client in data.clients}
    own = {}
    for cohort in cohorts:
        trained, m, h = {}, {}, {}
        for i in cohort:
            client = data.clients[i]
            trained[i] = learners[i].train(own.get(i, common))
            m[i] = moments(method, soft_labels(method, client, trained[i], 1.0))
            soft = soft_labels(method, client, trained[i], method.temperature)
            h[i] = confidence(soft, closed(client.train.graph).sum(1))
        for i in cohort:
            cosines = {j: float(m[i] @ m[j] / (m[i].norm() * m[j].norm())) for j in cohort}
            near = [j for j in cohort if j == i or cosines[j] >= method.threshold]
            own[i] = weighted([trained[j] for j in near], [h[j] for j in near])
        common = weighted([*trained.values()], [*h.values()])
    received = {i: own.get(i, common) for i in learners}
    return End(
        {"parameters": common, "clients": {str(i): x for i, x in own.items()}},
        kept_by(learners, cohorts, common),
        models_of(learners, received),
    )


BOX = "Li et al. (2023), Algorithms 1 and 2, with its code's choices"
RAW = replace(METHOD, moments="raw", orders=3, steps=2, teleport=0.2, threshold=0.6)
CENTRAL = replace(METHOD, moments="central", temperature=1.0, steps=0, threshold=0.65)

ORDERS = ("orders",)
"""One more order moves no cosine past the threshold; a test of FedGTA compares the payloads."""

LOOPS = {
    "FedGTA": Loop(METHOD, BOX, run, six_graphs, ORDERS),
    "FedGTA, raw moments": Loop(RAW, BOX, run, odd_graphs),
    "FedGTA, central moments": Loop(CENTRAL, BOX, run, odd_graphs, ("teleport", *ORDERS)),
}
