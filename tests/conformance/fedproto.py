"""FedProto: clients exchange the mean features of their classes, and no weights."""

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy, mse_loss

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAvg, FedProto
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import SIZES, End, Loop, initial
from tests.federated.simple_method import RNG, batches, federation, plain_network, values

METHOD = FedProto(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, prototype_weight=2.0)


def local_training(method, network, prototypes, client, round):
    """``LocalUpdate`` of the box: the prototypes of the client's classes."""
    descent = torch.optim.SGD(network.parameters(), lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        z = network.body(x)
        target = z.detach().clone()
        for i, label in enumerate(y.tolist()):
            target[i] = prototypes.get(label, target[i])
        loss = cross_entropy(network.head(z), y) + method.prototype_weight * mse_loss(z, target)
        descent.zero_grad()
        loss.backward()
        descent.step()
    x, y = client.train.tensors["x"], client.train.tensors["y"]
    z = network.body(x).detach()
    return {c: z[y == c].mean(dim=0) for c in set(y.tolist())}


def logits_of(method, network, prototypes):
    def nearest(x):
        z, unknown = network.body(x), torch.full((len(x),), 100.0).double()  # as the authors'
        gaps = [
            (z - prototypes[c]).square().mean(dim=1) if c in prototypes else unknown
            for c in range(3)
        ]
        return -torch.stack(gaps, dim=1)

    return network if method.prediction == "head" else nearest


def run(method, data, cohorts):
    theta = initial(FedAvg(method.backbone), data)
    prototypes, networks = {}, {client.id: plain_network(theta) for client in data.clients}
    for r, cohort in enumerate(cohorts, 1):
        found = [
            local_training(method, networks[i], prototypes, data.clients[i], r) for i in cohort
        ]
        for c in set().union(*found):
            of_class = [of_client[c] for of_client in found if c in of_client]
            prototypes = {**prototypes, c: torch.stack(of_class).mean(dim=0)}
    none = torch.zeros(4, dtype=torch.float64)
    server = {
        "known": torch.tensor([int(c in prototypes) for c in range(3)]),
        "prototypes": torch.stack([prototypes.get(c, none) for c in range(3)]),
    }
    kept = {i: {"parameters": values(networks[i])} for i in set().union(*cohorts)}
    models = {i: logits_of(method, network, prototypes) for i, network in networks.items()}
    return End(server, kept, models)


def skewed():
    """Client 0 has class 2 only, and class 2 is nowhere else."""
    data = federation(SIZES)
    for client in data.clients:
        labels = client.train.tensors["y"]
        labels.copy_(torch.arange(len(labels)) % 2 if client.id else torch.tensor(2))
    return data


SOURCE = "Tan et al. (2022), Algorithm 1"
HEAD = replace(METHOD, prediction="head")
LOOPS = {
    "FedProto": Loop(METHOD, SOURCE, run),
    "FedProto, heads": Loop(HEAD, SOURCE, run),
    "FedProto, one class each": Loop(METHOD, SOURCE, run, skewed),
    "FedProto, one class each, heads": Loop(HEAD, SOURCE, run, skewed),
}
