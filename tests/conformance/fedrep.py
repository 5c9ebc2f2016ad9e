"""FedRep: first the head with the body as received, then the body."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedRep
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average, batches, plain_network, values

METHOD = FedRep(MLP((4,)), rounds=4, local=LocalTraining(5, 3), lr=0.2, head_share=0.6)


def local_training(method, network, client, round):
    """Three epochs of the head, then two of the body."""
    steps = list(batches(RNG, round, client, epochs=5, batch_size=3))
    num_head = 3 * len(steps) // 5
    for part, of_part in ((network.head, steps[:num_head]), (network.body, steps[num_head:])):
        descent = torch.optim.SGD(part.parameters(), lr=method.lr)
        for x, y in of_part:
            descent.zero_grad()
            cross_entropy(network(x), y).backward()
            descent.step()


def run(method, data, cohorts):
    theta = initial(method, data)
    body = {n: v for n, v in theta.items() if n.startswith("body.")}
    heads = {i: {n: theta[n] for n in theta.keys() - body.keys()} for i in range(len(data.clients))}
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            network = plain_network({**body, **heads[i]})
            local_training(method, network, data.clients[i], r)
            ends.append(values(network))
            heads[i] = {n: ends[-1][n] for n in heads[i]}
        body = {n: average(ends, [1.0] * len(ends))[n] for n in body}
    kept = {i: {"parameters": heads[i]} for i in set().union(*cohorts)}
    models = {i: plain_network({**body, **head}) for i, head in heads.items()}
    return End({"parameters": body}, kept, models)


LOOPS = {"FedRep": Loop(METHOD, "Collins et al. (2021), Algorithm 1", run)}
