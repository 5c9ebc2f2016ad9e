"""Limits and refusals of FedRep, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedRep
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    federation,
)

METHOD = FedRep(MLP((4,)), rounds=4, local=LocalTraining(5, 3), lr=0.2, head_share=0.6)
SIZES = (7, 4, 12, 5)


def initial(data):
    seed = RNG.at("init").at("model").number()
    parameters, _ = METHOD.model(data.meta).init(seed)
    return {name: value.double() for name, value in parameters.items()}


@pytest.mark.parametrize(("share", "moved"), [(0.999, "head."), (0.001, "body.")])
def test_the_share_of_the_steps_decides_what_moves(share, moved):
    data = federation(SIZES)
    client, method = data.clients[0], dataclasses.replace(METHOD, head_share=share)
    begin = initial(data)
    message = method.init(data.meta, RNG.at("init"))
    message = method.broadcast({**message, "parameters": body_of(begin)}, 0)
    update, kept = method.local_update(message, client, {}, RNG)
    head = {n: value - begin[n] for n, value in kept["parameters"].items()}
    for name, difference in {**update.payload["delta"], **head}.items():
        assert bool(difference.any()) == name.startswith(moved)


def body_of(values):
    return {name: value for name, value in values.items() if name.startswith("body.")}


@pytest.mark.parametrize("changes", [{"head_share": 0.0}, {"head_share": 1.0}, {"lr": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(METHOD, **changes)
