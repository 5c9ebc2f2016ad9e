"""APPLE: every client combines the core models of all."""

import math

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import Apple
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, batches, plain_network

METHOD = Apple(
    MLP((4,)), rounds=5, local=LocalTraining(2, 3), lr=0.3, relations_lr=0.1, mu=2.0, decay=0.6
)


def combination(p, cores):
    return {n: sum(p[j] * core[n] for j, core in enumerate(cores)) for n in cores[0]}


def local_training(method, cores, p, prior, client, round):
    """The loop of the box: both parts step on one loss, with a step size each."""
    own = {n: v.clone().requires_grad_() for n, v in cores[client.id].items()}
    cores = [own if k == client.id else core for k, core in enumerate(cores)]
    p = p.clone().requires_grad_()
    groups = [{"params": list(own.values())}, {"params": [p], "lr": method.relations_lr}]
    descent = torch.optim.SGD(groups, lr=method.lr)
    last = method.decay * method.rounds
    decay = (math.cos(math.pi * (round - 1) / last) + 1) / 2 if round - 1 < last else 0
    network = plain_network({n: v.detach() for n, v in own.items()})
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        loss = cross_entropy(functional_call(network, combination(p, cores), (x,)), y)
        loss = loss + decay * method.mu / 2 * (p - prior).square().sum()
        descent.zero_grad()
        loss.backward()
        descent.step()
    return {n: v.detach() for n, v in own.items()}, p.detach()


def run(method, data, cohorts):
    sizes = torch.tensor([client.size for client in data.clients], dtype=torch.float64)
    prior = sizes / sizes.sum()
    cores, relations = [initial(method, data) for _ in sizes], [prior for _ in sizes]
    for r, cohort in enumerate(cohorts, 1):
        found = {
            i: local_training(method, cores, relations[i], prior, data.clients[i], r)
            for i in cohort
        }
        cores = [found[i][0] if i in found else core for i, core in enumerate(cores)]
        relations = [found[i][1] if i in found else p for i, p in enumerate(relations)]
    stacked = {n: torch.stack([core[n] for core in cores]) for n in cores[0]}
    kept = {i: {"relations": relations[i]} for i in set().union(*cohorts)}
    models = {k: plain_network(combination(p, cores)) for k, p in enumerate(relations)}
    return End({"cores": stacked}, kept, models)


LOOPS = {"APPLE": Loop(METHOD, "Luo and Wu (2022), Algorithm 1", run)}
