"""Limits and refusals of FedNova, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAvg, FedNova
from fedbolic.nn.network.backbone import MLP
from fedbolic.optim import SGD
from tests.conformance.fednova import accumulation
from tests.federated.simple_method import (
    assert_near,
    federation,
    train,
)

METHOD = FedNova(MLP((4,)), rounds=3, local=LocalTraining(2, 3), lr=0.2, momentum=0.6)
SIZES = (7, 4, 12, 5)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 7, 100])
def test_the_norm_is_that_of_the_written_vector(momentum, num_steps):
    expected = accumulation(num_steps, momentum).sum() if num_steps else 0
    norm = dataclasses.replace(METHOD, momentum=momentum).norm(num_steps)
    assert norm == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_clients_of_equal_size_give_fedavg(momentum):
    data = federation((7, 7, 7))
    method = dataclasses.replace(METHOD, momentum=momentum)
    fedavg = FedAvg(
        METHOD.backbone, METHOD.rounds, METHOD.local, METHOD.lr, optimizer=SGD(momentum)
    )
    ours, theirs = (train(m, data)[0][-1].server_state["parameters"] for m in (method, fedavg))
    assert_near(ours, theirs, 1e-12)


@pytest.mark.parametrize("changes", [{"momentum": 1.0}, {"momentum": -0.1}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
