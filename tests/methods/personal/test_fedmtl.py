"""Limits and refusals of FedMTL, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAvg, FedMTL
from fedbolic.nn.network.backbone import MLP
from fedbolic.optim import SGD
from tests.federated.simple_method import (
    NormNet,
    assert_near,
    federation,
    train,
)

METHOD = FedMTL(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.1, coupling=0.7)
SIZES = (7, 4, 12, 5)


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
