import copy
import dataclasses
import logging
import re

import numpy as np
import pytest
import torch

from fedbolic.federated import Channel, Clip, Cohort, Median, RunStoppedError, Trainer
from tests.federated.faults import FAULTS
from tests.federated.simple_method import (
    RNG,
    SIZES,
    SMALL,
    Averaged,
    Leg,
    NormNet,
    Relay,
    assert_near,
    assert_same,
    federation,
    point,
    rows_of,
    train,
)

# --- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_in_trouble_is_left_out_named_counted_and_keeps_its_memory(fault, caplog):
    data = federation(SIZES)
    with caplog.at_level(logging.WARNING, "fedbolic"):
        positions, rows = train(Averaged(faults={2: fault}), data)
    assert_near(positions[-1].server_state["x"], point(data, without=(2,)), 1e-12)
    assert len(caplog.records) == 2  # rounds 2 and 3
    for record in caplog.records:
        assert record.levelname == "WARNING"
        assert "client 2 is left out" in record.getMessage()
        assert re.search(FAULTS[fault], record.getMessage())
    assert rows_of(rows, "clients/asked") == [4, 4, 4]
    assert rows_of(rows, "clients/failed") == [0, 1, 1]
    assert positions[-1].client_states[2] is positions[0].client_states[2]
    assert positions[-1].client_states[2]["turns"] == 1
    assert positions[-1].client_states[1]["turns"] == 3
    assert rows_of(rows, "noise", 2, 2) == []
    # only the updates of the other clients are counted: 5 doubles each
    assert rows_of(rows, "bytes/up") == [4 * 40, 3 * 40, 3 * 40]


@pytest.mark.parametrize("fault", ["raises", "nan", "shape"])
def test_the_first_client_may_be_the_one_in_trouble(fault):
    data = federation(SIZES)
    positions, _ = train(Averaged(faults={0: fault}), data)
    assert_near(positions[-1].server_state["x"], point(data, without=(0,)), 1e-12)


def test_several_clients_may_fail_in_different_ways():
    data = federation(SIZES)
    faults = {0: "nan", 1: "raises", 3: "nan weight"}
    positions, rows = train(Averaged(faults=faults), data)
    assert_near(positions[-1].server_state["x"], point(data, without=(0, 1, 3)), 1e-12)
    assert rows_of(rows, "clients/failed") == [0, 3, 3]


@pytest.mark.parametrize("fault", ["raises", "inf", "negative weight"])
def test_a_run_stops_when_all_clients_fail_and_keeps_its_last_position(fault):
    data = federation(SIZES)
    run = iter_run(Averaged(faults=dict.fromkeys(range(4), fault)), data)
    state, _ = next(run)
    before = copy.deepcopy(state.server_state)
    with pytest.raises(RunStoppedError, match="round 2: no client delivered"):
        next(run)
    assert_same(state.server_state, before)


def iter_run(method, data, **settings):
    return Trainer(**settings).run(method, data, RNG)


def test_a_run_stops_when_the_server_overflows():
    data = federation(SIZES, dtype=torch.float32)
    run = iter_run(Averaged(grow=1e38), data)
    state, _ = next(run)
    assert state.server_state["x"].isfinite().all()
    with pytest.raises(RunStoppedError, match="round 2: the server's state would hold NaN"):
        next(run)


def test_a_client_of_weight_zero_is_heard_but_moves_nothing():
    data = federation((7, 4, 0))
    positions, rows = train(SMALL, data)
    assert_same(positions[-1].server_state, train(SMALL, federation((7, 4)))[0][-1].server_state)
    assert rows_of(rows, "clients/failed") == [0, 0, 0]


# --- bytes -----------------------------------------------------------------------------------


def test_bytes_are_counted_exactly():
    # 5 -> 4 -> 3: 20 + 4 + 12 + 3 = 39 parameters; the seed is a number of 8 bytes
    for dtype, size in ((torch.float32, 4), (torch.float64, 8)):
        _, rows = train(SMALL, federation(SIZES, dtype=dtype))
        assert rows_of(rows, "bytes/up") == [4 * 39 * size] * 3
        assert rows_of(rows, "bytes/down") == [4 * (39 * size + 8)] * 3


def test_bytes_of_a_cohort_with_personal_heads_and_batch_norm():
    # shared: 20 + 4 and batch norm's 4 + 4; buffers 4 + 4 and one int64; the head is personal
    sharing = {"head.*": "personal", "*": "shared"}
    method = dataclasses.replace(SMALL, backbone=NormNet(), sharing=sharing)
    _, rows = train(method, federation(SIZES), cohort=Cohort(0.5))
    assert rows_of(rows, "bytes/up") == [2 * (32 * 8 + 8 * 8 + 8)] * 3
    assert rows_of(rows, "bytes/down") == [2 * (32 * 8 + 8 * 8 + 8 + 8)] * 3


def test_bytes_of_a_round_are_those_of_its_exchanges_together():
    _, rows = train(Relay(lost=((1, 2),)), federation(SIZES))
    table = 4 * 4 * 8  # 2 rounds of 2 exchanges by 4 clients, in float64
    assert rows_of(rows, "bytes/down") == [8 * (table + 8)] * 2
    assert rows_of(rows, "bytes/up") == [7 * table, 8 * table]


# --- channels --------------------------------------------------------------------------------


def test_clipped_updates_are_clipped_before_they_are_averaged():
    data = federation(SIZES)
    method = Averaged(rounds=1)
    free, _ = train(method, data)
    x = torch.rand(5, generator=RNG.at("init").generator()).double()
    changes = np.stack([free[-1].client_states[i]["last"].numpy() for i in range(4)])
    norms = np.linalg.norm(changes, axis=1, keepdims=True)
    bound = float(np.median(norms))
    clipped = changes * np.minimum(1, bound / norms)
    positions, rows = train(method, data, channels=(Clip(bound),))
    expected = x + torch.from_numpy(np.average(clipped, 0, SIZES))
    assert_near(positions[-1].server_state["x"], expected, 1e-12)
    assert sum(len(rows_of(rows, "clip/factor", client=i)) for i in range(4)) == 2


def test_a_bound_that_nobody_reaches_changes_no_bit():
    data = federation(SIZES)
    free, rows = train(SMALL, data)
    bounded, same = train(SMALL, data, channels=(Clip(1e6),))
    assert_same(free[-1].server_state, bounded[-1].server_state)
    assert rows == same


@dataclasses.dataclass(frozen=True)
class Shift(Channel):
    """Doubles updates, adds a constant, undoes both on the aggregate, and logs each call."""

    by: float
    log: list
    additive: bool = True

    @property
    def needs_additive(self):
        return self.additive

    def send(self, update, client, rng):
        self.log.append(("send", self.by, client.id, rng.number()))
        x = update.payload["delta"]["x"] * 2 + self.by
        return dataclasses.replace(update, payload={"delta": {"x": x}})

    def receive(self, total):
        self.log.append(("receive", self.by))
        x = (total.payload["delta"]["x"] - self.by) / 2
        return dataclasses.replace(total, payload={"delta": {"x": x}})


def test_channels_are_undone_at_the_server_in_reverse_order():
    data, log = federation(SIZES), []
    channels = (Shift(1.0, log), Shift(3.0, log))
    positions, _ = train(Averaged(rounds=1), data, channels=channels)
    assert_near(positions[-1].server_state["x"], point(data, 1), 1e-12)
    assert [entry[1] for entry in log] == [1.0, 3.0] * 4 + [3.0, 1.0]
    streams = [entry[3] for entry in log if entry[0] == "send"]
    assert len(set(streams)) == 8


@pytest.mark.parametrize("collect", ["mean", "sum"])
def test_a_channel_that_needs_a_sum_goes_with_sums(collect):
    train(Averaged(collect=collect), federation(), channels=(Shift(1.0, []),))


def test_a_channel_that_needs_a_sum_refuses_a_median_before_anything_is_trained():
    run = iter_run(Averaged(collect="median"), federation(), channels=(Shift(1.0, []),))
    with pytest.raises(ValueError, match=r"Shift needs an aggregator that sums.*Median"):
        next(run)
    train(Averaged(collect="median"), federation(), channels=(Shift(1.0, [], additive=False),))


@dataclasses.dataclass(frozen=True)
class SecondLegIsMedian(Relay):
    def phase(self, server_state):
        leg = Leg(self, server_state["exchange"] % 2)
        return leg if leg.leg == 0 else MedianLeg(self, 1)


@dataclasses.dataclass(frozen=True)
class MedianLeg(Leg):
    @property
    def aggregator(self):
        return Median()


def test_a_channel_that_needs_a_sum_refuses_a_median_in_a_later_exchange():
    class Pass(Shift):
        def send(self, update, client, rng):
            return update

        def receive(self, total):
            return total

    run = iter_run(SecondLegIsMedian(), federation(), channels=(Pass(1.0, []),))
    next(run)
    with pytest.raises(ValueError, match="needs an aggregator that sums"):
        next(run)
