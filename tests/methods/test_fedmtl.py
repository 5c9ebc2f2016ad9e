"""FedMTL against the written objective of Smith et al. (2017), with the matrix of all models."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import FedAvg, FedMTL
from fedbolic.nn.backbone import MLP
from fedbolic.optim import SGD
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    batches,
    federation,
    plain_network,
    train,
    values,
)

METHOD = FedMTL(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.1, coupling=0.7)
SIZES = (7, 4, 12, 5)


def vector(parameters):
    return torch.cat([value.flatten() for value in parameters])


def penalty(columns):
    """The trace of W Omega W' with the full matrices."""
    w, k = torch.stack(columns, dim=1), len(columns)
    omega = torch.linalg.matrix_power(torch.eye(k).double() - 1 / k, 2)
    return torch.trace(w @ omega @ w.T)


def local_training(models, client, round):
    """Steps on one column of W, from automatic gradients of the whole objective."""
    network = plain_network(models[client.id])
    fixed = [vector(model.values()) for model in models]
    descent = torch.optim.SGD(network.parameters(), lr=METHOD.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        own = vector(network.parameters())
        columns = [own if k == client.id else column for k, column in enumerate(fixed)]
        descent.zero_grad()
        (cross_entropy(network(x), y) + METHOD.coupling * penalty(columns)).backward()
        descent.step()
    return values(network)


def initial(data):
    seed = RNG.at("init").at("model").number()
    parameters, _ = METHOD.model(data.meta).init(seed)
    return {name: value.double() for name, value in parameters.items()}


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_are_those_of_the_objective(rate):
    data = federation(SIZES)
    states, rows = train(METHOD, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    models = [initial(data) for _ in SIZES]
    for r in range(1, METHOD.rounds + 1):
        cohort = [row.client for row in trained if row.round == r]
        ends = {i: local_training(models, data.clients[i], r) for i in cohort}
        models = [ends.get(i, model) for i, model in enumerate(models)]
    mean = {n: sum(model[n] for model in models) / len(models) for n in models[0]}
    assert_near(states[-1].server_state["mean"], mean, 1e-12)
    scores = {row.client: row.value for row in rows if (row.round, row.name) == (4, "test/loss")}
    for client, model in zip(data.clients, models, strict=True):
        x, y = client.test.tensors["x"], client.test.tensors["y"]
        loss = cross_entropy(plain_network(model)(x), y).item()
        assert scores[client.id] == pytest.approx(loss, rel=1e-6)
        if client.id in states[-1].client_states:
            assert_near(states[-1].client_states[client.id]["parameters"], model, 1e-12)
    assert not any(row.name.startswith("holdout/") for row in rows)


@pytest.mark.parametrize("backbone", [MLP((4,)), NormNet()])
@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9)])
def test_without_coupling_it_is_local_training(backbone, optimizer):
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, coupling=0.0, backbone=backbone, optimizer=optimizer)
    alone = FedAvg(
        backbone, METHOD.rounds, METHOD.local, METHOD.lr,
        optimizer=optimizer, sharing={"*": "personal"},
    )  # fmt: skip
    ours, theirs = (train(m, data)[0][-1].client_states for m in (method, alone))
    for i in range(len(SIZES)):
        assert_near(ours[i], theirs[i], 1e-12)


def test_a_client_that_is_alone_has_no_penalty():
    data = federation((7,))
    ours, theirs = (
        train(dataclasses.replace(METHOD, coupling=c), data)[0][-1].server_state["mean"]
        for c in (METHOD.coupling, 0.0)
    )
    assert_near(ours, theirs, 1e-12)


@pytest.mark.parametrize("changes", [{"coupling": -1.0}, {"rounds": 0}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
