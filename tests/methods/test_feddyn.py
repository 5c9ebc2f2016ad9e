"""Limits and refusals of FedDyn, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAvg, FedDyn
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    assert_near,
    federation,
    train,
)

METHOD = FedDyn(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, alpha=0.3)


def start(data):
    parameters = METHOD.init(data.meta, RNG.at("init"))["parameters"]
    return {name: value.double() for name, value in parameters.items()}


def test_the_first_round_is_that_of_fedprox_with_a_larger_step():
    """All g and h begin at 0; then the server goes twice as far as the mean of all clients."""
    data = federation()
    first = train(dataclasses.replace(METHOD, rounds=1), data, RNG)[0][-1].server_state
    prox = FedAvg(
        METHOD.backbone, 1, METHOD.local, METHOD.lr, proximal=METHOD.alpha, weights="uniform"
    )
    mean = train(prox, data, RNG)[0][-1].server_state["parameters"]
    begin = start(data)
    expected = {n: begin[n] + 2 * (mean[n] - begin[n]) for n in begin}
    assert_near(first["parameters"], expected, 1e-12)


@pytest.mark.parametrize("changes", [{"alpha": 0.0}, {"rounds": 0}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
