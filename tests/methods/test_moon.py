"""Limits and refusals of MOON, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAvg, Moon
from fedbolic.nn.network.backbone import MLP
from fedbolic.optim import SGD
from tests.federated.simple_method import (
    assert_near,
    assert_same,
    federation,
    train,
)

METHOD = Moon(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, mu=2.0, temperature=0.7)
SIZES = (7, 4, 12, 5)


def fedavg(method):
    return FedAvg(
        method.backbone, method.rounds, method.local, method.lr, optimizer=method.optimizer
    )


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9, weight_decay=0.01)])
@pytest.mark.parametrize("changes", [{"mu": 0.0}, {"rounds": 1}], ids=["no term", "first round"])
def test_without_the_term_and_in_the_first_round_it_is_fedavg(changes, optimizer):
    """In the first round both models of the contrast are the global one: it has no gradient."""
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, optimizer=optimizer, **changes)
    ours, theirs = (train(m, data)[0][-1].server_state for m in (method, fedavg(method)))
    compare = assert_same if changes == {"mu": 0.0} else lambda x, y: assert_near(x, y, 1e-12)
    compare(ours["parameters"], theirs["parameters"])


@pytest.mark.parametrize("changes", [{"mu": -1.0}, {"temperature": 0.0}, {"rounds": 0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
