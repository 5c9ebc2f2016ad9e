"""MOON against Algorithm 1 of Li et al. (2021), written with plain networks."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import FedAvg, Moon
from fedbolic.nn.backbone import MLP
from fedbolic.optim import SGD
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    assert_same,
    average,
    batches,
    federation,
    plain_network,
    train,
)

METHOD = Moon(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, mu=2.0, temperature=0.7)
SIZES = (7, 4, 12, 5)


def local_network(network, previous, client, round):
    """``PartyLocalTraining`` of the box: the contrast is a cross-entropy with the label 0."""
    received = copy.deepcopy(network).eval()
    cosine = nn.CosineSimilarity(dim=-1)
    network.train()
    descent = torch.optim.SGD(network.parameters(), lr=METHOD.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        descent.zero_grad()
        z = network.body(x)
        with torch.no_grad():
            z_global, z_previous = received.body(x), previous.body(x)
        pair = torch.stack([cosine(z, z_global), cosine(z, z_previous)], dim=1)
        contrast = cross_entropy(pair / METHOD.temperature, torch.zeros(len(x), dtype=torch.int64))
        (cross_entropy(network.head(z), y) + METHOD.mu * contrast).backward()
        descent.step()
    return network


def box(data, cohorts, initial, norm):
    """The global values, and the last model of every client."""
    names = [name for name, _ in plain_network(*initial, norm=norm).named_parameters()]
    values = {**initial[0], **initial[1]}
    previous = {}
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            parameters = {n: v for n, v in values.items() if n in names}
            buffers = {n: v for n, v in values.items() if n not in names}
            network = plain_network(parameters, buffers, norm=norm)
            before = previous.get(i) or copy.deepcopy(network).eval()
            network = local_network(network, before, data.clients[i], r)
            previous[i] = network.eval()
            ends.append({n: v.clone() for n, v in network.state_dict().items()})
        values = average(ends, [len(data.clients[i].train) for i in cohort])
    return {n: values[n] for n in names}, previous


@pytest.mark.parametrize(("backbone", "sizes"), [(MLP((4,)), SIZES), (NormNet(), (6, 9, 12, 6))])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_are_those_of_the_box(backbone, sizes, rate):
    data = federation(sizes)
    method = dataclasses.replace(METHOD, backbone=backbone)
    states, rows = train(method, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    cohorts = [[row.client for row in trained if row.round == r] for r in range(1, 5)]
    parameters, buffers = method.model(data.meta).init(RNG.at("init").at("model").number())
    initial = {n: v.double() for n, v in parameters.items()}, buffers
    norm = isinstance(backbone, NormNet)
    expected, previous = box(data, cohorts, initial, norm)
    assert_near(states[-1].server_state["parameters"], expected, 1e-12)
    for i, network in previous.items():
        body = {n: v.detach() for n, v in network.body.named_parameters()}
        kept = states[-1].client_states[i]["previous_body"]
        assert_near(kept["parameters"], body, 1e-12)


def fedavg(method):
    return FedAvg(
        method.backbone, method.rounds, method.local, method.lr, optimizer=method.optimizer
    )


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9, weight_decay=0.01)])
@pytest.mark.parametrize("changes", [{"mu": 0.0}, {"rounds": 1}], ids=["no term", "first round"])
def test_without_the_term_and_in_the_first_round_it_is_fedavg(changes, optimizer):
    """In the first round both models of the contrast are the global one: it has no gradient."""
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, optimizer=optimizer, **changes)
    ours, theirs = (train(m, data)[0][-1].server_state for m in (method, fedavg(method)))
    compare = assert_same if changes == {"mu": 0.0} else lambda x, y: assert_near(x, y, 1e-12)
    compare(ours["parameters"], theirs["parameters"])


@pytest.mark.parametrize("changes", [{"mu": -1.0}, {"temperature": 0.0}, {"rounds": 0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
