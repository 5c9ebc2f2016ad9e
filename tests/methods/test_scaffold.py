import dataclasses

import pytest
import torch

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAvg, Scaffold
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    assert_same,
    federation,
    plain_network,
    train,
    values,
)

SIZES = (7, 4, 12, 5, 9)
METHOD = Scaffold(MLP((4,)), rounds=3, local=LocalTraining(2, 3), lr=0.2, server_lr=0.7)


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
