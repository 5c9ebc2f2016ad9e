from dataclasses import dataclass

import pytest
import torch
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Digits, Partitioned
from fedbolic.federated import LocalTraining, Trainer
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP

LOCAL = LocalTraining(epochs=2, batch_size=32)


@dataclass(frozen=True)
class OwnStep(FedAvg):
    """Steps of SGD that are written by hand, in one of several ways."""

    way: str = "new"

    @override
    def step(self, local, gradients, context):
        parameters = local["parameters"]
        new = {n: x - self.lr * gradients[n] for n, x in parameters.items()}
        if self.way == "new":
            return {**local, "parameters": new}
        for name, x in parameters.items():
            if self.way == "data":
                x.data = new[name]
            else:
                x.copy_(new[name])
        return local


def trained(method):
    data = Partitioned(Digits(), IID(3)).load(Rng(0))
    *_, (state, _) = Trainer().run(method, data, Rng(0))
    return state.server_state["parameters"]


@pytest.mark.parametrize("way", ["data", "copy"])
def test_steps_are_taken_from_where_the_last_one_led_however_it_is_written(way):
    ours, expected = (
        trained(OwnStep(MLP((8,)), rounds=2, local=LOCAL, way=each)) for each in (way, "new")
    )
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


@pytest.mark.parametrize("way", ["data", "copy", "new"])
def test_casts_of_a_step_are_not_those_of_the_step_before(way):
    """A cache of casts may save time, but no parameter may be older for it."""
    method = OwnStep(MLP((8,)), rounds=1, local=LOCAL, way=way)
    found = []
    for cached in (True, False):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            found.append(trained(method))
    assert all(torch.equal(found[0][name], value) for name, value in found[1].items())


@dataclass(frozen=True)
class Headless(FedAvg):
    """A loss that does not depend on the bias of the head."""

    @override
    def loss(self, model, parameters, buffers, batch, context):
        bias = torch.zeros_like(parameters["head.bias"]).detach()
        return super().loss(model, {**parameters, "head.bias": bias}, buffers, batch, context)


def test_a_parameter_without_influence_on_the_loss_stays():
    method = Headless(MLP((8,)), rounds=1, local=LOCAL)
    data = Partitioned(Digits(), IID(3)).load(Rng(0))
    before = method.init(data.meta, Rng(0).at("init"))["parameters"]
    after = trained(method)
    assert torch.equal(before["head.bias"], after["head.bias"])
    assert not torch.equal(before["head.weight"], after["head.weight"])
