"""The memory of stacked clients on a device whose memory is measured, here by a made-up meter."""

import ctypes

import pytest
import torch

from fedbolic.data import Examples
from fedbolic.federated import Batched, Graphed, LocalTraining
from fedbolic.federated.batched import memory_budget
from fedbolic.federated.batched.memory_budget import (
    CPU_MEGABYTES,
    CudaMemory,
    MemoryLine,
    memory_limit,
    memory_meter,
)
from fedbolic.federated.batched.memory_estimate import LIBRARIES
from fedbolic.federated.batched.replay import GraphPool
from fedbolic.federated.batched.static_steps import StaticSteps
from fedbolic.federated.contract.engine import Failure
from fedbolic.federated.engines import batched
from fedbolic.nn.network.backbone import MLP
from tests.federated.agreement import assert_engines_agree, exchange, with_, with_client
from tests.federated.simple_method import SMALL, federation
from tests.rehearsal import CUDA, MEBIBYTE, rehearsal

SIZES = (8,) * 13


class Meter(memory_budget.MemoryMeter):
    """A device on which a step of n clients takes ``constant + each * n`` megabytes."""

    def __init__(self, together, *, free, constant, each):
        self.together, self.of_all = together, free
        self.constant, self.each = constant, each
        self.measured = []

    def free(self):
        return self.of_all

    def peak(self, work):
        work()
        num_clients = self.together.pop()  # a measured step is no part of training
        self.measured.append(num_clients)
        return self.constant + self.each * num_clients


@pytest.fixture
def metered(together, monkeypatch):
    """Replaces the meter of every device; returns it and the sizes of the trained groups."""

    def use(**settings):
        meter = Meter(together, **settings)
        monkeypatch.setattr(batched, "memory_meter", lambda device: meter)
        return meter

    return use


def trained(together, meter):
    """Sizes of the groups that were trained, without the step before each pair of measured ones."""
    sizes = list(together)
    for _ in meter.measured[::2]:
        sizes.remove(2)
    return sizes


def test_as_many_clients_are_stacked_as_the_measured_line_allows(metered, together):
    meter = metered(free=100.0, constant=30.0, each=10.0)
    exchange(Batched(), SMALL, federation(SIZES))
    assert meter.measured == [2, 4]
    assert trained(together, meter) == [5, 5, 3]  # 30 + 5 * 10 is 0.8 of 100


def test_a_form_is_measured_once(metered, together):
    meter, engine = metered(free=100.0, constant=30.0, each=10.0), Batched()
    for _ in range(2):
        exchange(engine, SMALL, federation(SIZES))
    assert meter.measured == [2, 4]
    assert trained(together, meter) == [5, 5, 3] * 2
    exchange(engine, with_(backbone=MLP((7,))), federation(SIZES))
    assert meter.measured == [2, 4] * 2


def test_a_limit_of_the_users_own_is_not_measured(metered, together):
    meter = metered(free=1.0, constant=30.0, each=10.0)
    exchange(Batched(memory=CPU_MEGABYTES), SMALL, federation(SIZES))
    assert meter.measured == []
    assert together == [13]


def test_too_few_clients_are_not_measured(metered, together):
    meter = metered(free=1000.0, constant=30.0, each=10.0)
    exchange(Batched(), SMALL, federation(SIZES[:3]))
    assert meter.measured == []
    assert together == [3]


def test_one_client_is_trained_however_little_memory_is_free(metered, together):
    metered(free=1.0, constant=30.0, each=10.0)
    exchange(Batched(), SMALL, federation(SIZES[:3]))
    assert together == [1, 1, 1]


def test_measuring_leaves_no_trace_in_the_results(metered):
    meter = metered(free=100.0, constant=30.0, each=10.0)
    for method in (SMALL, with_(local=LocalTraining(2, 3))):
        assert_engines_agree(method, federation((9, 4, 13, 9, 2, 7, 8)))
    assert meter.measured


def test_a_client_that_fails_while_it_is_measured_fails_alone(metered):
    meter = metered(free=100.0, constant=30.0, each=10.0)
    data = federation(SIZES)
    labels = data.clients[1].train.tensors["y"] + 99
    wrong = Examples({**data.clients[1].train.tensors, "y": labels})
    results = exchange(Batched(), SMALL, with_client(data, 1, train=wrong))
    assert [client.id for client, update, _ in results if isinstance(update, Failure)] == [1]
    assert meter.measured == []


def test_larger_clients_take_more_of_the_line(metered, together):
    meter = metered(free=100.0, constant=30.0, each=10.0)
    sizes = (8,) * 4 + (64,) * 6
    exchange(Batched(), with_(local=LocalTraining(1, None)), federation(sizes))
    first, *others = trained(together, meter)
    assert (first, sum(others)) == (4, 6)
    assert max(others) < 5


@pytest.mark.parametrize(
    ("estimates", "peaks"),
    [((2.0, 2.0), (1.0, 3.0)), ((2.0, 4.0), (5.0, 5.0)), ((2.0, 4.0), (5.0, 3.0))],
)
def test_a_line_that_does_not_rise_is_not_used(estimates, peaks):
    assert MemoryLine.through(estimates, peaks) == MemoryLine(LIBRARIES, 1.0)


def test_a_line_never_begins_below_zero():
    assert MemoryLine.through((2.0, 4.0), (10.0, 30.0)) == MemoryLine(0.0, 10.0)


def test_the_limit_is_the_users_then_the_devices_then_a_constant(together):
    meter = Meter(together, free=200.0, constant=0.0, each=1.0)
    assert memory_limit(7.0, meter) == 7.0
    assert memory_limit(None, meter) == 160.0
    assert memory_limit(None, None) == CPU_MEGABYTES
    assert memory_meter(torch.device("cpu")) is None
    assert memory_meter(torch.device("cuda", 1)) == CudaMemory(torch.device("cuda", 1))


@pytest.mark.gpu
def test_a_gpu_measures_what_a_call_takes():
    meter = CudaMemory(torch.device("cuda"))

    def work():
        torch.empty(2**20, device="cuda")  # 4 megabytes, one after another
        torch.empty(2**21, device="cuda")

    before = meter.free()
    assert meter.peak(work) == pytest.approx(8.0, rel=0.3)
    assert meter.free() == pytest.approx(before, rel=0.01)


def test_the_memory_of_graphs_is_not_free():
    with rehearsal() as device:
        x, meter = torch.zeros(1).to(CUDA), CudaMemory(CUDA)
        before = meter.free()
        device.of_capture = 60 * MEBIBYTE
        pool = GraphPool(CUDA)
        graphs = [pool.captured(lambda: x.add_(1)) for _ in range(2)]
        device.cached += 5 * MEBIBYTE  # of other tensors that are gone
        device.free -= 5 * MEBIBYTE
        assert pool.nbytes == 3 * 60 * MEBIBYTE  # one keeps the pool
        assert meter.free() == before - 180
        del graphs, pool
        assert meter.free() == before


@pytest.mark.parametrize("engine", [Batched(memory=1e6), Graphed(memory=1e6)], ids=repr)
def test_groups_are_halved_when_memory_runs_out(engine, monkeypatch, caplog):
    sizes, results_of = [], batched.results_of

    def full(method, tasks, ended):
        sizes.append(len(tasks))
        if len(tasks) > 4:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory")
            except RuntimeError:  # as a capture ends then
                raise RuntimeError("operation failed due to a previous error") from None
        return results_of(method, tasks, ended)

    monkeypatch.setattr(batched, "results_of", full)
    caplog.set_level("INFO")
    data = federation(SIZES)
    assert_engines_agree(SMALL, data, fast=engine)
    assert sizes[:4] == [13, 6, 3, 3]
    assert max(sizes[7:]) <= 4
    assert not engine._refused
    assert "no memory for 13 clients at a time, from now on 6" in caplog.text


def test_steps_that_are_kept_make_room_before_a_group_is_halved(monkeypatch):
    engine, run, kept = Graphed(), StaticSteps.run, []

    def full(self, wave):
        kept.append(len(engine._kept))
        if len(engine._kept) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, wave)

    monkeypatch.setattr(StaticSteps, "run", full)
    for method in (SMALL, with_(backbone=MLP((9,)))):
        exchange(engine, method, federation(SIZES))
    assert kept == [1, 2, 1]
    assert not engine._most
    assert not engine._uncaptured


@pytest.mark.parametrize(
    "library", [lambda name: object(), lambda name: "/" in name], ids=["macOS or musl", "Windows"]
)
def test_a_system_that_takes_no_memory_back_is_no_fault(library, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", library)
    memory_budget.return_freed()
