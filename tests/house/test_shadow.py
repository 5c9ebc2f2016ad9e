"""Data on another device: every method trains, scores and draws figures as on the CPU."""

import dataclasses

import pytest
import torch

pytest.importorskip("flint")

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData
from fedbolic.federated import (
    AggregatedUpdate,
    Batched,
    Evaluation,
    FineTune,
    Graphed,
    LocalTraining,
    RidgeHead,
    Sequential,
    Trainer,
)
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.secure import SecureSum
from fedhull import Central, EuclideanBoundary, FedHull
from tests import shadow
from tests.subjects import QUICK, subject


@pytest.fixture
def device(monkeypatch):
    with shadow.device(monkeypatch) as device:
        yield device


def test_devices_are_not_mixed(device):
    x = torch.ones(3).to(shadow.DEVICE)
    with device.current("second"):
        y = torch.ones(3).to(shadow.DEVICE)
    for other in (torch.ones(3), y):
        with pytest.raises(RuntimeError, match="same device"):
            x + other
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3)[x.long()]
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    assert (x + torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]  # a number, as CUDA allows
    assert x[torch.tensor([0])].cpu().tolist() == [1.0]
    assert y.device_label == "second"
    assert (y * y).device_label == "second"


WORK = {
    "a sum": (lambda x: x + x, {"launches": 1}),
    "a view": (lambda x: x.view(2, 2).T[0], {"views": 3}),
    "a number": (lambda x: x[0].item(), {"launches": 1, "views": 1, "waits": 1}),
    "a list": (lambda x: x.tolist(), {"waits": 1}),
    "a copy down": (lambda x: x.cpu(), {"launches": 1, "waits": 1}),
    "a mask": (lambda x: x[x > 0], {"launches": 2, "waits": 1}),
    "positions": (lambda x: x.nonzero(), {"launches": 1, "waits": 1}),
    "distinct values": (lambda x: x.unique(), {"launches": 1, "waits": 1}),
    "repetitions": (lambda x: torch.repeat_interleave(x.long()), {"launches": 2, "waits": 1}),
    "a branch": (lambda x: bool(x.sum()), {"launches": 2, "waits": 1}),
    "a copy up": (lambda x: torch.ones(3).to(x.device), {"launches": 1, "uploads": 1}),
    "a new tensor": (lambda x: torch.tensor([1.0], device=x.device), {"launches": 1, "uploads": 1}),
    "an index from the host": (lambda x: x[torch.tensor([0])], {"launches": 1, "uploads": 1}),
    "an index by a list": (lambda x: x[[0]], {"launches": 1, "uploads": 1}),
    "zeros": (lambda x: torch.zeros(3, device=x.device), {"launches": 1}),
    "storage": (lambda x: torch.empty_like(x), {"views": 1}),
    "one sum of many": (lambda x: torch._foreach_add([x, x, x], 1), {"launches": 1}),
}
"""Operations, and the work of CUDA for them by its documentation."""


@pytest.mark.parametrize("name", WORK)
def test_work_is_counted_as_on_a_gpu(name, device):
    function, expected = WORK[name]
    x = torch.arange(4.0).to(shadow.DEVICE)
    device.work.clear()
    function(x)
    assert {kind: n for kind, n in device.work.total().items() if n} == expected


def with_rows(x, index):
    x = x.clone()
    x[index] = 7.0
    return x


NUMBERS = {
    "rows": lambda x: x[[2, 0]],
    "columns": lambda x: x[:, [1]],
    "places": lambda x: x[[0, 2], [1, 0]],
    "a table of rows": lambda x: x[..., [[0, 1], [1, 0]]],
    "a mask": lambda x: x[[True, False, True]],
    "no rows": lambda x: x[[]],
    "rows that are written": lambda x: with_rows(x, [0, 2]),
    "columns by vmap": lambda x: torch.vmap(lambda row: row[[1, 1, 0]])(x),
    "a gradient": lambda x: torch.func.grad(lambda y: y[[0, 0, 1]].square().sum())(x),
    "a tensor": lambda x: x + torch.tensor([1.0, 2.0], device=x.device),
    "a tensor like another": lambda x: x + x.new_tensor([1.0, 2.0]),
    "a number": lambda x: x * torch.as_tensor(3.0, device=x.device),
}
"""Functions of a matrix with Python's numbers in lists, of which torch makes tensors."""


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_a_list_reach_the_device(name, device):
    x = torch.arange(6.0).view(3, 2)
    found, expected = NUMBERS[name](x.to(shadow.DEVICE)), NUMBERS[name](x)
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


def test_a_tensor_without_values_is_refused(device):
    x = torch.arange(2.0).to(shadow.DEVICE)
    for function in (lambda: x[range(2)], lambda: x * torch.asarray(2.0, device=shadow.DEVICE)):
        with pytest.raises(RuntimeError, match="without values"):
            function()


SCORED = Evaluation(fine_tuning=FineTune(1), ridge_head=RidgeHead())


ENGINES = {"sequential": Sequential(), "batched": Batched(), "graphed": Graphed()}

OFTEN = ("fedavg", "flatland", "scaffold")
"""Configurations that are tried with every engine; the others with the reference engine only."""


ROUNDED = {"flatland/links", "fedavg/hyperbolic"}
"""Configurations whose float32 losses and scores differ by one unit in the last place."""


def measured(method, data, device="cpu", engine=ENGINES["sequential"]):
    """Rows and final figures of a short run in which no client fails."""
    data = data.to(device)
    run = Trainer(engine, evaluation=SCORED).run(method, data, Rng(5))
    positions, rows = zip(*run, strict=True)
    rows = [row for of_exchange in rows for row in of_exchange]
    assert not any(row.value for row in rows if row.name == "clients/failed")
    reports = isinstance(method, Reporting)
    return rows, method.figures(positions[-1].server_state, data) if reports else {}


def few(data):
    """The first two clients and the test set."""
    meta = dataclasses.replace(data.meta, num_clients=2)
    clients = [dataclasses.replace(client, meta=meta) for client in data.clients[:2]]
    return FederatedData(tuple(clients), meta, data.holdout)


def assert_no_device_matters(method, data, device, near=0.0, engine=ENGINES["sequential"]):
    rows, figures = measured(method, data, engine=engine)
    assert any(row.name.startswith("holdout/") for row in rows) or not figures
    there, drawn = measured(method, data, device, engine)
    assert [row[:3] for row in there] == [row[:3] for row in rows]
    assert [row.value for row in there] == pytest.approx([r.value for r in rows], abs=near)
    assert drawn.keys() == figures.keys()


CASES = [
    pytest.param(
        name,
        engine,
        marks=[] if engine == "sequential" or name in OFTEN else pytest.mark.slow,
    )
    for name in QUICK
    for engine in ENGINES
]


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_a_run_on_another_device_is_the_same(name, engine, monkeypatch):
    method, data = subject(name)
    if "rounds" in {field.name for field in dataclasses.fields(method) if field.init}:
        method = dataclasses.replace(method, rounds=1 + (name == "spherefed"))
    with shadow.device(monkeypatch):
        near = 1e-6 if name in ROUNDED else 0.0
        assert_no_device_matters(method, few(data), shadow.DEVICE, near, ENGINES[engine])


def test_captured_steps_of_links_are_those_of_a_loop_where_clients_differ_in_size(monkeypatch):
    method, data = subject("flatland/links")
    assert len({len(client.train) for client in data.clients}) > 1
    method = dataclasses.replace(method, rounds=1, local=LocalTraining(2, batch_size=None))
    engine = Graphed()
    with shadow.device(monkeypatch):
        rows, _ = measured(method, data, shadow.DEVICE, engine)
        alone, _ = measured(method, data, shadow.DEVICE)
    assert not engine._uncaptured
    assert [row.value for row in rows] == pytest.approx([r.value for r in alone], abs=1e-5)


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
@pytest.mark.parametrize("method", HULLS, ids=repr)
def test_hulls_and_their_centre_run_on_a_gpu(method):
    _, data = subject("fedhull")
    assert_no_device_matters(method, few(data), "cuda", near=1e-6)
