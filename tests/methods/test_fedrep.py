"""FedRep against Algorithm 1 of Collins et al. (2021), written with plain networks."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import FedRep
from fedbolic.nn.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    assert_near,
    average,
    batches,
    federation,
    plain_network,
    train,
)

METHOD = FedRep(MLP((4,)), rounds=4, local=LocalTraining(5, 3), lr=0.2, head_share=0.6)
SIZES = (7, 4, 12, 5)


def initial(data):
    seed = RNG.at("init").at("model").number()
    parameters, _ = METHOD.model(data.meta).init(seed)
    return {name: value.double() for name, value in parameters.items()}


def copied(module):
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def local_training(network, client, round):
    """Three epochs of the head with the body as received, then two of the body."""
    steps = list(batches(RNG, round, client, epochs=5, batch_size=3))
    num_head = 3 * len(steps) // 5
    for part, of_part in ((network.head, steps[:num_head]), (network.body, steps[num_head:])):
        descent = torch.optim.SGD(part.parameters(), lr=METHOD.lr)
        for x, y in of_part:
            descent.zero_grad()
            cross_entropy(network(x), y).backward()
            descent.step()


def box(data, cohorts):
    network = plain_network(initial(data))
    body, head = copied(network.body), copied(network.head)
    heads = {client.id: head for client in data.clients}
    for r, cohort in enumerate(cohorts, 1):
        bodies = []
        for i in cohort:
            network.body.load_state_dict(body)
            network.head.load_state_dict(heads[i])
            local_training(network, data.clients[i], r)
            bodies.append(copied(network.body))
            heads[i] = copied(network.head)
        body = average(bodies, [1.0] * len(bodies))
    return body, heads


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_and_scores_are_those_of_the_box(rate):
    data = federation(SIZES)
    states, rows = train(METHOD, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    cohorts = [[row.client for row in trained if row.round == r] for r in range(1, 5)]
    body, heads = box(data, cohorts)
    expected = {f"body.{name}": value for name, value in body.items()}
    assert_near(states[-1].server_state["parameters"], expected, 1e-12)
    scores = {row.client: row.value for row in rows if (row.round, row.name) == (4, "test/loss")}
    for client in data.clients:
        named = {f"head.{name}": value for name, value in heads[client.id].items()}
        if client.id in states[-1].client_states:
            assert_near(states[-1].client_states[client.id]["parameters"], named, 1e-12)
        network = plain_network({**expected, **named})
        x, y = client.test.tensors["x"], client.test.tensors["y"]
        loss = cross_entropy(network(x), y).item()
        assert scores[client.id] == pytest.approx(loss, rel=1e-6)
    assert not any(row.name.startswith("holdout/") for row in rows)


@pytest.mark.parametrize(("share", "moved"), [(0.999, "head."), (0.001, "body.")])
def test_the_share_of_the_steps_decides_what_moves(share, moved):
    data = federation(SIZES)
    client, method = data.clients[0], dataclasses.replace(METHOD, head_share=share)
    begin = initial(data)
    message = method.init(data.meta, RNG.at("init"))
    message = method.broadcast({**message, "parameters": body_of(begin)}, 0)
    update, kept = method.local_update(message, client, {}, RNG)
    head = {n: value - begin[n] for n, value in kept["parameters"].items()}
    for name, difference in {**update.payload["delta"], **head}.items():
        assert bool(difference.any()) == name.startswith(moved)


def body_of(values):
    return {name: value for name, value in values.items() if name.startswith("body.")}


@pytest.mark.parametrize("changes", [{"head_share": 0.0}, {"head_share": 1.0}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
