import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import FedAvg, Scaffold
from fedbolic.nn.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    Averaged,
    NormNet,
    assert_near,
    assert_same,
    batches,
    federation,
    plain_network,
    train,
    values,
)

SIZES = (7, 4, 12, 5, 9)
METHOD = Scaffold(MLP((4,)), rounds=3, local=LocalTraining(2, 3), lr=0.2, server_lr=0.7)


def cohorts(data, rate, rounds=3):
    """Cohorts of a run, read from the simplest method, since the same streams choose them."""
    _, rows = train(Averaged(rounds), data, cohort=Cohort(rate))
    return [
        [r.client for r in rows if r.name == "noise" and r.round == n and r.client is not None]
        for n in range(1, rounds + 1)
    ]


def algorithm_1(data, method, rounds, rate):
    """Karimireddy et al. (2020), Algorithm 1, line by line, with option II."""
    x = method.init(data.meta, RNG.at("init"))["parameters"]
    x = {name: value.double() for name, value in x.items()}
    c = {name: torch.zeros_like(value) for name, value in x.items()}
    c_i = {client.id: dict(c) for client in data.clients}
    for r, sample in enumerate(cohorts(data, rate), start=1):
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
    return x, c, c_i


@pytest.mark.parametrize("rate", [0.4, 0.6, 1.0])
def test_rounds_are_those_of_algorithm_1_with_option_2(rate):
    data = federation(SIZES)
    positions, _ = train(METHOD, data, cohort=Cohort(rate))
    x, c, c_i = algorithm_1(data, METHOD, 3, rate)
    server_state, client_states = positions[-1].server_state, positions[-1].client_states
    assert_near(server_state["parameters"], x, 1e-10)
    assert_near(server_state["variate"], c, 1e-10)
    for i, client_state in client_states.items():
        assert_near(client_state["own_variate"], c_i[i], 1e-10)
    assert any(value.abs().max() > 1e-2 for value in c.values())


def test_the_servers_variate_is_the_mean_of_the_clients():
    data = federation(SIZES)
    positions, _ = train(METHOD, data)
    for state in positions:
        own = [client_state["own_variate"] for client_state in state.client_states.values()]
        mean = {n: torch.stack([v[n] for v in own]).mean(0) for n in own[0]}
        assert_near(state.server_state["variate"], mean, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_variates_it_is_uniform_fedavg_to_the_last_bit(dtype):
    data = federation(SIZES, dtype=dtype)
    scaffold = dataclasses.replace(METHOD, rounds=1, server_lr=1.0)
    fedavg = FedAvg(MLP((4,)), 1, METHOD.local, METHOD.lr, weights="uniform")
    theirs = ours = None
    for _ in range(3):
        if ours is not None:  # the control variates are reset between rounds
            zero = {n: torch.zeros_like(v) for n, v in ours.server_state["parameters"].items()}
            server_state = {**ours.server_state, "variate": zero}
            ours = dataclasses.replace(ours, server_state=server_state, client_states={}, round=0)
            theirs = dataclasses.replace(theirs, round=0)
        (ours,), _ = train(scaffold, data, RNG, ours)
        (theirs,), _ = train(fedavg, data, RNG, theirs)
        assert_same(ours.server_state["parameters"], theirs.server_state["parameters"])


def test_a_client_without_a_step_keeps_its_variate():
    data = federation((7, 4, 1))
    method = dataclasses.replace(METHOD, backbone=NormNet())  # skips the batch of one
    positions, _ = train(method, data)
    own = positions[-1].client_states[2]["own_variate"]
    assert not any(value.any() for value in own.values())
    assert any(v.any() for v in positions[-1].client_states[0]["own_variate"].values())
    assert all(v.isfinite().all() for v in positions[-1].server_state["parameters"].values())


def test_own_memories_do_not_change_what_is_evaluated():
    data = federation(SIZES)
    positions, _ = train(METHOD, data)
    message = METHOD.broadcast(positions[-1].server_state, 0)
    client = data.clients[0]
    scores = METHOD.evaluate(message, client, positions[-1].client_states[0], RNG)
    assert scores == METHOD.evaluate(message, client, {}, RNG)
    network = plain_network(values(plain_network(positions[-1].server_state["parameters"])))
    hits = (network(client.test.tensors["x"]).argmax(1) == client.test.tensors["y"]).sum()
    assert scores["test/accuracy"] == int(hits) / len(client.test)


@pytest.mark.parametrize("changes", [{"rounds": 0}, {"lr": 0.0}, {"server_lr": -1.0}])
def test_values_outside_their_range_are_refused(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"{name} must be"):
        dataclasses.replace(METHOD, **changes)
