"""FedRoD against Sec. 4 of Chen and Chao (2022), written with plain networks."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import FedRoD
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

METHOD = FedRoD(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2)
SIZES = (7, 4, 12, 5)


def start(data):
    parameters = METHOD.init(data.meta, RNG.at("init"))["parameters"]
    return {name: value.double() for name, value in parameters.items()}


def balanced_risk(logits, labels, counts):
    """Mean of the balanced softmax losses, from their definition."""
    odds = counts * logits.exp()
    return -(odds[torch.arange(len(labels)), labels] / odds.sum(dim=1)).log().mean()


def local_training(network, head, client, round):
    """One turn of a client, whose two losses have an optimiser each."""
    labels = client.train.tensors["y"].tolist()
    counts = torch.tensor([labels.count(c) for c in range(3)], dtype=torch.float64)
    generic = torch.optim.SGD(network.parameters(), lr=METHOD.lr)
    personal = torch.optim.SGD(head.parameters(), lr=METHOD.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        with torch.no_grad():
            z, g = network.body(x), network(x)
        personal.zero_grad()
        cross_entropy(g + head(z), y).backward()
        generic.zero_grad()
        balanced_risk(network(x), y, counts).backward()
        personal.step()
        generic.step()


def box(data, cohorts):
    theta, heads = start(data), {}
    for client in data.clients:
        heads[client.id] = nn.Linear(4, 3).double()
        nn.init.zeros_(heads[client.id].weight)
        nn.init.zeros_(heads[client.id].bias)
    for r, cohort in enumerate(cohorts, 1):
        networks = {i: plain_network(theta) for i in cohort}
        for i, network in networks.items():
            local_training(network, heads[i], data.clients[i], r)
        weights = [len(data.clients[i].train) for i in cohort]
        theta = average([values(network) for network in networks.values()], weights)
    return theta, heads


def accuracy(logits, client):
    with torch.no_grad():
        hits = logits(client.test.tensors["x"]).argmax(1) == client.test.tensors["y"]
    return float(hits.double().mean())


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_and_both_scores_are_those_of_the_box(rate):
    data = federation(SIZES)
    states, rows = train(METHOD, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    cohorts = [[row.client for row in trained if row.round == r] for r in range(1, 5)]
    theta, heads = box(data, cohorts)
    assert_near(states[-1].server_state["parameters"], theta, 1e-12)
    network = plain_network(theta)
    scores = {(row.client, row.name): row.value for row in rows if row.round == 4}
    assert scores[None, "holdout/accuracy"] == accuracy(network, data.holdout)
    for client in data.clients:
        head = heads[client.id]
        if client.id in set().union(*cohorts):
            kept = states[-1].client_states[client.id]["personal_head"]
            assert_near(kept, values(head), 1e-12)
        both = accuracy(lambda x, head=head: network(x) + head(network.body(x)), client)
        assert scores[client.id, "test/accuracy"] == both


def test_a_client_without_some_class_has_finite_values():
    data = federation(SIZES)
    labels = data.clients[0].train.tensors["y"]
    labels.fill_(2)
    states, _ = train(METHOD, data, RNG)
    parameters = states[-1].server_state["parameters"]
    assert all(value.isfinite().all() for value in parameters.values())
    assert_near(parameters, box(data, [range(4)] * 4)[0], 1e-12)


@pytest.mark.parametrize("changes", [{"rounds": 0}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
