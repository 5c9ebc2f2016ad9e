"""Limits and refusals of FedMRUR, whose algorithm is in ``tests/conformance``."""

import dataclasses

import pytest
import torch

from fedbolic.federated import LocalTraining, ServerSGD
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import FedAvg, FedMRUR
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    assert_near,
    federation,
    rows_of,
    train,
)

METHOD = FedMRUR(MLP((4,)), rounds=3, local=LocalTraining(2, 3), lr=0.2, mu=0.7, c=0.5)
SIZES = (7, 4, 12, 5)


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
