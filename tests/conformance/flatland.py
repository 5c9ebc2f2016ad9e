"""FlatLand and the reconstruction of FedHGCN: graph convolutions in Lorentz spaces."""

import math
from dataclasses import replace

import torch
from torch.nn.functional import elu

from flatland import Constant, FlatLand, KeyNodeGCN, LorentzGCN
from flatland.key_nodes import ONE_SPACE
from tests.conformance.graphs import (
    SETTINGS,
    WIDTHS,
    Learner,
    closed,
    kept_by,
    models_of,
    odd_graphs,
    shared_names,
    six_graphs,
    weights_of,
)
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import average

RAW = "curvature.raw"
LOW, HIGH = 1e-2, 1e2
"""Bounds of the curvatures."""


def curvature(raw):
    return LOW + (HIGH - LOW) * raw.sigmoid()


def raw_curvature(c):
    return torch.tensor([math.log((c - LOW) / (HIGH - c))], dtype=torch.float64)


def estimate(graph):
    """Minus the mean of ``4 - d_i - d_j + 3 t_ij`` over the edges."""
    a = closed(graph) - torch.eye(len(graph), dtype=torch.float64)
    degrees, triangles = a.sum(1), a @ a
    edges = a.nonzero().tolist()
    ricci = [4 - degrees[i] - degrees[j] + 3 * triangles[i, j] for i, j in edges]
    mean = float(sum(ricci)) / len(edges) if edges else 0.0
    return -mean if mean < -0.01 else 0.1


def time_of(x, c):
    return (x.square().sum(1, keepdim=True) + 1 / c).sqrt()


def points_of(v, c):
    """Space coordinates of ``exp_o(v)``, at most ten radii of curvature away."""
    r = v.norm(dim=1, keepdim=True)
    u = (r * c**0.5).clamp(max=10)
    return u.sinh() / c**0.5 * v / torch.where(r > 0, r, 1.0)


def centroids(a, y, c):
    """Space coordinates of the centroids of rows; ``a`` has ones at the points that count."""
    share = a / a.sum(1, keepdim=True)
    z, z_t = share @ y, share @ time_of(y, c)
    return z / (c * (z_t.square() - z.square().sum(1, keepdim=True))).sqrt()


def lorentz(graph, p, a=None):
    """Logits of the paper's network; ``a`` has ones where a node gathers from another."""
    c, a = curvature(p[RAW]), closed(graph) if a is None else a
    x = points_of(graph.features, c)
    for layer in ("body.0", "body.1"):
        y = x @ p[f"{layer}.space"] + time_of(x, c) * p[f"{layer}.time"] + p[f"{layer}.bias"]
        x = elu(centroids(a, y, c))
    return x @ p["head.space"] + time_of(x, c) * p["head.time"] + p["head.bias"]


def federated(logits, start):
    """Algorithm 1: what is shared is averaged, the curvature as c; the rest stays.

    Args:
        logits: The network.
        start: Curvature at the start, from a client's graph.
    """

    def run(method, data, cohorts):
        theta = initial(method, data)
        names = shared_names(method, theta)
        fixed = method.sharing.get("curvature.*") == "fixed"
        rates = {} if fixed else {RAW: method.lr * method.curvature_rate}
        learners = {}
        for client in data.clients:
            raw = theta[RAW] if RAW in names else raw_curvature(start(client.train.graph))
            one = Learner(method, client, {**theta, RAW: raw}, logits, rates)
            one.p[RAW].requires_grad_(not fixed)
            learners[client.id] = one
        theta = {n: theta[n] for n in names}
        for cohort in cohorts:
            received = theta

            def proximal(p, received=received):
                squares = [(p[n] - x).square().sum() for n, x in received.items()]
                return method.proximal / 2 * sum(squares)

            ends = [learners[i].train(received, proximal) for i in cohort]
            ends = [{**end, RAW: curvature(end[RAW])} for end in ends]
            mean = average(ends, weights_of(method, data, cohort))
            mean[RAW] = raw_curvature(float(mean[RAW]))
            theta = {n: mean[n] for n in names}
        own = [*names, RAW] if fixed else names
        models = models_of(learners, dict.fromkeys(learners, theta), logits)
        return End({"parameters": theta}, kept_by(learners, cohorts, own), models)

    return run


def key_nodes(graph, share):
    """Nodes farthest from the centroid of themselves and their neighbours, at curvature -1."""
    x = points_of(graph.features, 1.0)
    z = centroids(closed(graph), x, 1.0)
    cosh = time_of(x, 1.0) * time_of(z, 1.0) - (x * z).sum(1, keepdim=True)
    scores = torch.acosh(cosh.clamp(min=1)).squeeze(1).tolist()
    order = sorted(range(len(graph)), key=lambda i: (-round(scores[i], 7), i))
    return order[: math.ceil(share * len(graph))]


def hgcn(share):
    """``LorentzGCN`` in which nodes gather from themselves and from key nodes."""

    def logits(graph, p):
        a, sends = closed(graph), torch.zeros(len(graph), dtype=torch.bool)
        sends[key_nodes(graph, share)] = True
        itself = torch.eye(len(graph), dtype=torch.bool)
        return lorentz(graph, p, torch.where(sends | itself, a, 0.0))

    return logits


METHOD = FlatLand(LorentzGCN(**WIDTHS), proximal=0.5, curvature_rate=2.0, **SETTINGS)
SHARE = 0.4
HGCN = replace(
    METHOD,
    network=KeyNodeGCN(**WIDTHS, share=SHARE),
    sharing=ONE_SPACE,
    curvature=Constant(),
    proximal=0.0,
)
BOX = "Liu et al. (2024), Algorithm 1"
LOOPS = {
    "FlatLand": Loop(METHOD, BOX, federated(lorentz, estimate), six_graphs),
    "FlatLand, equal weights": Loop(
        replace(METHOD, weights="uniform"), BOX, federated(lorentz, estimate), odd_graphs
    ),
    "FlatLand, all shared": Loop(
        replace(METHOD, sharing={"*": "shared"}),
        f"{BOX}, without decoupling",
        federated(lorentz, estimate),
        six_graphs,
    ),
    "FedHGCN": Loop(
        HGCN,
        "Du et al. (2024), reconstructed",
        federated(hgcn(SHARE), lambda graph: 1.0),
        odd_graphs,
        inert=("curvature_rate",),
    ),
}
