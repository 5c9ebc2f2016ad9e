"""SCAFFOLD with option II."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import Scaffold
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, everywhere, initial
from tests.federated.simple_method import RNG, batches, plain_network

METHOD = Scaffold(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, server_lr=0.7)


def run(method, data, cohorts):
    """Algorithm 1, line by line."""
    x = initial(method, data)
    c = {name: torch.zeros_like(value) for name, value in x.items()}
    c_i = {client.id: dict(c) for client in data.clients}
    for r, sample in enumerate(cohorts, 1):
        moves, variates = [], []
        for i in sample:
            y, steps = dict(x), 0
            for inputs, labels in batches(RNG, r, data.clients[i], epochs=2, batch_size=3):
                network = plain_network(y)
                cross_entropy(network(inputs), labels).backward()
                g = {name: value.grad for name, value in network.named_parameters()}
                y = {n: y[n] - method.lr * (g[n] - c_i[i][n] + c[n]) for n in y}
                steps += 1
            plus = {n: c_i[i][n] - c[n] + (x[n] - y[n]) / (steps * method.lr) for n in y}
            moves.append({n: y[n] - x[n] for n in y})
            variates.append({n: plus[n] - c_i[i][n] for n in y})
            c_i[i] = plus
        share = len(sample) / len(data.clients)
        x = {n: x[n] + method.server_lr * torch.stack([m[n] for m in moves]).mean(0) for n in x}
        c = {n: c[n] + share * torch.stack([v[n] for v in variates]).mean(0) for n in c}
    own = {i: {"own_variate": c_i[i]} for i in set().union(*cohorts)}
    return End({"parameters": x, "variate": c}, own, everywhere(data, x))


LOOPS = {"SCAFFOLD": Loop(METHOD, "Karimireddy et al. (2020), Algorithm 1", run)}
