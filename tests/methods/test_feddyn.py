"""FedDyn against Algorithm 1 of Acar et al. (2021), written with a plain network."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import FedAvg, FedDyn
from fedbolic.nn.backbone import MLP
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

METHOD = FedDyn(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, alpha=0.3)


def start(data):
    parameters = METHOD.init(data.meta, RNG.at("init"))["parameters"]
    return {name: value.double() for name, value in parameters.items()}


def local_minimum(theta, g, client, round):
    """Line 5 of the box, by gradient steps on the written loss."""
    network = plain_network(theta)
    descent = torch.optim.SGD(network.parameters(), lr=METHOD.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        descent.zero_grad()
        loss = cross_entropy(network(x), y)
        for name, value in network.named_parameters():
            loss = loss - (g[name] * value).sum()
            loss = loss + METHOD.alpha / 2 * (value - theta[name]).square().sum()
        loss.backward()
        descent.step()
    return values(network)


def box(data, cohorts):
    """The algorithm over the cohorts of its rounds: the global model and every client's g."""
    theta = start(data)
    zeros = {name: torch.zeros_like(value) for name, value in theta.items()}
    h, g = dict(zeros), {client.id: dict(zeros) for client in data.clients}
    for r, cohort in enumerate(cohorts, 1):
        local = {}
        for i in cohort:
            local[i] = local_minimum(theta, g[i], data.clients[i], r)
            g[i] = {n: g[i][n] - METHOD.alpha * (local[i][n] - theta[n]) for n in theta}
        drift = {n: sum(x[n] - theta[n] for x in local.values()) for n in theta}
        h = {n: h[n] - METHOD.alpha / len(data.clients) * drift[n] for n in theta}
        mean = average(list(local.values()), [1.0] * len(cohort))
        theta = {n: mean[n] - h[n] / METHOD.alpha for n in theta}
    return theta, h, g


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_are_those_of_the_box(rate):
    data = federation((7, 4, 12, 5))
    states, rows = train(METHOD, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    cohorts = [[row.client for row in trained if row.round == r] for r in range(1, 5)]
    assert {len(cohort) for cohort in cohorts} == {4 * rate}
    theta, h, g = box(data, cohorts)
    assert_near(states[-1].server_state["parameters"], theta, 1e-12)
    assert_near(states[-1].server_state["h"], h, 1e-12)
    for i in set().union(*cohorts):
        assert_near(states[-1].client_states[i]["linear"], g[i], 1e-12)


def test_the_first_round_is_that_of_fedprox_with_a_larger_step():
    """All g and h begin at 0; then the server goes twice as far as the mean of all clients."""
    data = federation()
    first = train(dataclasses.replace(METHOD, rounds=1), data, RNG)[0][-1].server_state
    prox = FedAvg(
        METHOD.backbone, 1, METHOD.local, METHOD.lr, proximal=METHOD.alpha, weights="uniform"
    )
    mean = train(prox, data, RNG)[0][-1].server_state["parameters"]
    begin = start(data)
    expected = {n: begin[n] + 2 * (mean[n] - begin[n]) for n in begin}
    assert_near(first["parameters"], expected, 1e-12)


@pytest.mark.parametrize("changes", [{"alpha": 0.0}, {"rounds": 0}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
