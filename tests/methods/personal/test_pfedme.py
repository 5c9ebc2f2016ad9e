"""Limits and refusals of pFedMe, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAvg, PFedMe
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    assert_near,
    federation,
    train,
)

METHOD = PFedMe(
    MLP((4,)), rounds=4, local=LocalTraining(2, 3, repeats=3), lr=0.3,
    personal_lr=0.2, personal_proximal=1.5, server_lr=0.7,
)  # fmt: skip
SIZES = (7, 4, 12, 5)


def test_one_inner_step_per_round_is_fedavg():
    """With one inner step from w, w - theta is the gradient times the inner step size."""
    data = federation(SIZES)
    local = LocalTraining(1, None)
    method = dataclasses.replace(METHOD, local=local, server_lr=1.0)
    step = METHOD.lr * METHOD.personal_proximal * METHOD.personal_lr
    fedavg = FedAvg(METHOD.backbone, METHOD.rounds, local, step, weights="uniform")
    ours, theirs = (train(m, data)[0][-1].server_state["parameters"] for m in (method, fedavg))
    assert_near(ours, theirs, 1e-12)


@pytest.mark.parametrize(
    "changes", [{"personal_proximal": 0.0}, {"personal_lr": 0.0}, {"server_lr": 0.0}]
)
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
