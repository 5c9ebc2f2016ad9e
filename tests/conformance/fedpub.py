"""FED-PUB: means by the similarity of networks, and masks that stay at the clients."""

import torch
from torch.nn.functional import elu

from flatland import FedPub, MaskedGCN
from flatland.rivals.fedpub import random_graph
from tests.conformance.graphs import (
    SETTINGS,
    WIDTHS,
    Learner,
    closed,
    kept_by,
    models_of,
    normalised,
    six_graphs,
)
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG

METHOD = FedPub(
    MaskedGCN(**WIDTHS, threshold=0.99), temperature=5.0, proximal=0.02, sparsity=0.003, **SETTINGS
)


def last_convolution(graph, p):
    a = normalised(closed(graph))
    h = elu(a @ graph.features @ (p["body.0.space"] * p["body.0.mask"]) + p["body.0.bias"])
    return a @ h @ (p["body.1.space"] * p["body.1.mask"]) + p["body.1.bias"]


def masked(graph, p):
    h = elu(last_convolution(graph, p))
    return h @ (p["head.space"] * p["head.mask"]) + p["head.bias"]


def evaluated(method, p):
    """Parameters outside training, where small masks count as 0."""
    low = method.network.threshold
    return {
        n: torch.where(x.abs() >= low, x, 0.0) if n.endswith("mask") else x for n, x in p.items()
    }


def means(trained, embeddings, temperature):
    """A mean of all networks for each client, by a softmax of cosines."""
    found = {}
    for i, own in embeddings.items():
        cosines = [own @ h / (own.norm() * h.norm()) for h in embeddings.values()]
        shares = torch.stack(cosines).mul(temperature).exp()
        shares = (shares / shares.sum()).tolist()
        found[i] = {
            n: sum(a * trained[j][n] for a, j in zip(shares, trained, strict=True))
            for n in trained[i]
        }
    return found


def run(method, data, cohorts):
    theta = initial(method, data)
    common = {n: x for n, x in theta.items() if not n.endswith("mask")}
    learners = {one.id: Learner(method, one, theta, masked) for one in data.clients}
    seed = method.init(data.meta, RNG.at("init"))["seed"]
    random = random_graph(seed, 5, torch.device("cpu"), torch.float64)  # drawn by the server
    own = {}
    for cohort in cohorts:
        trained, embeddings = {}, {}
        for i in cohort:
            received = own.get(i, common)

            def penalty(p, received=received):
                distance = sum((p[n] - x).square().sum() for n, x in received.items())
                sizes = sum(x.abs().sum() for n, x in p.items() if n.endswith("mask"))
                return method.proximal / 2 * distance + method.sparsity * sizes

            end = learners[i].train(received, penalty)
            trained[i] = {n: end[n] for n in common}
            embeddings[i] = last_convolution(random, evaluated(method, end)).mean(0)
        own |= means(trained, embeddings, method.temperature)
        common = {n: sum(x[n] for x in trained.values()) / len(cohort) for n in common}
    received = {i: own.get(i, common) for i in learners}
    return End(
        {"parameters": common, "clients": {str(i): x for i, x in own.items()}},
        kept_by(learners, cohorts, common),
        models_of(learners, received, lambda graph, p: masked(graph, evaluated(method, p))),
    )


LOOPS = {"FED-PUB": Loop(METHOD, "Baek et al. (2023), Algorithms 1 and 2", run, six_graphs)}
