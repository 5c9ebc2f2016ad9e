"""FedMRUR: features near those of the global model on the hyperboloid, and steps of mean length."""

import copy
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedMRUR
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import Loop
from tests.conformance.norms import copied, end_of, federation_for_norms, first_network
from tests.federated.simple_method import RNG, NormNet, average, batches

METHOD = FedMRUR(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, mu=0.7, c=0.5)


def squared_distance(z, w, c):
    """Squared distance of the exponential maps at the origin, by the hyperbolic law of cosines."""
    a, b = (v.norm(dim=1).clamp_min(1e-30) for v in (z, w))
    turn = (z / a[:, None] - w / b[:, None]).square().sum(dim=1) / 4  # sin(angle / 2)^2
    a, b = c**0.5 * a, c**0.5 * b
    s = torch.sinh((a - b) / 2).square() + torch.sinh(a) * torch.sinh(b) * turn
    small = s < 1e-5  # where the root has no gradient, the series of asinh(sqrt(s))^2
    far = torch.asinh(torch.where(small, 1.0, s).sqrt()).square()
    return 4 / c * torch.where(small, s - s**2 / 3 + 8 * s**3 / 45, far)


def local_training(method, network, client, round):
    received = copy.deepcopy(network).eval()
    descent = torch.optim.SGD(network.parameters(), lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=method.local.batch_size):
        descent.zero_grad()
        z = network.body(x)
        with torch.no_grad():
            z_global = received.body(x)
        distance = squared_distance(z, z_global, method.c)
        (cross_entropy(network.head(z), y) + method.mu * distance.mean()).backward()
        descent.step()


def length(values):
    return torch.cat([value.flatten() for value in values.values()]).norm()


def run(method, data, cohorts):
    network = first_network(method, data)
    names = [name for name, _ in network.named_parameters()]
    for r, cohort in enumerate(cohorts, 1):
        before, ends, deltas = copied(network), [], []
        for i in cohort:
            local = copy.deepcopy(network).train()
            local_training(method, local, data.clients[i], r)
            ends.append(copied(local))
            deltas.append({n: ends[-1][n] - before[n] for n in names})
        sizes = [len(data.clients[i].train) for i in cohort]
        direction = average(deltas, sizes)
        mean = sum(length(d) * size for d, size in zip(deltas, sizes, strict=True)) / sum(sizes)
        step = {n: v * mean / length(direction) for n, v in direction.items()}
        network.load_state_dict(average(ends, sizes) | {n: before[n] + step[n] for n in names})
    return end_of(network, data)


SOURCE = "An et al. (2023), Secs. 4.1 and 4.2"
LOOPS = {
    "FedMRUR": Loop(METHOD, SOURCE, run),
    "FedMRUR, batch norm": Loop(
        replace(METHOD, backbone=NormNet(), local=LocalTraining(2, 6)),
        SOURCE,
        run,
        federation_for_norms,
    ),
}
