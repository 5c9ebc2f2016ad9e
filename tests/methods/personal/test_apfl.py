"""Limits and refusals of APFL, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.methods import Apfl, FedAvg
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    NormNet,
    assert_near,
    assert_same,
    federation,
    train,
)

METHOD = Apfl(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.3, mixing=0.4)
SIZES = (7, 4, 12, 5)


@pytest.mark.parametrize("backbone", [MLP((4,)), NormNet()])
@pytest.mark.parametrize("mixing", [0.0, 0.5, 1.0])
def test_the_common_part_is_fedavg_whatever_the_mixture(mixing, backbone):
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, mixing=mixing, backbone=backbone)
    fedavg = FedAvg(backbone, METHOD.rounds, METHOD.local, METHOD.lr, weights="uniform")
    ours, theirs = (train(m, data)[0][-1].server_state for m in (method, fedavg))
    for kind in ("parameters", "buffers"):
        assert_same(ours[kind], theirs[kind])


def test_a_mixture_of_the_local_model_alone_is_trained_in_isolation():
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, mixing=1.0, adaptive=False, backbone=NormNet())
    alone = FedAvg(
        method.backbone, method.rounds, method.local, method.lr, sharing={"*": "personal"}
    )
    ours, theirs = (train(m, data)[0][-1].client_states for m in (method, alone))
    for i in range(len(SIZES)):
        for kind in ("parameters", "buffers"):
            assert_near(ours[i][f"local_{kind}"], theirs[i][kind], 1e-12)


@pytest.mark.parametrize("changes", [{"mixing": -0.1}, {"mixing": 1.1}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
