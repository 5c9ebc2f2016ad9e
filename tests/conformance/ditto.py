"""Ditto: FedAvg, and next to it a model of every client near the global one."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import Ditto
from fedbolic.nn.network.backbone import MLP
from tests.conformance.fedavg import client_update
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average, batches, plain_network, values

METHOD = Ditto(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, personal_proximal=0.5)


def personal_steps(method, v, w, client, round):
    """Descent on the client's loss plus the distance to the global model."""
    network = plain_network(v)
    descent = torch.optim.SGD(network.parameters(), lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        descent.zero_grad()
        distance = sum((p - w[n]).square().sum() for n, p in network.named_parameters())
        (cross_entropy(network(x), y) + method.personal_proximal / 2 * distance).backward()
        descent.step()
    return values(network)


def run(method, data, cohorts):
    w, v = initial(method, data), {}
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            client = data.clients[i]
            ends.append(client_update(plain_network(w), client, r, method.lr))
            v[i] = personal_steps(method, v.get(i, w), w, client, r)
        w = average(ends, [len(data.clients[i].train) for i in cohort])
    models = {i: plain_network(own) for i, own in v.items()} | {None: plain_network(w)}
    return End({"parameters": w}, {i: {"own_parameters": own} for i, own in v.items()}, models)


LOOPS = {"Ditto": Loop(METHOD, "Li et al. (2021), Algorithm 1", run)}
