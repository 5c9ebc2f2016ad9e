"""FedMTL: local models with a penalty on their distance from the mean, with the full matrices."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedMTL
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, batches, plain_network, values

METHOD = FedMTL(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.1, coupling=0.7)


def vector(parameters):
    return torch.cat([value.flatten() for value in parameters])


def penalty(columns):
    """The trace of W Omega W' with the full matrices."""
    w, k = torch.stack(columns, dim=1), len(columns)
    omega = torch.linalg.matrix_power(torch.eye(k).double() - 1 / k, 2)
    return torch.trace(w @ omega @ w.T)


def local_training(method, models, client, round):
    """Steps on one column of W, from automatic gradients of the whole objective."""
    network = plain_network(models[client.id])
    fixed = [vector(model.values()) for model in models]
    descent = torch.optim.SGD(network.parameters(), lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        own = vector(network.parameters())
        columns = [own if k == client.id else column for k, column in enumerate(fixed)]
        descent.zero_grad()
        (cross_entropy(network(x), y) + method.coupling * penalty(columns)).backward()
        descent.step()
    return values(network)


def run(method, data, cohorts):
    models = [initial(method, data) for _ in data.clients]
    for r, cohort in enumerate(cohorts, 1):
        ends = {i: local_training(method, models, data.clients[i], r) for i in cohort}
        models = [ends.get(i, model) for i, model in enumerate(models)]
    mean = {n: sum(model[n] for model in models) / len(models) for n in models[0]}
    kept = {i: {"parameters": models[i]} for i in set().union(*cohorts)}
    return End({"mean": mean}, kept, {i: plain_network(model) for i, model in enumerate(models)})


LOOPS = {"FedMTL": Loop(METHOD, "Smith et al. (2017), Eq. (1), as PFLlib solves it", run)}
