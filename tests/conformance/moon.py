"""MOON: features near those of the global model, far from those of the client's last one."""

import copy
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import Moon
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import Loop
from tests.conformance.norms import copied, end_of, federation_for_norms, first_network
from tests.federated.simple_method import RNG, NormNet, average, batches, values

METHOD = Moon(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, mu=2.0, temperature=0.7)


def local_training(method, network, previous, client, round):
    """``PartyLocalTraining`` of the box: the contrast is a cross-entropy with the label 0."""
    received = copy.deepcopy(network).eval()
    cosine = nn.CosineSimilarity(dim=-1)
    descent = torch.optim.SGD(network.parameters(), lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=method.local.batch_size):
        descent.zero_grad()
        z = network.body(x)
        with torch.no_grad():
            z_global, z_previous = received.body(x), previous.body(x)
        pair = torch.stack([cosine(z, z_global), cosine(z, z_previous)], dim=1)
        contrast = cross_entropy(pair / method.temperature, torch.zeros(len(x), dtype=torch.int64))
        (cross_entropy(network.head(z), y) + method.mu * contrast).backward()
        descent.step()


def run(method, data, cohorts):
    network, previous = first_network(method, data), {}
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            local = copy.deepcopy(network).train()
            before = previous.get(i) or copy.deepcopy(network).eval()
            local_training(method, local, before, data.clients[i], r)
            previous[i] = local.eval()
            ends.append(copied(local))
        network.load_state_dict(average(ends, [len(data.clients[i].train) for i in cohort]))
    bodies = {i: {"previous_body": {"parameters": values(old.body)}} for i, old in previous.items()}
    return end_of(network, data, bodies)


SOURCE = "Li et al. (2021), Algorithm 1"
LOOPS = {
    "MOON": Loop(METHOD, SOURCE, run),
    "MOON, batch norm": Loop(
        replace(METHOD, backbone=NormNet(), local=LocalTraining(2, 6)),
        SOURCE,
        run,
        federation_for_norms,
    ),
}
