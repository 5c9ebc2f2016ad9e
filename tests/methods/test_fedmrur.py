"""FedMRUR against the steps of its docstring, written with plain networks."""

import copy
import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import Cohort, LocalTraining, ServerSGD
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import FedAvg, FedMRUR
from fedbolic.nn.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    average,
    batches,
    federation,
    plain_network,
    rows_of,
    train,
)

METHOD = FedMRUR(MLP((4,)), rounds=3, local=LocalTraining(2, 3), lr=0.2, mu=0.7, c=0.5)
SIZES = (7, 4, 12, 5)


def hyperboloid(z, c):
    """Time and space coordinates of the exponential map at the origin, rows of features."""
    r = z.norm(dim=1, keepdim=True).clamp_min(1e-30) * c**0.5
    return torch.cat([torch.cosh(r), torch.sinh(r) * z * c**0.5 / r], dim=1) / c**0.5


def squared_distance(x, y, c):
    """``acosh(1 + u)^2 / c`` with ``u = c <x - y, x - y> / 2``, by its series for a small u."""
    gap = x - y
    u = c * (-gap[:, 0].square() + gap[:, 1:].square().sum(dim=1)) / 2
    small = u < 1e-5
    far = torch.acosh(1 + torch.where(small, 1.0, u)).square()
    return torch.where(small, 2 * u - u**2 / 3 + 4 * u**3 / 45, far) / c


def local_network(network, method, client, round):
    received = copy.deepcopy(network).eval()
    descent = torch.optim.SGD(network.parameters(), lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        descent.zero_grad()
        z = network.body(x)
        with torch.no_grad():
            z_global = received.body(x)
        points = (hyperboloid(value, method.c) for value in (z, z_global))
        distance = squared_distance(*points, method.c)
        (cross_entropy(network.head(z), y) + method.mu * distance.mean()).backward()
        descent.step()
    return network


def flat_norm(values):
    return torch.cat([value.flatten() for value in values.values()]).norm()


def rounds_of(method, data, cohorts, initial, norm):
    names = [name for name, _ in plain_network(*initial, norm=norm).named_parameters()]
    values = {**initial[0], **initial[1]}
    for r, cohort in enumerate(cohorts, 1):
        ends, deltas, norms = [], [], []
        for i in cohort:
            parameters = {n: v for n, v in values.items() if n in names}
            buffers = {n: v for n, v in values.items() if n not in names}
            network = plain_network(parameters, buffers, norm=norm)
            local_network(network, method, data.clients[i], r)
            ends.append({n: v.clone() for n, v in network.state_dict().items()})
            deltas.append({n: ends[-1][n] - values[n] for n in names})
            norms.append(flat_norm(deltas[-1]))
        sizes = [len(data.clients[i].train) for i in cohort]
        direction = average(deltas, sizes)
        length = sum(n * size for n, size in zip(norms, sizes, strict=True)) / sum(sizes)
        step = {n: v * length / flat_norm(direction) for n, v in direction.items()}
        values = {**average(ends, sizes), **{n: values[n] + step[n] for n in names}}
    return {n: values[n] for n in names}


@pytest.mark.parametrize(("backbone", "sizes"), [(MLP((4,)), SIZES), (NormNet(), (6, 9, 12, 6))])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_are_those_of_the_definition(backbone, sizes, rate):
    data = federation(sizes)
    method = dataclasses.replace(METHOD, backbone=backbone)
    states, rows = train(method, data, RNG, cohort=Cohort(rate))
    trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
    cohorts = [[row.client for row in trained if row.round == r] for r in range(1, 4)]
    parameters, buffers = method.model(data.meta).init(RNG.at("init").at("model").number())
    initial = {n: v.double() for n, v in parameters.items()}, buffers
    expected = rounds_of(method, data, cohorts, initial, isinstance(backbone, NormNet))
    assert_near(states[-1].server_state["parameters"], expected, 1e-9)


def test_one_client_without_the_regularizer_is_fedavg():
    data = federation((9,))
    common = {"backbone": MLP((4,)), "rounds": 3, "local": LocalTraining(2, 3), "lr": 0.2}
    ours, _ = train(FedMRUR(**common, mu=0.0), data)
    theirs, _ = train(FedAvg(**common), data)
    expected = theirs[-1].server_state["parameters"]
    assert_near(ours[-1].server_state["parameters"], expected, 1e-12)


def test_deltas_that_cancel_leave_the_model_where_it_is():
    data = federation((4, 4), dtype=torch.float32)
    method = dataclasses.replace(METHOD, rounds=1)
    server_state = method.init(data.meta, RNG)
    message = method.broadcast(server_state, 0)
    update, _ = method.local_update(message, data.clients[0], {}, RNG)
    opposite = {n: -v for n, v in update.payload["delta"].items()}
    updates = [
        (0, update),
        (1, dataclasses.replace(update, payload={**update.payload, "delta": opposite})),
    ]
    after = method.server_update(server_state, method.aggregator.aggregate(updates))
    assert_near(after["parameters"], server_state["parameters"], 0.0)


def test_the_server_may_scale_its_step_and_sum_in_secret():
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, server_optimizer=ServerSGD(lr=0.5))
    first, rows = train(method, data)
    _, masked = train(SecureSum(method, fraction_bits=40), data)
    expected = rows_of(rows, "holdout/loss", 3)
    assert rows_of(masked, "holdout/loss", 3) == pytest.approx(expected, rel=1e-6)
    whole, _ = train(METHOD, data)
    initial = METHOD.init(data.meta, RNG.at("init"))["parameters"]
    for name, start in initial.items():
        half, full = (run[0].server_state["parameters"][name] - start for run in (first, whole))
        torch.testing.assert_close(2 * half, full)


@pytest.mark.parametrize("settings", [{"mu": -1.0}, {"c": 0.0}, {"c": float("nan")}])
def test_what_is_out_of_range_is_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        FedMRUR(**settings)
