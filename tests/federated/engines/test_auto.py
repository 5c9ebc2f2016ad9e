"""The engine chosen by timing: the fastest one, chosen once, without effect on the results."""

import dataclasses
import json
import math
import time
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from fedbolic.data import IID, Partitioned
from fedbolic.federated import Auto, Batched, Engine, Graphed, LocalTraining, Sequential, Workers
from fedbolic.federated.contract.engine import Exchange
from fedbolic.federated.engines import auto
from fedbolic.methods import FedAvg, Majority
from fedbolic.nn.network.backbone import MLP
from fedbolic.run.configuration import SetupError
from fedbolic.run.experiment import resume, run
from fedbolic.run.record import RunFolder
from tests.federated.simple_method import RNG, SIZES, SMALL, assert_same, federation, train

DATA = Partitioned(partition=IID(3), num_train=60, num_test=20)
METHOD = FedAvg(backbone=MLP((4,)), rounds=2, local=LocalTraining(epochs=1, batch_size=16))


class Clock:
    """A stopwatch that advances only when an engine sets it forward."""

    now = 0.0

    def perf_counter(self):
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def _watched(monkeypatch):
    monkeypatch.setattr(auto, "time", CLOCK)


@dataclass(frozen=True)
class Late(Engine):
    """Sequential with a fixed delay for every exchange and for every step."""

    exchange: float = 0.0
    step: float = 0.0

    def run(self, exchange):
        method = exchange.method
        steps = sum(
            len(method.plan(method.model(client.meta), client, exchange.rng).lengths)
            for client in exchange.clients
        )
        CLOCK.now += self.exchange + steps * self.step
        return Sequential().run(exchange)


@dataclass(frozen=True)
class Alone(Late, Sequential):
    """The same of an engine that is known to run one client after another."""


@dataclass(frozen=True)
class Unable(Sequential):
    def check(self, clients):
        raise ValueError("this machine is too old")


def chosen(engine, method, data, rounds=math.inf):
    messages = {c.id: method.broadcast(method.init(data.meta, RNG), c.id) for c in data.clients}
    return engine.settle(Exchange(method, messages, data.clients, {}, RNG), rounds)


@pytest.mark.parametrize("short", [0.0, auto.SHORT], ids=["estimated", "timed"])
@pytest.mark.parametrize(
    ("epochs", "expected"), [(1, Late(step=0.01)), (40, Late(exchange=0.2))], ids=["short", "long"]
)
def test_the_whole_exchange_decides_and_not_its_beginning(epochs, expected, short, monkeypatch):
    monkeypatch.setattr(auto, "SHORT", short)
    method = dataclasses.replace(SMALL, local=LocalTraining(epochs, 20))
    engines = (Late(exchange=0.2), Late(step=0.01))
    engine, seconds = chosen(Auto(engines), method, federation((20, 20)))
    assert engine == expected
    assert seconds.keys() == {repr(e) for e in engines}
    assert list(seconds.values()) == pytest.approx([0.2, 2 * epochs * 0.01])


@pytest.mark.parametrize("rounds", [1, 3, 20, 100, 1000])
@pytest.mark.parametrize("epochs", [1, 30])
@pytest.mark.parametrize("sizes", [(20,), (20,) * 50, (5, 100, 40) * 5])
def test_trials_take_at_most_a_twentieth_of_the_run(rounds, epochs, sizes):
    method = dataclasses.replace(SMALL, local=LocalTraining(epochs, 20))
    began, step = CLOCK.now, 0.001
    engines = Late(step=1.1 * step), Late(step=step)
    engine, seconds = chosen(Auto(engines), method, federation(sizes), rounds)
    steps = epochs * sum(-(-size // 20) for size in sizes)
    assert CLOCK.now - began <= 1.1 * step * auto.SHARE * rounds * steps + 1e-9
    assert engine == engines[bool(seconds)]
    if seconds:
        assert list(seconds.values()) == pytest.approx([1.1 * step * steps, step * steps])
    assert seconds or rounds * steps * auto.SHARE / 2 < 5 * min(2, len(sizes))


def test_trials_of_an_engine_that_is_far_slower_are_still_a_twentieth_of_the_run():
    began, method = CLOCK.now, dataclasses.replace(SMALL, local=LocalTraining(5, 20))
    engines = Alone(step=0.007), Late(step=0.001)
    engine, seconds = chosen(Auto(engines), method, federation((20,) * 50), 20)
    assert engine == engines[1]
    assert list(seconds.values()) == pytest.approx([0.007 * 250, 0.25])
    assert CLOCK.now - began <= auto.SHARE * 20 * 0.25


def test_the_first_is_kept_where_another_gains_next_to_nothing():
    engines = Late(0.103), Late(0.1)
    engine, seconds = chosen(Auto(engines), SMALL, federation(SIZES))
    assert (engine, len(seconds)) == (engines[0], 2)


@pytest.mark.parametrize(("seconds", "started"), [(150, False), (300, True), (10**5, True)])
def test_processes_are_started_where_a_twentieth_of_the_run_pays_for_two_starts(
    seconds, started, monkeypatch
):
    @contextmanager
    def opened(self, clients):
        CLOCK.now += auto.START_SECONDS
        yield Late(0.001)

    monkeypatch.setattr(Workers, "open", opened)
    engines, began = (Workers(), Late(0.01)), CLOCK.now
    engine, times = chosen(Auto(engines), SMALL, federation(SIZES), seconds / 0.01)
    assert engine == engines[not started]
    assert (repr(Workers()) in times) == started
    assert CLOCK.now - began <= auto.SHARE * seconds


def test_it_leaves_no_trace_in_the_results():
    (*_, plain), rows = train(SMALL, federation(SIZES), RNG)
    (*_, new), new_rows = train(SMALL, federation(SIZES), RNG, engine=Auto((Late(1e-3), Late())))
    assert_same(new.server_state, plain.server_state)
    assert new_rows == rows


def test_one_that_cannot_work_is_left_out():
    data = federation(SIZES)
    engine, seconds = chosen(Auto((Unable(), Late(0.01), Late())), SMALL, data)
    assert engine == Late()
    assert repr(Unable()) not in seconds
    with pytest.raises(ValueError, match="too old"):
        Auto((Unable(),)).check(data.clients)


def test_without_steps_it_is_the_first():
    assert chosen(Auto((Late(9.0), Sequential())), Majority(), federation(SIZES)) == (Late(9.0), {})


@pytest.mark.parametrize("candidates", [(), (Sequential(), Sequential()), (Auto((Batched(),)),)])
def test_what_is_no_choice_is_refused(candidates):
    with pytest.raises(ValueError, match="candidates must"):
        Auto(candidates)


def test_the_folder_keeps_the_choice_and_a_resumed_run_goes_on_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "SHARE", math.inf)
    engine = Auto((Late(0.1), Batched()))
    path = run(METHOD, DATA, engine=engine, runs=tmp_path)
    kept = json.loads((path / "engine.json").read_text())
    assert kept["engine"] == repr(Batched())
    assert kept["seconds"] == {repr(Late(0.1)): pytest.approx(0.1), repr(Batched()): 0.0}

    (path / "engine.json").write_text(json.dumps({"engine": repr(Batched()), "seconds": {}}))
    folder = RunFolder(path)
    folder.save({**folder.load(), "round": 1}, [], 0.0)
    monkeypatch.setattr(auto, "seconds", None)  # timing again would fail
    groups = []
    monkeypatch.setattr(Batched, "_advance", lambda *a: groups.append(a) or list(
        Sequential().run(a[3].of([task.client for task in a[2]]))
    ))  # fmt: skip
    assert resume(path)
    assert groups


def test_a_choice_that_is_no_candidate_any_more_is_refused(tmp_path):
    path = run(METHOD, DATA, engine=Auto((Sequential(),)), runs=tmp_path)
    (path / "engine.json").write_text(json.dumps({"engine": repr(Workers(num=9)), "seconds": {}}))
    folder = RunFolder(path)
    folder.save({**folder.load(), "round": 1}, [], 0.0)
    with pytest.raises(SetupError, match="no candidate is Workers"):
        resume(path)


@pytest.mark.slow
def test_the_real_candidates_are_all_timed(monkeypatch):
    monkeypatch.setattr(auto, "time", time)
    engine, seconds = chosen(Auto(), SMALL, federation(SIZES))
    assert engine in Auto().candidates
    assert len(seconds) == 3
    assert all(0 < value < float("inf") for value in seconds.values())


def test_captured_steps_are_a_candidate_on_cuda_only():
    clients = federation(SIZES).clients
    assert not any(isinstance(engine, Graphed) for engine in Auto()._usable(clients))
    with pytest.raises(ValueError, match="CUDA"):
        Auto((Graphed(),)).check(clients)
