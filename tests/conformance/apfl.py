"""APFL: mixtures of a local and the global model, with fixed and with learnt weights."""

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import Apfl
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average, batches, plain_network

METHOD = Apfl(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.3, mixing=0.375)


def mixture(alpha, v, w):
    return {n: alpha * v[n] + (1 - alpha) * w[n] for n in w}


def gradients(parameters, x, y):
    network = plain_network(parameters)
    cross_entropy(network(x), y).backward()
    return {n: p.grad for n, p in network.named_parameters()}


def local_training(method, w, v, alpha, client, round):
    """The local lines of the box, with the chain rule of the mixture by hand."""
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        of_common, of_mixture = gradients(w, x, y), gradients(mixture(alpha, v, w), x, y)
        slope = sum(((v[n] - w[n]) * of_mixture[n]).sum() for n in w).item()
        w, v = (
            {n: w[n] - method.lr * of_common[n] for n in w},
            {n: v[n] - method.lr * alpha * of_mixture[n] for n in w},
        )
        if method.adaptive:
            alpha = min(1.0, max(0.0, alpha - method.lr * slope))
    return w, v, alpha


def run(method, data, cohorts):
    w, own = initial(method, data), {}
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            v, alpha = own.get(i, (w, method.mixing))
            end, v, alpha = local_training(method, w, v, alpha, data.clients[i], r)
            ends.append(end)
            own[i] = v, alpha
        w = average(ends, [1.0] * len(ends))
    kept, models = {}, {None: plain_network(w)}
    for client in data.clients:
        v, alpha = own.get(client.id, (w, method.mixing))
        models[client.id] = plain_network(mixture(alpha, v, w))
        if client.id in own:
            learnt = (
                {"mixing": torch.tensor([alpha], dtype=torch.float64)} if method.adaptive else {}
            )
            kept[client.id] = {"local_parameters": v, **learnt}
    return End({"parameters": w}, kept, models)


SOURCE = "Deng et al. (2020), Algorithm 1"
LOOPS = {
    "APFL": Loop(METHOD, SOURCE, run),
    "APFL, fixed mixture": Loop(replace(METHOD, adaptive=False), SOURCE, run),
}
