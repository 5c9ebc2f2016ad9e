"""FedNova against Algorithm 1 of Wang et al. (2020), written with a plain network."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import FedAvg, FedNova
from fedbolic.nn.backbone import MLP
from fedbolic.optim import SGD
from tests.federated.simple_method import (
    RNG,
    assert_near,
    average,
    batches,
    federation,
    plain_network,
    train,
    values,
)

METHOD = FedNova(MLP((4,)), rounds=3, local=LocalTraining(2, 3), lr=0.2, momentum=0.6)
SIZES = (7, 4, 12, 5)


def start(data):
    parameters = METHOD.init(data.meta, RNG.at("init"))["parameters"]
    return {name: value.double() for name, value in parameters.items()}


def accumulation(num_steps, momentum):
    """The vector a of Sec. 4: entry i is the weight of gradient i in the sum of all velocities."""
    velocity_weights = np.tril(
        [[momentum ** max(step - i, 0) for i in range(num_steps)] for step in range(num_steps)]
    )
    return velocity_weights.sum(axis=0)


def local_training(theta, client, round, momentum):
    """The local model, and the matrix product G a / |a| of the box from recorded gradients."""
    network = plain_network(theta)
    descent = torch.optim.SGD(network.parameters(), lr=METHOD.lr, momentum=momentum)
    gradients = []
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        descent.zero_grad()
        cross_entropy(network(x), y).backward()
        gradients.append({n: p.grad.clone() for n, p in network.named_parameters()})
        descent.step()
    a = accumulation(len(gradients), momentum)
    d = {n: sum(w * g[n] for w, g in zip(a, gradients, strict=True)) / a.sum() for n in theta}
    return values(network), d, a.sum()


def box(data, cohorts, momentum):
    theta = start(data)
    for r, cohort in enumerate(cohorts, 1):
        clients = [data.clients[i] for i in cohort]
        found = [local_training(theta, client, r, momentum) for client in clients]
        weights = [len(client.train) for client in clients]
        d = average([d for _, d, _ in found], weights)
        effective = np.average([norm for *_, norm in found], weights=weights)
        theta = {n: theta[n] - effective * METHOD.lr * d[n] for n in theta}
    return theta


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_rounds_are_those_of_the_box(rate, momentum):
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, momentum=momentum)
    states, rows = train(method, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    cohorts = [[row.client for row in trained if row.round == r] for r in range(1, 4)]
    assert_near(states[-1].server_state["parameters"], box(data, cohorts, momentum), 1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 7, 100])
def test_the_norm_is_that_of_the_written_vector(momentum, num_steps):
    expected = accumulation(num_steps, momentum).sum() if num_steps else 0
    norm = dataclasses.replace(METHOD, momentum=momentum).norm(num_steps)
    assert norm == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_clients_of_equal_size_give_fedavg(momentum):
    data = federation((7, 7, 7))
    method = dataclasses.replace(METHOD, momentum=momentum)
    fedavg = FedAvg(
        METHOD.backbone, METHOD.rounds, METHOD.local, METHOD.lr, optimizer=SGD(momentum)
    )
    ours, theirs = (train(m, data)[0][-1].server_state["parameters"] for m in (method, fedavg))
    assert_near(ours, theirs, 1e-12)


@pytest.mark.parametrize("changes", [{"momentum": 1.0}, {"momentum": -0.1}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
