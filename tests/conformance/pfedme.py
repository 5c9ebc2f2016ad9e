"""pFedMe: personal models as proximal points of local models."""

import copy

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import PFedMe
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average, batches, plain_network, values

METHOD = PFedMe(
    MLP((4,)), rounds=4, local=LocalTraining(2, 3, repeats=3), lr=0.3,
    personal_lr=0.2, personal_proximal=1.5, server_lr=0.7,
)  # fmt: skip


def local_rounds(method, w, client, round):
    """Lines 4 to 8 of the box; the inner problem by gradient steps on its written objective."""
    local, network = copy.deepcopy(w), plain_network(w)
    inner = torch.optim.SGD(network.parameters(), lr=method.personal_lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        for _ in range(method.local.repeats):
            inner.zero_grad()
            distance = sum((p - local[n]).square().sum() for n, p in network.named_parameters())
            (cross_entropy(network(x), y) + method.personal_proximal / 2 * distance).backward()
            inner.step()
        theta = values(network)
        rate = method.lr * method.personal_proximal
        local = {n: local[n] - rate * (local[n] - theta[n]) for n in local}
    return local, network


def run(method, data, cohorts):
    w, personal = initial(method, data), {}
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            end, personal[i] = local_rounds(method, w, data.clients[i], r)
            ends.append(end)
        mean = average(ends, [1.0] * len(ends))
        w = {n: (1 - method.server_lr) * w[n] + method.server_lr * mean[n] for n in w}
    kept = {i: {"personal": {"parameters": values(network)}} for i, network in personal.items()}
    return End({"parameters": w}, kept, {None: plain_network(w), **personal})


LOOPS = {"pFedMe": Loop(METHOD, "Dinh et al. (2020), Algorithm 1", run)}
