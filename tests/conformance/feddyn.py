"""FedDyn: a linear and a proximal term in every local loss."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedDyn
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, everywhere, initial
from tests.federated.simple_method import RNG, average, batches, plain_network, values

METHOD = FedDyn(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, alpha=0.3)


def local_minimum(method, theta, g, client, round):
    """Line 5 of the box, by gradient steps on the written loss."""
    network = plain_network(theta)
    descent = torch.optim.SGD(network.parameters(), lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        descent.zero_grad()
        loss = cross_entropy(network(x), y)
        for name, value in network.named_parameters():
            loss = loss - (g[name] * value).sum()
            loss = loss + method.alpha / 2 * (value - theta[name]).square().sum()
        loss.backward()
        descent.step()
    return values(network)


def run(method, data, cohorts):
    theta, alpha = initial(method, data), method.alpha
    zeros = {name: torch.zeros_like(value) for name, value in theta.items()}
    h, g = dict(zeros), {client.id: dict(zeros) for client in data.clients}
    for r, cohort in enumerate(cohorts, 1):
        local = {i: local_minimum(method, theta, g[i], data.clients[i], r) for i in cohort}
        for i in cohort:
            g[i] = {n: g[i][n] - alpha * (local[i][n] - theta[n]) for n in theta}
        drift = {n: sum(x[n] - theta[n] for x in local.values()) for n in theta}
        h = {n: h[n] - alpha / len(data.clients) * drift[n] for n in theta}
        mean = average(list(local.values()), [1.0] * len(cohort))
        theta = {n: mean[n] - h[n] / alpha for n in theta}
    linear = {i: {"linear": g[i]} for i in set().union(*cohorts)}
    return End({"parameters": theta, "h": h}, linear, everywhere(data, theta))


LOOPS = {"FedDyn": Loop(METHOD, "Acar et al. (2021), Algorithm 1", run)}
