"""The reconstruction of FedGNN: anonymous neighbours, pseudo nodes, clipping and noise."""

from dataclasses import replace

import torch

from fedbolic.core.rng import Rng
from flatland import ExpandedGCN, FedGnn
from tests.conformance.graphs import (
    SETTINGS,
    WIDTHS,
    Learner,
    closed,
    convolutions,
    normalised,
    odd_graphs,
    six_graphs,
    weights_of,
)
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average

BITS = 2
METHOD = FedGnn(ExpandedGCN(**WIDTHS, bits=BITS), clip=0.02, noise=0.3, pseudo=3, **SETTINGS)


def buckets_of(graph, planes):
    """Number of every node's bucket: the signs of its projections."""
    return [sum(2**k * int(row @ planes[:, k] > 0) for k in range(BITS)) for row in graph.features]


def network(planes, table):
    """``GCN`` on a graph with a node for every bucket that occurs, whose embedding is known."""

    def logits(graph, p):
        buckets, n = buckets_of(graph, planes), len(graph)
        found = sorted(set(buckets))
        a = torch.eye(n + len(found), dtype=torch.float64)
        a[:n, :n] = closed(graph)
        for v, bucket in enumerate(buckets):
            new = n + found.index(bucket)
            a[v, new] = a[new, v] = 1
        y = torch.cat((graph.features @ p["body.0.space"], table[found]))
        h = convolutions(normalised(a), y, p)
        return (h @ p["head.space"] + p["head.bias"])[:n]

    return logits


def embeddings(method, graph, planes, space, draws):
    """Sums of a client's embeddings and their number in every bucket, with pseudo nodes."""
    y, buckets = graph.features @ space, buckets_of(graph, planes)
    places = torch.randint(2**BITS, (method.pseudo,), generator=draws)
    normal = torch.randn(method.pseudo, y.shape[1], generator=draws).double()
    pseudo = y.mean(0) + y.std(0, correction=0) * normal
    sums, counts = torch.zeros(2**BITS, y.shape[1]).double(), torch.zeros(2**BITS).double()
    for bucket, row in zip([*buckets, *places.tolist()], [*y, *pseudo], strict=True):
        sums[bucket] += row
        counts[bucket] += 1
    return sums, counts


def table_of(sent, without=None):
    """Mean embeddings of every bucket over the clients of the last round."""
    table = torch.zeros(2**BITS, WIDTHS["widths"][0], dtype=torch.float64)
    others = [values for i, values in sent.items() if i != without]
    for bucket in range(2**BITS):
        count = sum(counts[bucket] for _, counts in others)
        if count:
            table[bucket] = sum(sums[bucket] for sums, _ in others) / count
    return table


def hidden(method, delta, draws):
    """Clipped deltas with Laplace noise in the scale of their mean absolute value."""
    found = {}
    u = torch.rand(sum(x.numel() for x in delta.values()), generator=draws, dtype=torch.float64)
    u = u - 0.5
    noise = (-u.sign() * torch.log(1 - 2 * u.abs())).split([x.numel() for x in delta.values()])
    for (name, x), drawn in zip(delta.items(), noise, strict=True):
        clipped = x.clamp(-method.clip, method.clip)
        found[name] = clipped + method.noise * clipped.abs().mean() * drawn.view_as(x)
    return found


def run(method, data, cohorts):
    first = initial(method, data)
    theta = {n: x for n, x in first.items() if n != "body.0.table"}
    seed = method.init(data.meta, RNG.at("init"))["seed"]
    planes = torch.randn(5, BITS, generator=Rng(seed).at("signatures").generator()).double()
    learners = {client.id: Learner(method, client, theta) for client in data.clients}
    sent = {}
    for r, cohort in enumerate(cohorts, 1):
        deltas, sending = [], {}
        for i in cohort:
            stream = RNG.at("round", r, "exchange", 0, "client", i).at("noise").number()
            learners[i].logits = network(planes, table_of(sent, without=i))
            end, graph = learners[i].train(theta), data.clients[i].train.graph
            draws = Rng(stream).at("pseudo").generator()
            sending[i] = embeddings(method, graph, planes, end["body.0.space"], draws)
            draws = Rng(stream).at("delta").generator()
            deltas.append(hidden(method, {n: end[n] - theta[n] for n in theta}, draws))
        mean = average(deltas, weights_of(method, data, cohort))
        theta, sent = {n: theta[n] + mean[n] for n in theta}, sending
    server = {
        "parameters": theta,
        "sums": sum(sums for sums, _ in sent.values()),
        "counts": sum(counts for _, counts in sent.values()),
    }
    models = {i: with_parameters(network(planes, table_of(sent, i)), theta) for i in learners}
    models[None] = with_parameters(network(planes, table_of(sent)), theta)
    return End(server, models=models)


def with_parameters(logits, theta):
    return lambda graph: logits(graph, theta)


SOURCE = "Wu et al. (2021), reconstructed"
LOOPS = {
    "FedGNN": Loop(METHOD, SOURCE, run, six_graphs),
    "FedGNN, equal weights": Loop(replace(METHOD, weights="uniform"), SOURCE, run, odd_graphs),
}
