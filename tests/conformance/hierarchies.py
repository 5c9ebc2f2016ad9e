"""HierarchyEmbedding: rows of nodes, trained pair by pair and averaged row by row."""

import math
from dataclasses import replace

import torch

from fedbolic.data import BalancedTree, PartitionedHierarchy, Subtrees
from fedbolic.federated import LocalTraining
from fedbolic.hierarchies import HierarchyEmbedding
from fedbolic.nn import NegativeSampler
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG

METHOD = HierarchyEmbedding(
    dim=2,
    c=0.5,
    rounds=4,
    local=LocalTraining(1, 2),
    lr=0.2,
    negatives=NegativeSampler(4),
    max_weight=1,
    server_lr=0.8,
)


def gap(method, u, v):
    """Minus the score of a pair, whose exponentials lie apart by the law of cosines."""
    x, y = u[: method.dim], v[: method.dim]
    if method.score == "dot":
        found = -sum(a * b for a, b in zip(x, y, strict=True))
    elif not method.c:
        found = sum((a - b) ** 2 for a, b in zip(x, y, strict=True)).sqrt()
    else:
        root = math.sqrt(method.c)
        r, s = (root * sum(a * a for a in z).sqrt() for z in (x, y))
        half = sum((root * (a / r - b / s) / 2) ** 2 for a, b in zip(x, y, strict=True))
        square = ((r - s) / 2).sinh() ** 2 + r.sinh() * s.sinh() * half
        found = 2 * torch.asinh(square.sqrt()) / root
    if method.bias != "none":
        found = found - v[method.dim]
    return found - u[method.dim] if method.bias == "both" else found


def local_training(method, client, table, rng, *, lr):
    """A client's round, pair by pair, with torch's Adam; rows of other nodes stay."""
    w = table.clone().requires_grad_()
    adam = torch.optim.Adam([w], lr=lr)
    pairs = client.train.all()["x"]
    held = {tuple(pair) for pair in pairs.tolist()}
    known = torch.zeros(len(table), 1)
    known[pairs.flatten()] = 1
    plan = method.plan(method.model(client.meta), client, rng)
    for step, length in enumerate(plan.lengths.tolist()):
        losses = []
        for place in range(length):
            u, v = pairs[plan.positions[step, place]].tolist()
            drawn = plan.draws["negatives"][step, place].tolist()
            negatives = [j for j in drawn if j != u and (u, j) not in held]
            d = torch.stack([gap(method, w[u], w[j]) for j in (v, *negatives)])
            losses.append(-torch.log(torch.exp(-d)[0] / torch.exp(-d).sum()))
        adam.zero_grad()
        torch.stack(losses).mean().backward()
        w.grad *= known
        adam.step()
    return w.detach()


def run(method, data, cohorts):
    table = initial(method, data)["weight"]
    for t, cohort in enumerate(cohorts):
        left = (method.rounds - t) / (0.3 * method.rounds)
        lr = method.lr * (0.1 if t < 0.06 * method.rounds else min(1.0, max(0.02, left)))
        moved, weights = torch.zeros_like(table), torch.zeros(len(table), 1).double()
        for i in cohort:
            client = data.clients[i]
            rng = RNG.at("round", t + 1, "exchange", 0, "client", i)
            new = local_training(method, client, table, rng, lr=lr)
            nodes = client.train.all()["x"].flatten().tolist()
            for node in set(nodes):
                weight = min(method.max_weight, nodes.count(node))
                moved[node] += weight * (new[node] - table[node])
                weights[node] += weight
        mean = torch.where(weights > 0, moved / weights, 0.0)
        table = table + method.server_lr * mean
    return End({"parameters": {"weight": table}})


def branches():
    source = PartitionedHierarchy(BalancedTree(2, 2), Subtrees(3))
    return source.load(RNG).to("cpu", torch.float64)


SOURCE = "ours, `fedbolic/hierarchies/README.md`"
SHORT = ("schedule.cooling", "schedule.lowest")  # two rounds do not reach the falling step size
FLAT = replace(METHOD, c=0.0, bias="ancestor")
LOOPS = {
    "HierarchyEmbedding": Loop(METHOD, SOURCE, run, branches, (*SHORT, "score")),
    "HierarchyEmbedding, flat with a bias": Loop(FLAT, SOURCE, run, branches, SHORT),
}
