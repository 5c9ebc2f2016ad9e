"""FedDBE: a trained bias of the features at each client, and a penalty on their running mean."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedDBE
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average, batches, plain_network, values

METHOD = FedDBE(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, penalty=3.0, momentum=0.4)


def local_training(method, network, bias, consensus, client, round):
    """Steps on model and bias; the running mean of the features, which starts at 0."""
    bias, running = bias.clone().requires_grad_(), torch.zeros(4, dtype=torch.float64)
    descent = torch.optim.SGD([*network.parameters(), bias], lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        z = network.body(x)
        running = (1 - method.momentum) * running.detach() + method.momentum * z.mean(dim=0)
        if consensus is None:
            loss = cross_entropy(network.head(z), y)
        else:
            gap = (running - consensus).square().mean() / 2
            loss = cross_entropy(network.head(z + bias), y) + method.penalty * gap
        descent.zero_grad()
        loss.backward()
        descent.step()
    return values(network), bias.detach(), running.detach()


def with_bias(parameters, bias):
    network = plain_network(parameters)
    return lambda x: network.head(network.body(x) + bias)


def run(method, data, cohorts):
    theta, consensus = initial(method, data), None
    biases = [torch.zeros(4, dtype=torch.float64) for _ in data.clients]
    for r, cohort in enumerate(cohorts, 1):
        ends, means = [], []
        for i in cohort:
            network = plain_network(theta)
            end, biases[i], mean = local_training(
                method, network, biases[i], consensus, data.clients[i], r
            )
            ends.append(end)
            means.append({"mean": mean})
        sizes = [float(data.clients[i].size) for i in cohort]
        theta = average(ends, sizes)
        consensus = average(means, sizes)["mean"] if consensus is None else consensus
    models = {i: with_bias(theta, bias) for i, bias in enumerate(biases)}
    kept = {i: {"bias": biases[i]} for i in set().union(*cohorts)}
    server = {"parameters": theta, "consensus": consensus}
    return End(server, kept, {**models, None: plain_network(theta)})


LOOPS = {"FedDBE": Loop(METHOD, "Zhang et al. (2023), Algorithm 1, arXiv:2311.14975", run)}
