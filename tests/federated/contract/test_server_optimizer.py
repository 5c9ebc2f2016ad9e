"""Server optimisers against Algorithm 2 of Reddi et al. (2021), written out number by number."""

import dataclasses
import math

import pytest
import torch

from fedbolic.core import tree
from fedbolic.federated import (
    LocalTraining,
    Sequential,
    ServerAdagrad,
    ServerAdam,
    ServerSGD,
    ServerYogi,
)
from fedbolic.federated.contract.engine import Exchange
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import RNG, assert_near, federation, train

METHOD = FedAvg(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2)
ETA, BETA1, BETA2, TAU = 0.03, 0.8, 0.95, 2**-7  # whose square float32 holds

SECOND = {
    "adagrad": lambda v, delta: v + delta**2,
    "yogi": lambda v, delta: v - (1 - BETA2) * delta**2 * ((v - delta**2 > 0) - (v - delta**2 < 0)),
    "adam": lambda v, delta: BETA2 * v + (1 - BETA2) * delta**2,
}
"""The three lines of the box that differ, on Python floats."""

SERVERS = {
    "adagrad": ServerAdagrad(ETA, BETA1, TAU),
    "yogi": ServerYogi(ETA, BETA1, TAU, BETA2),
    "adam": ServerAdam(ETA, BETA1, TAU, BETA2),
}


def box(kind, x, deltas):
    """One coordinate through the box: m_0 = 0, v_0 = tau^2, no bias correction."""
    m, v = 0.0, TAU**2
    for delta in deltas:
        m = BETA1 * m + (1 - BETA1) * delta
        v = SECOND[kind](v, delta)
        x = x + ETA * m / (math.sqrt(v) + TAU)
    return x


@pytest.mark.parametrize("kind", SERVERS)
def test_steps_are_those_of_the_box(kind):
    generator = torch.Generator().manual_seed(0)
    shape, server = (3, 2), SERVERS[kind]
    x = {"x": torch.randn(shape, generator=generator, dtype=torch.float64)}
    scales = torch.logspace(-3, 1, 6, dtype=torch.float64).view(shape)  # below and above tau
    deltas = [
        scales * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(5)
    ]
    moved, state = x, server.init(x)
    for delta in deltas:
        moved, state = server.step(moved, {"x": delta}, state)
    for i in range(x["x"].numel()):
        numbers = [delta.flatten()[i].item() for delta in deltas]
        expected = box(kind, x["x"].flatten()[i].item(), numbers)
        assert moved["x"].flatten()[i].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_run_is_the_box_on_the_means_of_its_clients(kind):
    """Each round of FedAvg from the same parameters gives the delta that the box moves along."""
    data = federation()
    states, _ = train(dataclasses.replace(METHOD, server_optimizer=SERVERS[kind]), data, RNG)
    rounds = [METHOD.init(data.meta, RNG.at("init")), *(each.server_state for each in states)]
    dtype = data.clients[0].train.tensors["x"].dtype
    parameters = [tree.to(each["parameters"], "cpu", dtype) for each in rounds]
    for name, first in parameters[0].items():
        deltas = []
        for r, start in enumerate(parameters[:-1], 1):
            deltas.append(mean_delta(data, start, r)[name])
        for i in range(first.numel()):
            numbers = [delta.flatten()[i].item() for delta in deltas]
            expected = box(kind, first.flatten()[i].item(), numbers)
            found = parameters[-1][name].flatten()[i].item()
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def mean_delta(data, parameters, round):
    """The mean by size of what the clients of a round send."""
    message = {"parameters": parameters, "buffers": {}, "seed": 0}
    stream, sizes = RNG.at("round", round, "exchange", 0), [c.size for c in data.clients]
    messages = dict.fromkeys(range(len(sizes)), message)
    results = Sequential().run(Exchange(METHOD, messages, data.clients, {}, stream))
    sent = [update.payload["delta"] for _, update, _ in results]
    return {
        name: sum(n * delta[name] for n, delta in zip(sizes, sent, strict=True)) / sum(sizes)
        for name in parameters
    }


def test_descent_with_step_1_is_fedavg():
    data = federation()
    averaged = [each.server_state["parameters"] for each in train(METHOD, data, RNG)[0]]
    expected = tree.to(METHOD.init(data.meta, RNG.at("init"))["parameters"], "cpu", torch.float64)
    for r, found in enumerate(averaged, 1):
        expected = tree.add(expected, mean_delta(data, expected, r))
        assert_near(found, expected, 1e-12)


@pytest.mark.parametrize(("lr", "momentum"), [(0.5, 0.0), (1.0, 0.9), (0.3, 0.5)])
def test_momentum_is_that_of_torch(lr, momentum):
    """``torch.optim.SGD`` on the negative delta as its gradient."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, generator=generator, dtype=torch.float64)
    server, theirs = ServerSGD(lr, momentum), torch.nn.Parameter(x.clone())
    optimizer = torch.optim.SGD([theirs], lr=lr, momentum=momentum)
    moved, state = {"x": x}, server.init({"x": x})
    for _ in range(4):
        delta = torch.randn(5, generator=generator, dtype=torch.float64)
        moved, state = server.step(moved, {"x": delta}, state)
        theirs.grad = -delta
        optimizer.step()
    torch.testing.assert_close(moved["x"], theirs.detach(), rtol=1e-12, atol=1e-12)


def test_an_adaptive_step_has_the_size_of_the_learning_rate_whatever_the_delta():
    for scale in (1e-1, 1e3):
        x = {"x": torch.zeros(1, dtype=torch.float64)}
        server = ServerAdam(lr=0.1, beta1=0.0, tau=1e-9, beta2=0.0)
        moved, _ = server.step(x, {"x": x["x"] + scale}, server.init(x))
        assert moved["x"].item() == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        (ServerSGD, {"lr": 0.0}),
        (ServerSGD, {"momentum": 1.0}),
        (ServerAdam, {"lr": -1.0}),
        (ServerAdam, {"beta1": 1.0}),
        (ServerAdam, {"beta2": 1.0}),
        (ServerYogi, {"beta2": -0.1}),
        (ServerAdagrad, {"tau": 0.0}),
    ],
)
def test_values_outside_their_range_are_refused(settings):
    kind, values = settings
    with pytest.raises(ValueError, match=next(iter(values))):
        kind(**values)
