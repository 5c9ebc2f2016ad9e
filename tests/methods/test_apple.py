"""APPLE against Algorithm 1 of Luo and Wu (2022), with automatic gradients of the combination."""

import dataclasses
import math

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import Apple, FedAvg
from fedbolic.nn.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    assert_near,
    batches,
    federation,
    plain_network,
    train,
)

METHOD = Apple(
    MLP((4,)), rounds=5, local=LocalTraining(2, 3), lr=0.3, relations_lr=0.1, mu=2.0, decay=0.6
)
SIZES = (7, 4, 12, 5)


def initial(data):
    seed = RNG.at("init").at("model").number()
    parameters, _ = METHOD.model(data.meta).init(seed)
    return {name: value.double() for name, value in parameters.items()}


def combination(p, cores):
    return {n: sum(p[j] * core[n] for j, core in enumerate(cores)) for n in cores[0]}


def local_training(cores, p, prior, client, round):
    """The loop of the box: both parts step on one loss, with a step size each."""
    own = {n: v.clone().requires_grad_() for n, v in cores[client.id].items()}
    cores = [own if k == client.id else core for k, core in enumerate(cores)]
    p = p.clone().requires_grad_()
    groups = [{"params": list(own.values())}, {"params": [p], "lr": METHOD.relations_lr}]
    descent = torch.optim.SGD(groups, lr=METHOD.lr)
    last = METHOD.decay * METHOD.rounds
    decay = (math.cos(math.pi * (round - 1) / last) + 1) / 2 if round - 1 < last else 0
    network = plain_network({n: v.detach() for n, v in own.items()})
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        loss = cross_entropy(functional_call(network, combination(p, cores), (x,)), y)
        loss = loss + decay * METHOD.mu / 2 * (p - prior).square().sum()
        descent.zero_grad()
        loss.backward()
        descent.step()
    return {n: v.detach() for n, v in own.items()}, p.detach()


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_and_scores_are_those_of_the_box(rate):
    data = federation(SIZES)
    states, rows = train(METHOD, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    prior = torch.tensor(SIZES).double() / sum(SIZES)
    cores, relations = [initial(data) for _ in SIZES], [prior for _ in SIZES]
    for r in range(1, METHOD.rounds + 1):
        cohort = [row.client for row in trained if row.round == r]
        found = {i: local_training(cores, relations[i], prior, data.clients[i], r) for i in cohort}
        cores = [found[i][0] if i in found else core for i, core in enumerate(cores)]
        relations = [found[i][1] if i in found else p for i, p in enumerate(relations)]
    state = states[-1].server_state["cores"]
    scores = {row.client: row.value for row in rows if (row.round, row.name) == (5, "test/loss")}
    for k, client in enumerate(data.clients):
        assert_near({n: value[k] for n, value in state.items()}, cores[k], 1e-12)
        if k in states[-1].client_states:
            kept = states[-1].client_states[k]["relations"]
            assert_near({"p": kept}, {"p": relations[k]}, 1e-12)
        network = plain_network(combination(relations[k], cores))
        x, y = client.test.tensors["x"], client.test.tensors["y"]
        assert scores[k] == pytest.approx(cross_entropy(network(x), y).item(), rel=1e-6)
    assert not any(row.name.startswith("holdout/") for row in rows)


def test_a_client_that_is_alone_and_barely_moves_its_coefficient_trains_locally():
    data = federation((7,))
    method = dataclasses.replace(METHOD, relations_lr=1e-30)
    fedavg = FedAvg(METHOD.backbone, METHOD.rounds, METHOD.local, METHOD.lr)
    ours, theirs = (train(m, data)[0][-1].server_state for m in (method, fedavg))
    assert_near({n: v[0] for n, v in ours["cores"].items()}, theirs["parameters"], 1e-12)


def test_the_penalty_decays_like_half_a_cosine():
    method = dataclasses.replace(METHOD, rounds=20, mu=1.0, decay=0.2)
    found = [method.penalty_weight(r) for r in range(6)]
    half = math.sqrt(0.5) / 2
    assert found == pytest.approx([1, 0.5 + half, 0.5, 0.5 - half, 0, 0], abs=1e-12)


@pytest.mark.parametrize("changes", [{"relations_lr": 0.0}, {"mu": -1.0}, {"decay": 1.5}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
