"""Data on another device: every method trains, scores and draws figures as on the CPU."""

import dataclasses

import pytest
import torch

from fedbolic import tree
from fedbolic.data import FederatedData
from fedbolic.federated import AggregatedUpdate, Evaluation, FineTune, RidgeHead, Trainer
from fedbolic.federated.secure import SecureSum
from fedbolic.rng import Rng
from fedhull import Central, EuclideanBoundary, FedHull
from tests import shadow
from tests.subjects import QUICK, subject

SCORED = Evaluation(fine_tuning=FineTune(1), ridge_head=RidgeHead())


def measured(method, data, device="cpu", channels=()):
    """Rows and final figures of a short run in which no client fails."""
    data = data.to(device)
    run = Trainer(channels=channels, evaluation=SCORED).run(method, data, Rng(5))
    positions, rows = zip(*run, strict=True)
    rows = [row for of_exchange in rows for row in of_exchange]
    assert not any(row.value for row in rows if row.name == "clients/failed")
    return rows, method.figures(positions[-1].server_state, data)


def few(data):
    """The first two clients and the test set."""
    meta = dataclasses.replace(data.meta, num_clients=2)
    clients = [dataclasses.replace(client, meta=meta) for client in data.clients[:2]]
    return FederatedData(tuple(clients), meta, data.holdout)


def assert_no_device_matters(method, data, device, near=0.0):
    rows, figures = measured(method, data)
    assert any(row.name.startswith("holdout/") for row in rows) or not figures
    there, drawn = measured(method, data, device)
    assert [row[:3] for row in there] == [row[:3] for row in rows]
    assert [row.value for row in there] == pytest.approx([r.value for r in rows], abs=near)
    assert drawn.keys() == figures.keys()


@pytest.mark.parametrize("name", QUICK)
def test_a_method_runs_on_another_device(name, monkeypatch):
    method, data = subject(name)
    if "rounds" in {field.name for field in dataclasses.fields(method) if field.init}:
        method = dataclasses.replace(method, rounds=1 + (name == "spherefed"))
    with shadow.device(monkeypatch):
        assert_no_device_matters(method, few(data), shadow.DEVICE)


HULLS = [
    FedHull(),
    FedHull(boundary=EuclideanBoundary()),
    Central(),
    Central(EuclideanBoundary()),
    Central(hulls="released"),
]


@pytest.mark.parametrize("method", HULLS, ids=repr)
def test_hulls_and_their_centre_run_on_another_device(method, monkeypatch):
    _, data = subject("fedhull")
    with shadow.device(monkeypatch):
        assert_no_device_matters(method, few(data), shadow.DEVICE)


@pytest.mark.parametrize("name", ["fedavg", "fedhull", "flynn"])
def test_a_secure_sum_runs_on_another_device(name, monkeypatch):
    method, data = subject(name)
    with shadow.device(monkeypatch):
        assert_no_device_matters(SecureSum(method), data, shadow.DEVICE)


def test_votes_that_come_from_nodes_to_a_device_are_read(monkeypatch):
    method, data = subject("fedhull")
    *exchanges, (end, _) = Trainer().run(method, data, Rng(5))
    before = exchanges[-1][0].server_state
    phase = method.phase(before)
    votes = {"votes": 3 * torch.eye(before["num_classes"], dtype=torch.int64)}
    with shadow.device(monkeypatch):
        total = AggregatedUpdate(tree.to(votes, shadow.DEVICE), 1.0, (0,))
        named = phase.server_update(before, total)["names"]
    assert named.sort().values.tolist() == end.server_state["names"].sort().values.tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("name", QUICK)
def test_a_method_runs_on_a_gpu(name):
    method, data = subject(name)
    rows, _ = measured(method, few(data), "cuda")
    assert any(row.name.endswith("accuracy") for row in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("method", HULLS, ids=repr)
def test_hulls_and_their_centre_run_on_a_gpu(method):
    _, data = subject("fedhull")
    assert_no_device_matters(method, few(data), "cuda", near=1e-6)
