"""Whole runs on a GPU: equal to the CPU's, equal to themselves, and without waits in a step."""

import contextlib
import functools

import pytest
import torch

from benchmarks.gpu.workloads import engines
from benchmarks.methods.quick import visiting
from benchmarks.timing import waits
from fedbolic.core import tree
from fedbolic.core.imports import MissingExtraError
from fedbolic.core.rng import Rng
from fedbolic.federated import Evaluation, FineTune, RidgeHead, Sequential, Trainer
from fedbolic.federated.batched.joint import joint, joint_form
from fedbolic.federated.contract.engine import Exchange, Failure
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.wrapping_method import DelegatedSteps
from fedbolic.run.reproducible import reproducible
from tests.subjects import QUICK, settings, subject

pytestmark = pytest.mark.gpu

CUDA = "cuda"
NEAR = 1e-9
SCORED = Evaluation(fine_tuning=FineTune(1), ridge_head=RidgeHead())
every_engine = pytest.mark.parametrize("engine", engines().values(), ids=repr)
stacked_engine = pytest.mark.parametrize("engine", list(engines().values())[1:], ids=repr)


def method_of(name):
    """The method of a setting; ``None`` where a package that it needs is not installed."""
    with contextlib.suppress(MissingExtraError):
        return settings(name)["method"]


every_name = pytest.mark.parametrize("name", [name for name in QUICK if method_of(name)])
GRADIENT = [name for name in QUICK if isinstance(method_of(name), GradientMethod)]
every_gradient_name = pytest.mark.parametrize("name", GRADIENT)


def ended(name, engine, device):
    """Values at the end of a run in float64, and its rows; no client may fail."""
    method, data = subject(name)
    run = list(
        Trainer(engine, evaluation=SCORED).run(method, data.to(device, torch.float64), Rng(5))
    )
    rows = [row for _, of_exchange in run for row in of_exchange]
    assert not any(row.value for row in rows if row.name == "clients/failed")
    state, _ = run[-1]
    kept = {str(i): state.client_states[i] for i in sorted(state.client_states)}
    values = tree.tensors({"server": state.server_state, "clients": kept})
    return values, rows


@functools.cache
def on_the_cpu(name):
    return ended(name, Sequential(), "cpu")


@every_engine
@every_name
def test_a_run_is_that_on_the_cpu_up_to_rounding(name, engine):
    values, rows = ended(name, engine, CUDA)
    expected, told = on_the_cpu(name)
    assert values.keys() == expected.keys()
    for path, value in expected.items():
        there = values[path].cpu()
        assert there.dtype == value.dtype
        torch.testing.assert_close(there, value, rtol=NEAR, atol=NEAR, msg=path)
    assert [row[:3] for row in rows] == [row[:3] for row in told]
    assert [row.value for row in rows] == pytest.approx([row.value for row in told], abs=NEAR)


@every_engine
@every_name
def test_two_runs_are_equal_byte_for_byte(name, engine):
    with reproducible(torch.device(CUDA)):
        (first, rows), (second, again) = (ended(name, engine, CUDA) for _ in range(2))
    assert first.keys() == second.keys()
    assert [path for path, value in first.items() if not torch.equal(value, second[path])] == []
    assert rows == again


@stacked_engine
@every_gradient_name
def test_no_step_waits_for_the_device(name, engine):
    method, data = subject(name)
    data, visits = data.to(CUDA), method.local.repeats
    with engine.open(data.clients) as opened:
        # libraries start, what is measured once is known, and a step's second call is captured
        for v in (visits, visits + 2) * 2:
            exchanged(opened, visiting(method, v), data)
        few, more = (
            waits(lambda v=v: exchanged(opened, visiting(method, v), data), torch.device(CUDA))
            for v in (visits, visits + 2)
        )
    assert few == more


@every_engine
@every_gradient_name
def test_neither_a_loss_nor_a_step_waits_for_the_device(name, engine, monkeypatch, caplog):
    method, data = subject(name)
    data = data.to(CUDA)
    exchanged(engine, method, data)
    inner = method.method if isinstance(method, DelegatedSteps) else method
    for part in ("loss", "step"):
        form, guarded = joint_form(inner, part), without_waits(getattr(type(inner), part))
        monkeypatch.setattr(type(inner), part, guarded)
        if form is not None:
            joint(guarded)(without_waits(form.func))
    with caplog.at_level("INFO"):
        results = exchanged(engine, method, data)
    assert [update.error for _, update, _ in results if isinstance(update, Failure)] == []
    assert "one by one" not in caplog.text


def exchanged(engine, method, data):
    """Results of the first exchange."""
    start = Trainer().begin(method, data, Rng(5)).server_state
    messages = {client.id: method.broadcast(start, client.id) for client in data.clients}
    return list(engine.run(Exchange(method, messages, data.clients, {}, Rng(5))))


def without_waits(function):
    """The function, during which a wait for the device is an error."""

    @functools.wraps(function)
    def guarded(*args, **kwargs):
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            return function(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    return guarded
