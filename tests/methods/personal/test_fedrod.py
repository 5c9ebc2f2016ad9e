"""Limits and refusals of FedRoD, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedRoD
from fedbolic.nn.network.backbone import MLP

METHOD = FedRoD(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2)
SIZES = (7, 4, 12, 5)


@pytest.mark.parametrize("changes", [{"rounds": 0}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
