"""Steps on buffers that never move give the same results as one client after another."""

import dataclasses
import gc
import logging
import math
import weakref
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.data import Examples
from fedbolic.federated import (
    Batched,
    Cohort,
    Evaluation,
    Failure,
    FineTune,
    GradientMethod,
    Graphed,
    LocalTraining,
    Sequential,
)
from fedbolic.federated.batched import static_steps
from fedbolic.federated.batched.joint import joint
from fedbolic.federated.batched.replay import Replay
from fedbolic.federated.batched.static_steps import StaticSteps
from fedbolic.federated.batched.wave import capacity, row_counts
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP, ConvNet
from fedbolic.optim import SGD, Adam
from tests.federated.agreement import (
    UNEQUAL,
    assert_engines_agree,
    cut,
    exchange,
    with_,
    with_client,
)
from tests.federated.engines.test_batched import SETTINGS
from tests.federated.simple_method import SMALL, NormNet, assert_near, federation, train
from tests.subjects import every_configuration, subject

NEAR = 1e-12


@pytest.fixture
def sizes_of_waves(monkeypatch):
    """Numbers of clients that were trained on static buffers at the same time, in order."""
    sizes, run = [], StaticSteps.run

    def noted(self, wave):
        sizes.append(len(wave.tasks))
        return run(self, wave)

    monkeypatch.setattr(StaticSteps, "run", noted)
    return sizes


def assert_agrees(method, data, engine=None, *, tolerance=NEAR, **settings):
    engine = engine or Graphed()
    assert_engines_agree(method, data, fast=engine, tolerance=tolerance, **settings)
    assert not engine._uncaptured


@every_configuration
def test_every_method_of_the_library_is_the_same(name, sizes_of_waves):
    method, data = subject(name)
    tables = all(isinstance(client.train, Examples) for client in data.clients)
    by_steps = isinstance(method, GradientMethod)
    data = cut(data, (20, 3, 1, 11)) if tables and by_steps else data.to("cpu", torch.float64)
    tolerance = 1e-10 if name == "spherefed" else NEAR  # its head amplifies rounding: it is solved
    assert_agrees(method, data, tolerance=tolerance, evaluation=Evaluation(every=2))
    assert bool(sizes_of_waves) == by_steps


FEW = ["repeats", "adam", "personal", "dropout", "batch norm", "mixup", "trained prototypes"]
"""Settings that differ most in what a step reads and writes."""


@pytest.mark.parametrize("together", [None, 1])
@pytest.mark.parametrize(
    "setting", [s if s in FEW else pytest.param(s, marks=pytest.mark.slow) for s in SETTINGS]
)
def test_every_setting_is_the_same_whatever_the_sizes(setting, together, sizes_of_waves):
    method, engine = SETTINGS[setting], Graphed(together=together)
    fine_tuning = Evaluation(every=2, fine_tuning=FineTune(1))
    method = dataclasses.replace(method, rounds=2)
    assert_agrees(method, federation(UNEQUAL), engine, evaluation=fine_tuning)
    assert max(sizes_of_waves) <= (together or len(UNEQUAL))


@pytest.mark.parametrize("together", [2, 5, 99])
def test_waves_of_clients_are_the_same(together, sizes_of_waves):
    method = with_(backbone=NormNet(), optimizer=Adam(eps=1e-3), local=LocalTraining(2, 4))
    assert_agrees(method, federation(UNEQUAL), Graphed(together=together))
    assert max(sizes_of_waves) == min(together, len(UNEQUAL))


def test_convolutions_alone_and_together_are_the_same(sizes_of_waves):
    _, data = subject("fedavg")
    method = FedAvg(ConvNet(), rounds=2, local=LocalTraining(2, 4), optimizer=SGD(0.9))
    for together in (None, 1):
        assert_agrees(method, cut(data, (9, 4, 13)), Graphed(together=together))
    assert sizes_of_waves


def test_clients_without_examples_take_part():
    for sizes in ((5, 0, 9), (1, 1, 1)):
        for backbone in (MLP((4,)), NormNet()):
            assert_agrees(with_(backbone=backbone), federation(sizes))


@pytest.mark.parametrize("method", [SMALL, SETTINGS["scaffold"], SETTINGS["ditto"]])
def test_partial_participation_is_the_same(method):
    assert_agrees(method, federation(UNEQUAL), cohort=Cohort(0.5))


def test_steps_are_kept_from_one_exchange_to_the_next(monkeypatch):
    made, init = [], StaticSteps.__init__

    def noted(self, *arguments, **options):
        made.append(self)
        init(self, *arguments, **options)

    monkeypatch.setattr(StaticSteps, "__init__", noted)
    engine = Graphed()
    train(with_(rounds=4), federation(UNEQUAL), engine=engine)
    assert len(made) == 1
    assert not engine._kept  # freed with the run


def test_buffers_are_freed_without_a_search_for_cycles():
    data, engine = federation((3, 4)), Graphed()
    gc.disable()
    try:
        with engine.open(data.clients):
            exchange(engine, SMALL, data)
            kept = [weakref.ref(steps) for steps in engine._kept.values()]
            assert all(steps().replays for steps in kept)
        assert len(kept) == 1
        assert kept[0]() is None
    finally:
        gc.enable()


def test_only_the_last_forms_are_kept(monkeypatch):
    monkeypatch.setattr("fedbolic.federated.engines.graphed.KEPT", 2)
    engine = Graphed()
    for size in (3, 4, 5):
        exchange(engine, SMALL, federation((size,) * size))
    assert [len(steps.state["loss"]) for steps in engine._kept.values()] == [4, 5]
    assert len(engine._pools) == 1


def test_results_are_not_overwritten_by_the_next_exchange():
    engine, data = Graphed(together=1), federation(UNEQUAL)
    first = exchange(engine, SETTINGS["ditto"], data)
    again = exchange(engine, SETTINGS["ditto"], data)
    plain = exchange(Sequential(), SETTINGS["ditto"], data)
    for results in (first, again):
        for (_, update, kept), (_, expected, old) in zip(results, plain, strict=True):
            assert_near(update.payload, expected.payload, NEAR)
            assert_near(kept, old, NEAR)


def test_a_client_in_trouble_does_not_disturb_the_others(caplog):
    data = federation(UNEQUAL)
    labels = torch.full_like(data.clients[2].train.tensors["y"], 99)
    wrong = Examples({**data.clients[2].train.tensors, "y": labels})
    data, engine = with_client(data, 2, train=wrong), Graphed()
    caplog.set_level(logging.INFO)
    results = exchange(engine, SMALL, data)
    assert [isinstance(update, Failure) for _, update, _ in results] == [i == 2 for i in range(6)]
    for (_, update, _), (_, plain, _) in zip(
        results, exchange(Sequential(), SMALL, data), strict=True
    ):
        if not isinstance(update, Failure):
            assert_near(update.payload, plain.payload, NEAR)
    assert not engine._uncaptured
    assert not caplog.records


def test_steps_that_cannot_be_captured_are_those_of_batched_with_one_message(monkeypatch, caplog):
    def fail(self):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Replay, "__call__", fail)
    caplog.set_level(logging.INFO)
    engine, data = Graphed(), federation(UNEQUAL)
    found, plain = (exchange(e, SMALL, data) for e in (engine, Batched()))
    exchange(engine, SMALL, data)
    for (_, update, _), (_, expected, _) in zip(found, plain, strict=True):
        assert_near(update.payload, expected.payload, 0.0)
    assert [record.getMessage() for record in caplog.records] == [
        "the steps of FedAvg are not captured: RuntimeError: operation not permitted when stream "
        "is capturing"
    ]


@dataclass(frozen=True)
class Swapping(FedAvg):
    """Exchanges two counters in each step: the results are each other's inputs."""

    def local_state(self, parameters, buffers):
        counters = {"a": torch.zeros(()), "b": torch.ones(())}
        return {**super().local_state(parameters, buffers), "counters": counters}

    def step(self, local, gradients, context):
        local = super().step(local, gradients, context)
        counters = local["counters"]
        return {**local, "counters": {"a": counters["b"], "b": counters["a"]}}

    def finish(self, local, client, context):
        update, _ = super().finish(local, client, context)
        return update, local["counters"]


@joint(Swapping.step)
def _swapping_steps(method, local, gradients, context, *, axes):
    return method.step(local, gradients, context)


@pytest.mark.parametrize("together", [None, 1])
def test_a_step_may_return_its_inputs_in_other_places(together):
    settings = {f.name: getattr(SMALL, f.name) for f in dataclasses.fields(SMALL)}
    assert_agrees(Swapping(**settings), federation((9, 9, 4)), Graphed(together=together))


@dataclass(frozen=True)
class Shifted(FedAvg):
    """Adds long vectors to the gradients of the head; only their ends are printed."""

    shift: torch.Tensor | None = None

    def step(self, local, gradients, context):
        bias = gradients["head.bias"]
        shift = self.shift[1000 : 1000 + len(bias)].to(bias)
        return super().step(local, {**gradients, "head.bias": bias + shift}, context)


@dataclass(frozen=True, eq=False)
class Itself(Shifted):
    """The same, equal only to itself."""


@pytest.mark.parametrize("kind", [Shifted, Itself])
def test_captured_steps_are_those_of_the_method_and_not_of_one_printed_alike(kind):
    middle = torch.zeros(2000)
    middle[1000:1010] = torch.arange(10) / 10
    settings = {f.name: getattr(SMALL, f.name) for f in dataclasses.fields(SMALL)}
    methods = [kind(**settings, shift=shift) for shift in (torch.zeros(2000), middle)]
    assert len({repr(method) for method in methods}) == 1
    data, engine = federation((8, 8)), Graphed()
    for method in methods:
        for _ in range(2):
            results = exchange(engine, method, data), exchange(Sequential(), method, data)
            for (_, update, _), (_, expected, _) in zip(*results, strict=True):
                assert_near(update.payload, expected.payload, NEAR)


@pytest.mark.parametrize("num_clients", [1, 2, 7, 20, 30, 100, 1000])
def test_few_numbers_of_rows_hold_all_clients_with_little_to_spare(num_clients):
    counts = row_counts(num_clients)
    assert counts == sorted(set(counts))
    for active in range(1, num_clients + 1):
        used = min(n for n in counts if n >= active)
        assert used <= (1.28 * active if active > 16 else 2 * active - 1)
    assert counts[-1] == num_clients
    assert len(counts) <= 6 + max(0, 11 * math.log10(num_clients / 16))


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_capacity_is_that_of_all_smaller_numbers_and_of_itself(number, other):
    found = capacity(number)
    assert number <= found == capacity(found)
    assert (capacity(other) >= found) if other >= number else (capacity(other) <= found)


def test_the_waves_of_the_captured_steps_are_counted_in_rows(monkeypatch):
    calls, replay = [], static_steps.Replay.__call__

    def noted(self):
        calls.append(self)
        replay(self)

    monkeypatch.setattr(static_steps.Replay, "__call__", noted)
    exchange(Graphed(), with_(local=LocalTraining(3, 4)), federation((8, 8, 8)))
    assert len(calls) == 6  # one call a step
    assert len(set(calls)) == 1  # and one captured step


@pytest.mark.parametrize("together", [0, -1])
def test_a_wave_holds_at_least_one_client(together):
    with pytest.raises(ValueError, match="together"):
        Graphed(together=together)
