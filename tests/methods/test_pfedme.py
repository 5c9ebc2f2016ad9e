"""pFedMe against Algorithm 1 of Dinh et al. (2020), written with a plain network."""

import copy
import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import FedAvg, PFedMe
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

METHOD = PFedMe(
    MLP((4,)), rounds=4, local=LocalTraining(2, 3, repeats=3), lr=0.3,
    personal_lr=0.2, personal_proximal=1.5, server_lr=0.7,
)  # fmt: skip
SIZES = (7, 4, 12, 5)


def start(data):
    parameters = METHOD.init(data.meta, RNG.at("init"))["parameters"]
    return {name: value.double() for name, value in parameters.items()}


def local_rounds(w, client, round):
    """Lines 4 to 8 of the box; the inner problem by gradient steps on its written objective."""
    local, network = copy.deepcopy(w), plain_network(w)
    inner = torch.optim.SGD(network.parameters(), lr=METHOD.personal_lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        for _ in range(METHOD.local.repeats):
            inner.zero_grad()
            distance = sum((p - local[n]).square().sum() for n, p in network.named_parameters())
            envelope = cross_entropy(network(x), y) + METHOD.personal_proximal / 2 * distance
            envelope.backward()
            inner.step()
        theta = values(network)
        rate = METHOD.lr * METHOD.personal_proximal
        local = {n: local[n] - rate * (local[n] - theta[n]) for n in local}
    return local, network


def box(data, cohorts):
    w, personal = start(data), {}
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            end, personal[i] = local_rounds(w, data.clients[i], r)
            ends.append(end)
        mean = average(ends, [1.0] * len(ends))
        w = {n: (1 - METHOD.server_lr) * w[n] + METHOD.server_lr * mean[n] for n in w}
    return w, personal


def accuracy(network, client):
    hits = network(client.test.tensors["x"]).argmax(1) == client.test.tensors["y"]
    return float(hits.double().mean())


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_and_scores_are_those_of_the_box(rate):
    data = federation(SIZES)
    states, rows = train(METHOD, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    cohorts = [[row.client for row in trained if row.round == r] for r in range(1, 5)]
    w, personal = box(data, cohorts)
    assert_near(states[-1].server_state["parameters"], w, 1e-12)
    scores = {(row.client, row.name): row.value for row in rows if row.round == 4}
    assert scores[None, "holdout/accuracy"] == accuracy(plain_network(w), data.holdout)
    for client in data.clients:
        network = personal.get(client.id, plain_network(w))
        assert scores[client.id, "test/accuracy"] == accuracy(network, client)
        if client.id in personal:
            kept = states[-1].client_states[client.id]["personal"]["parameters"]
            assert_near(kept, values(network), 1e-12)


def test_one_inner_step_per_round_is_fedavg():
    """With one inner step from w, w - theta is the gradient times the inner step size."""
    data = federation(SIZES)
    local = LocalTraining(1, None)
    method = dataclasses.replace(METHOD, local=local, server_lr=1.0)
    step = METHOD.lr * METHOD.personal_proximal * METHOD.personal_lr
    fedavg = FedAvg(METHOD.backbone, METHOD.rounds, local, step, weights="uniform")
    ours, theirs = (train(m, data)[0][-1].server_state["parameters"] for m in (method, fedavg))
    assert_near(ours, theirs, 1e-12)


@pytest.mark.parametrize(
    "changes", [{"personal_proximal": 0.0}, {"personal_lr": 0.0}, {"server_lr": 0.0}]
)
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
