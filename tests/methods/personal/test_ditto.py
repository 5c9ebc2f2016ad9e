import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import Ditto, FedAvg
from fedbolic.nn.network.backbone import MLP
from fedbolic.optim import SGD
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    assert_same,
    batches,
    federation,
    plain_network,
    train,
    values,
)

SIZES = (7, 4, 12, 5)
METHOD = Ditto(MLP((4,)), rounds=3, local=LocalTraining(2, 3), lr=0.2, personal_proximal=0.5)


def fedavg(method):
    return FedAvg(
        method.backbone, method.rounds, method.local, method.lr, optimizer=method.optimizer
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backbone", [MLP((4,)), NormNet()])
@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9, weight_decay=0.01)])
def test_the_common_part_is_fedavg_to_the_last_bit(dtype, backbone, optimizer):
    data = federation(SIZES, dtype=dtype)
    method = dataclasses.replace(METHOD, backbone=backbone, optimizer=optimizer)
    ours, _ = train(method, data, cohort=Cohort(0.5))
    theirs, _ = train(fedavg(method), data, cohort=Cohort(0.5))
    for x, y in zip(ours, theirs, strict=True):
        assert_same(x.server_state["parameters"], y.server_state["parameters"])
        assert_same(x.server_state["buffers"], y.server_state["buffers"])


def own_loop(v, global_parameters, client, round, personal_proximal):
    """Descent on the client's loss plus the proximal term."""
    network = plain_network(v)
    descent = torch.optim.SGD(network.parameters(), lr=METHOD.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        descent.zero_grad()
        distance = sum(
            (p - global_parameters[n]).square().sum() for n, p in network.named_parameters()
        )
        (cross_entropy(network(x), y) + personal_proximal / 2 * distance).backward()
        descent.step()
    return values(network)


@pytest.mark.parametrize("backbone", [MLP((4,)), NormNet()])
def test_without_a_proximal_term_the_own_model_is_trained_in_isolation(backbone):
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, personal_proximal=0.0, backbone=backbone)
    ours, _ = train(method, data)
    alone, _ = train(dataclasses.replace(fedavg(method), sharing={"*": "personal"}), data)
    for i, client_state in alone[-1].client_states.items():
        assert_same(ours[-1].client_states[i]["own_parameters"], client_state["parameters"])
        assert_same(ours[-1].client_states[i]["own_buffers"], client_state["buffers"])


def test_a_client_that_joins_late_starts_where_the_common_model_is():
    data = federation(SIZES)
    positions, _ = train(METHOD, data, cohort=Cohort(0.25))
    first = {
        i: p for p in reversed(positions) for i in p.client_states
    }  # the round in which each client joined
    before = {p.round: p.server_state["parameters"] for p in positions}
    late = {i: p for i, p in first.items() if p.round > 1}
    assert late
    for i, p in late.items():
        global_parameters = before[p.round - 1]
        expected = own_loop(
            global_parameters, global_parameters, data.clients[i], p.round, METHOD.personal_proximal
        )
        assert_near(p.client_states[i]["own_parameters"], expected, 1e-12)


@pytest.mark.parametrize("changes", [{"rounds": 0}, {"lr": 0.0}, {"personal_proximal": -1.0}])
def test_values_outside_their_range_are_refused(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"{name} must be"):
        dataclasses.replace(METHOD, **changes)
