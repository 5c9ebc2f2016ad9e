"""Limits and refusals of APPLE, whose algorithm is in ``tests/conformance``."""

import dataclasses
import math

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.methods import Apple, FedAvg
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    assert_near,
    federation,
    train,
)

METHOD = Apple(
    MLP((4,)), rounds=5, local=LocalTraining(2, 3), lr=0.3, relations_lr=0.1, mu=2.0, decay=0.6
)
SIZES = (7, 4, 12, 5)


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
