"""FedNova: deltas normalised by the steps that they took."""

from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedNova
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, everywhere, initial
from tests.federated.simple_method import RNG, average, batches, plain_network

METHOD = FedNova(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, momentum=0.9)


def accumulation(num_steps, momentum):
    """The vector a of Sec. 4: entry i is the weight of gradient i in the sum of all velocities."""
    powers = [[momentum ** max(s - i, 0) for i in range(num_steps)] for s in range(num_steps)]
    return np.tril(powers).sum(axis=0)


def local_training(method, theta, client, round):
    """The matrix product G a / |a| of the box from recorded gradients, and |a|."""
    network = plain_network(theta)
    descent = torch.optim.SGD(network.parameters(), lr=method.lr, momentum=method.momentum)
    gradients = []
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        descent.zero_grad()
        cross_entropy(network(x), y).backward()
        gradients.append({n: p.grad.clone() for n, p in network.named_parameters()})
        descent.step()
    a = accumulation(len(gradients), method.momentum)
    d = {n: sum(w * g[n] for w, g in zip(a, gradients, strict=True)) / a.sum() for n in theta}
    return d, a.sum()


def run(method, data, cohorts):
    theta = initial(method, data)
    for r, cohort in enumerate(cohorts, 1):
        found = [local_training(method, theta, data.clients[i], r) for i in cohort]
        weights = [len(data.clients[i].train) for i in cohort]
        d = average([d for d, _ in found], weights)
        effective = np.average([norm for _, norm in found], weights=weights)
        theta = {n: theta[n] - effective * method.lr * d[n] for n in theta}
    return End({"parameters": theta}, models=everywhere(data, theta))


SOURCE = "Wang et al. (2020), Algorithm 1"
LOOPS = {
    "FedNova": Loop(METHOD, SOURCE, run),
    "FedNova, no momentum": Loop(replace(METHOD, momentum=0.0), SOURCE, run),
}
