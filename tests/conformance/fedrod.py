"""FedRoD: a generic head by a balanced loss, and a personal one next to it."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedRoD
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import (
    RNG,
    average,
    batches,
    federation,
    plain_network,
    values,
)

METHOD = FedRoD(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2)


def balanced_risk(logits, labels, counts):
    """Mean of the balanced softmax losses, from their definition."""
    odds = counts * logits.exp()
    return -(odds[torch.arange(len(labels)), labels] / odds.sum(dim=1)).log().mean()


def local_training(method, network, head, client, round):
    """One turn of a client, whose two losses have an optimiser each."""
    labels = client.train.tensors["y"].tolist()
    counts = torch.tensor([labels.count(c) for c in range(3)], dtype=torch.float64)
    generic = torch.optim.SGD(network.parameters(), lr=method.lr)
    personal = torch.optim.SGD(head.parameters(), lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        with torch.no_grad():
            z, g = network.body(x), network(x)
        personal.zero_grad()
        cross_entropy(g + head(z), y).backward()
        generic.zero_grad()
        balanced_risk(network(x), y, counts).backward()
        personal.step()
        generic.step()


def run(method, data, cohorts):
    theta, heads = initial(method, data), {}
    for client in data.clients:
        heads[client.id] = nn.Linear(4, 3).double()
        nn.init.zeros_(heads[client.id].weight)
        nn.init.zeros_(heads[client.id].bias)
    for r, cohort in enumerate(cohorts, 1):
        networks = {i: plain_network(theta) for i in cohort}
        for i, network in networks.items():
            local_training(method, network, heads[i], data.clients[i], r)
        weights = [len(data.clients[i].train) for i in cohort]
        theta = average([values(network) for network in networks.values()], weights)
    network = plain_network(theta)
    kept = {i: {"personal_head": values(heads[i])} for i in set().union(*cohorts)}
    models = {
        i: lambda x, head=head: network(x) + head(network.body(x)) for i, head in heads.items()
    }
    return End({"parameters": theta}, kept, {None: network, **models})


def one_class():
    """A federation in which a client has examples of one class only."""
    data = federation((7, 4, 12, 5))
    data.clients[0].train.tensors["y"].fill_(2)
    return data


SOURCE = "Chen and Chao (2022), Sec. 4"
LOOPS = {
    "FedRoD": Loop(METHOD, SOURCE, run),
    "FedRoD, a client with one class": Loop(METHOD, SOURCE, run, one_class),
}
