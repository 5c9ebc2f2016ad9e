"""Loops on graphs: dense convolutions, the steps of a client, and federated averaging."""

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy, elu

from fedbolic.optim import Adam
from flatland import GCN, FlatLand
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import average
from tests.flatland.cases import ODD, complete, federation, path, star

# smooth: a kink of relu lies at the 0 that nodes without features begin with, and rounding decides
WIDTHS = {"widths": (6, 4), "dropout": 0.0, "activation": "elu"}
NET = GCN(**WIDTHS)
# with an epsilon of 1e-8, a gradient of rounding errors would make a full step
SETTINGS = {"rounds": 4, "optimizer": Adam(eps=1e-3), "weight_decay": 1e-3, "lr": 0.02}
GRAPHS = [(path(9), 9), (star(8), 8), (complete(6), 9), ([], 8), (path(7), 10), (star(5), 7)]


def six_graphs():
    """Federation of six graphs of similar sizes."""
    return federation(GRAPHS)


def odd_graphs():
    """Federation with a graph of one node and one without edges."""
    return federation(ODD.values())


def closed(graph):
    """Dense A + I."""
    a = torch.eye(len(graph), dtype=torch.float64)
    a[graph.edges[0], graph.edges[1]] = 1.0
    return a


def normalised(a):
    """``D^{-1/2} (A + I) D^{-1/2}`` of Kipf and Welling, from ``A + I``."""
    share = a.sum(1).rsqrt()
    return share[:, None] * a * share


def convolutions(a, y, p, activation=elu):
    """Both convolutions, from the product of the features and the first matrix."""
    h = activation(a @ y + p["body.0.bias"])
    return activation(a @ h @ p["body.1.space"] + p["body.1.bias"])


def gcn(graph, p):
    """Logits of all nodes."""
    h = convolutions(normalised(closed(graph)), graph.features @ p["body.0.space"], p)
    return h @ p["head.space"] + p["head.bias"]


class Learner:
    """A client, which keeps its parameters and its optimiser between rounds.

    Args:
        method: Settings of the local steps.
        client: Its graph and training nodes.
        parameters: Values of all parameters before its first round.
        logits: Logits of all nodes, from a graph and parameters.
        rates: Step sizes of parameters without weight decay, by name.
    """

    def __init__(self, method, client, parameters, logits=gcn, rates=None):
        self.method, self.client, self.logits = method, client, logits
        self.p = {n: x.detach().clone().requires_grad_() for n, x in parameters.items()}
        rates, adam = rates or {}, method.optimizer
        decayed = [x for n, x in self.p.items() if n not in rates]
        others = [{"params": [self.p[n]], "lr": rate} for n, rate in rates.items()]
        self.optimizer = torch.optim.Adam(
            [{"params": decayed, "weight_decay": method.weight_decay}, *others],
            lr=method.lr,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
        )

    def receive(self, received):
        """Take the values of some parameters."""
        with torch.no_grad():
            for name, value in received.items():
                self.p[name].copy_(value)

    def train(self, received, penalty=lambda p: 0.0):
        """Local epochs from the received values on the loss and a penalty; all values."""
        self.receive(received)
        for _ in range(self.method.local.epochs):
            self.optimizer.zero_grad()
            (self.loss() + penalty(self.p)).backward()
            self.optimizer.step()
        return self.values()

    def loss(self):
        """Mean cross-entropy of the training nodes."""
        train = self.client.train
        return cross_entropy(self.logits(train.graph, self.p)[train.nodes], train.labels)

    def values(self, names=None):
        """Copies of the values of some parameters, or of all."""
        return {n: self.p[n].detach().clone() for n in names or self.p}


def shared_names(method, parameters):
    """Parameters that are no client's own: the tables of these loops have patterns with a *."""

    def matches(pattern, name):
        head, _, tail = pattern.partition("*")
        return name.startswith(head) and name.endswith(tail)

    rows = method.sharing.items()
    found = {n: next(kind for row, kind in rows if matches(row, n)) for n in parameters}
    return [name for name, kind in found.items() if kind == "shared"]


def weights_of(method, data, cohort):
    """Weights of the clients of a round in their mean."""
    sizes = {i: len(data.clients[i].train) for i in cohort}
    return [sizes[i] if method.weights == "size" else 1.0 for i in cohort]


def models_of(learners, received, logits=gcn):
    """Networks after a round, by client, with the values that each would receive next."""
    found = {i: {**one.values(), **received[i]} for i, one in learners.items()}
    return {i: (lambda graph, p=p: logits(graph, p)) for i, p in found.items()}


def kept_by(learners, cohorts, shared):
    """Client states of those who took part: their personal parameters."""
    return {
        i: {"parameters": {n: x for n, x in learners[i].values().items() if n not in shared}}
        for i in set().union(*cohorts)
    }


def fedavg(method, data, cohorts, logits=gcn):
    """Federated averaging of the shared parameters, with the proximal term of FedProx."""
    theta = initial(method, data)
    learners = {client.id: Learner(method, client, theta, logits) for client in data.clients}
    names = shared_names(method, theta)
    theta = {n: theta[n] for n in names}
    for cohort in cohorts:
        received = theta

        def proximal(p, received=received):
            return method.proximal / 2 * sum((p[n] - x).square().sum() for n, x in received.items())

        ends = [learners[i].train(received, proximal) for i in cohort]
        mean = average(ends, weights_of(method, data, cohort))
        theta = {n: mean[n] for n in names}
    models = models_of(learners, dict.fromkeys(learners, theta), logits)
    if len(names) == len(learners[0].p):
        models[None] = lambda graph: logits(graph, theta)
    return End({"parameters": theta}, kept_by(learners, cohorts, names), models)


SHARED = FlatLand(NET, sharing={"*": "shared"}, proximal=0.5, **SETTINGS)
RATE = ("curvature_rate",)  # flat networks have no curvature
LOOPS = {
    "FedProx on graphs": Loop(SHARED, "Li et al. (2020), Algorithm 2", fedavg, odd_graphs, RATE),
    "FedPer on graphs": Loop(
        replace(SHARED, sharing={"head.*": "personal", "*": "shared"}, proximal=0.0),
        "Arivazhagan et al. (2019), Algorithm 1",
        fedavg,
        six_graphs,
        RATE,
    ),
}
