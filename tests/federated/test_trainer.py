import copy
import dataclasses
import itertools
import logging
import re
from math import nan

import numpy as np
import pytest
import torch

from fedbolic.federated import (
    Channel,
    Clip,
    Cohort,
    Evaluation,
    FedAvg,
    Median,
    Position,
    RunStoppedError,
    Schedule,
    Trainer,
    Tune,
)
from fedbolic.nn.backbone import MLP
from fedbolic.rng import Rng
from tests.federated.boring import (
    FAULTS,
    RNG,
    Averaged,
    Leg,
    NormNet,
    Relay,
    assert_near,
    assert_same,
    federation,
    plain_network,
    saved_and_loaded,
    train,
)

SMALL = FedAvg(MLP((4,)), rounds=3, schedule=Schedule(1, 4), lr=0.2)
SIZES = (7, 4, 12, 5)


def point(data, rounds=3, *, without=(), weights=None):
    """The server's point by hand: the mean of the clients' means and noises."""
    x = torch.rand(5, generator=RNG.at("init").generator()).double()
    for r in range(1, rounds + 1):
        stream = RNG.at("round", r, "exchange", 0)
        there = [c for c in data.clients if r == 1 or c.id not in without]
        w = np.array([len(c.train) if weights is None else 1.0 for c in there])
        ends = [
            c.train.tensors["x"].mean(0) - x
            + torch.rand((), generator=stream.at("client", c.id).generator()).double()
            for c in there
        ]  # fmt: skip
        x = x + torch.from_numpy(np.average(np.stack([e.numpy() for e in ends]), 0, w))
    return x


def rows_of(rows, name, round=None, client=None):
    return [
        r.value for r in rows if r.name == name and r.client == client and round in (None, r.round)
    ]


# --- a round ---------------------------------------------------------------------------------


def test_rounds_are_the_means_worked_by_hand():
    data = federation(SIZES)
    positions, _ = train(Averaged(), data)
    assert_near(positions[-1].state["x"], point(data), 1e-12)
    assert [p.round for p in positions] == [1, 2, 3]
    assert [p.exchange for p in positions] == [0, 0, 0]
    assert all(m["turns"] == 3 for m in positions[-1].memories.values())


def test_a_run_repeats_itself_and_leaves_its_arguments_untouched():
    data, method = federation(SIZES), Averaged()
    before = copy.deepcopy([client.train.tensors for client in data.clients])
    first, rows = train(method, data)
    twice, again = train(method, data)
    assert_same(first[-1].state, twice[-1].state)
    assert rows == again
    for client, old in zip(data.clients, before, strict=True):
        assert_same(client.train.tensors, old)
    other, _ = train(method, data, Rng(4))
    assert not torch.equal(first[-1].state["x"], other[-1].state["x"])


def test_the_global_random_stream_is_neither_used_nor_moved():
    data = federation()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, _ = train(SMALL, data)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    np.random.seed(5)  # noqa: NPY002
    second, _ = train(SMALL, data)
    assert_same(first[-1].state, second[-1].state)


@pytest.mark.parametrize("rate", [0.25, 0.5, 1.0])
def test_a_cohort_is_a_share_of_the_clients_drawn_anew_each_round(rate):
    data = federation((3,) * 8)
    positions, rows = train(Averaged(rounds=6), data, cohort=Cohort(rate))
    assert rows_of(rows, "clients/asked") == [8 * rate] * 6
    took_part = [
        tuple(r.client for r in rows if (r.name, r.round) == ("noise", n) and r.client is not None)
        for n in range(1, 7)
    ]
    assert all(ids == tuple(sorted(set(ids))) and len(ids) == 8 * rate for ids in took_part)
    assert (len(set(took_part)) == 1) == (rate == 1)
    turns = {i: m["turns"] for i, m in positions[-1].memories.items()}
    assert sum(turns.values()) == 6 * 8 * rate


def test_clients_who_are_not_asked_keep_their_memory():
    data = federation((3,) * 6)
    positions, rows = train(Averaged(rounds=4), data, cohort=Cohort(1 / 3))
    for before, now in itertools.pairwise(positions):
        asked = {r.client for r in rows if r.name == "noise" and r.round == now.round}
        for i in before.memories.keys() - asked:
            assert now.memories[i] is before.memories[i]


def test_single_precision_data_give_single_precision_training():
    for dtype in (torch.float32, torch.float64):
        state = train(SMALL, federation(dtype=dtype))[0][-1].state
        assert {value.dtype for value in state["parameters"].values()} == {dtype}


# --- protocols of several exchanges ----------------------------------------------------------


def who(position):
    """Client ids that delivered, by exchange."""
    return [tuple(np.flatnonzero(row)) for row in position.state["who"].numpy()]


def test_two_exchanges_are_one_round_even_if_a_client_is_lost_between_them():
    data = federation(SIZES)
    positions, rows = train(Relay(lost=((1, 2),)), data)
    assert [(p.round, p.exchange) for p in positions] == [(0, 1), (1, 0), (1, 1), (2, 0)]
    assert [p.answered for p in positions] == [(0, 1, 2, 3), (), (0, 1, 2, 3), ()]
    assert who(positions[-1]) == [(0, 1, 2, 3), (0, 1, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert rows_of(rows, "clients/asked") == [8, 8]
    assert rows_of(rows, "clients/failed") == [1, 0]
    assert {i: m["turns"] for i, m in positions[-1].memories.items()} == {0: 4, 1: 4, 2: 3, 3: 4}
    assert {r.round for r in rows} == {1, 2}
    assert len(rows_of(rows, "test/turns", client=0)) == 2


def test_only_those_who_answered_are_asked_again():
    data = federation((3,) * 6)
    lost = ((0, 4), (1, 2), (4, 0))
    positions, rows = train(Relay(legs=3, lost=lost), data, cohort=Cohort(5 / 6))
    first, second, third, fourth, fifth, sixth = who(positions[-1])
    sampled = {r.client for r in rows if r.name == "leg0" and r.round == 1} - {None}
    assert set(first) == sampled - {4}
    assert set(second) == set(first) - {2} == set(third)
    assert set(fifth) == set(fourth) - {0} == set(sixth)
    assert positions[0].answered == first
    assert positions[1].answered == second
    assert rows_of(rows, "clients/failed") == [(4 in (*first, 4)) + (2 in first), 1]


def test_a_first_exchange_with_all_clients_ignores_the_rate():
    data = federation((3,) * 6)
    positions, _ = train(Relay(first="all"), data, cohort=Cohort(0.5))
    assert [len(ids) for ids in who(positions[-1])] == [6, 6, 6, 6]
    positions, _ = train(Relay(), data, cohort=Cohort(0.5))
    assert [len(ids) for ids in who(positions[-1])] == [3, 3, 3, 3]


def test_every_exchange_has_streams_of_its_own():
    positions, _ = train(Relay(rounds=3, legs=3), federation(SIZES))
    draws = positions[-1].state["who"].flatten().tolist()
    assert len(set(draws)) == len(draws) == 9 * 4


# --- resume ----------------------------------------------------------------------------------

RUNS = {
    "means": (Averaged(), {"cohort": Cohort(0.5)}),
    "lost between exchanges": (Relay(legs=3, lost=((1, 2), (4, 0))), {}),
    "fedavg": (dataclasses.replace(SMALL, momentum=0.5), {"cohort": Cohort(0.5)}),
    "personal heads": (
        dataclasses.replace(SMALL, sharing={"head.*": "personal", "*": "shared"}),
        {"cohort": Cohort(0.5), "evaluation": Evaluation(2, Tune(1))},
    ),
    "batch norm": (dataclasses.replace(SMALL, backbone=NormNet()), {"channels": (Clip(0.1),)}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumed_from_any_position_ends_the_same_to_the_last_bit(name):
    method, settings = RUNS[name]
    data = federation(SIZES)
    positions, rows = train(method, data, **settings)
    for i, position in enumerate(positions):
        loaded = Position.restore(saved_and_loaded(position.checkpoint()))
        rest, new = train(method, data, position=loaded, **settings)
        assert len(rest) == len(positions) - i - 1
        last = rest[-1] if rest else loaded
        assert_same(last.state, positions[-1].state)
        assert_same(
            {str(k): v for k, v in last.memories.items()},
            {str(k): v for k, v in positions[-1].memories.items()},
        )
        assert (last.round, last.exchange, last.answered) == (positions[-1].round, 0, ())
        assert new == rows[len(rows) - len(new) :]
    assert len(positions) > 2


# --- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_in_trouble_is_left_out_named_counted_and_keeps_its_memory(fault, caplog):
    data = federation(SIZES)
    with caplog.at_level(logging.WARNING, "fedbolic"):
        positions, rows = train(Averaged(faults={2: fault}), data)
    assert_near(positions[-1].state["x"], point(data, without=(2,)), 1e-12)
    assert len(caplog.records) == 2  # rounds 2 and 3
    for record in caplog.records:
        assert record.levelname == "WARNING"
        assert "client 2 is left out" in record.getMessage()
        assert re.search(FAULTS[fault], record.getMessage())
    assert rows_of(rows, "clients/asked") == [4, 4, 4]
    assert rows_of(rows, "clients/failed") == [0, 1, 1]
    assert positions[-1].memories[2] is positions[0].memories[2]
    assert positions[-1].memories[2]["turns"] == 1
    assert positions[-1].memories[1]["turns"] == 3
    assert rows_of(rows, "noise", 2, 2) == []
    # what the others sent is all that is counted: 5 doubles each
    assert rows_of(rows, "bytes/up") == [4 * 40, 3 * 40, 3 * 40]


@pytest.mark.parametrize("fault", ["raises", "nan", "shape"])
def test_the_first_client_may_be_the_one_in_trouble(fault):
    data = federation(SIZES)
    positions, _ = train(Averaged(faults={0: fault}), data)
    assert_near(positions[-1].state["x"], point(data, without=(0,)), 1e-12)


def test_several_clients_may_fail_in_different_ways():
    data = federation(SIZES)
    faults = {0: "nan", 1: "raises", 3: "nan weight"}
    positions, rows = train(Averaged(faults=faults), data)
    assert_near(positions[-1].state["x"], point(data, without=(0, 1, 3)), 1e-12)
    assert rows_of(rows, "clients/failed") == [0, 3, 3]


@pytest.mark.parametrize("fault", ["raises", "inf", "negative weight"])
def test_a_run_stops_when_all_clients_fail_and_keeps_its_last_position(fault):
    data = federation(SIZES)
    run = iter_run(Averaged(faults=dict.fromkeys(range(4), fault)), data)
    position, _ = next(run)
    before = copy.deepcopy(position.state)
    with pytest.raises(RunStoppedError, match="round 2: no client delivered"):
        next(run)
    assert_same(position.state, before)


def iter_run(method, data, **settings):
    return Trainer(**settings).run(method, data, RNG)


def test_a_run_stops_when_the_server_overflows():
    data = federation(SIZES, dtype=torch.float32)
    run = iter_run(Averaged(grow=1e38), data)
    position, _ = next(run)
    assert position.state["x"].isfinite().all()
    with pytest.raises(RunStoppedError, match="round 2: the server's state would hold NaN"):
        next(run)


def test_a_client_of_weight_zero_is_heard_but_moves_nothing():
    data = federation((7, 4, 0))
    positions, rows = train(SMALL, data)
    assert_same(positions[-1].state, train(SMALL, federation((7, 4)))[0][-1].state)
    assert rows_of(rows, "clients/failed") == [0, 0, 0]


# --- bytes -----------------------------------------------------------------------------------


def test_bytes_are_counted_exactly():
    # 5 -> 4 -> 3: 20 + 4 + 12 + 3 = 39 parameters; the seed is a number of 8 bytes
    for dtype, size in ((torch.float32, 4), (torch.float64, 8)):
        _, rows = train(SMALL, federation(SIZES, dtype=dtype))
        assert rows_of(rows, "bytes/up") == [4 * 39 * size] * 3
        assert rows_of(rows, "bytes/down") == [4 * (39 * size + 8)] * 3


def test_bytes_of_a_cohort_with_personal_heads_and_batch_norm():
    # shared: 20 + 4 and batch norm's 4 + 4; buffers 4 + 4 and one int64; the head stays at home
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
    changes = np.stack([free[-1].memories[i]["last"].numpy() for i in range(4)])
    norms = np.linalg.norm(changes, axis=1, keepdims=True)
    bound = float(np.median(norms))
    clipped = changes * np.minimum(1, bound / norms)
    positions, rows = train(method, data, channels=(Clip(bound),))
    expected = x + torch.from_numpy(np.average(clipped, 0, SIZES))
    assert_near(positions[-1].state["x"], expected, 1e-12)
    assert sum(len(rows_of(rows, "clip/factor", client=i)) for i in range(4)) == 2


def test_a_bound_that_nobody_reaches_changes_no_bit():
    data = federation(SIZES)
    free, rows = train(SMALL, data)
    bounded, same = train(SMALL, data, channels=(Clip(1e6),))
    assert_same(free[-1].state, bounded[-1].state)
    assert rows == same


@dataclasses.dataclass(frozen=True)
class Shift(Channel):
    """Adds to what is sent, and takes off the total; notes who passed in which order."""

    by: float
    log: list
    additive: bool = True

    @property
    def needs_additive(self):
        return self.additive

    def send(self, update, client, rng):
        self.log.append(("send", self.by, client.id, rng.number()))
        x = update.payload["change"]["x"] * 2 + self.by
        return dataclasses.replace(update, payload={"change": {"x": x}})

    def receive(self, total):
        self.log.append(("receive", self.by))
        x = (total.payload["change"]["x"] - self.by) / 2
        return dataclasses.replace(total, payload={"change": {"x": x}})


def test_channels_are_undone_at_the_server_in_reverse_order():
    data, log = federation(SIZES), []
    channels = (Shift(1.0, log), Shift(3.0, log))
    positions, _ = train(Averaged(rounds=1), data, channels=channels)
    assert_near(positions[-1].state["x"], point(data, 1), 1e-12)
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
    def phase(self, state):
        leg = Leg(self, state["exchange"] % 2)
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


# --- evaluation ------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "rounds"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_a_run_is_scored_every_so_many_rounds_and_after_the_last(every, rounds):
    _, rows = train(Averaged(rounds=5), federation(), evaluation=Evaluation(every))
    assert [r.round for r in rows if r.name == "test/gap" and r.client is None] == rounds
    assert [r.round for r in rows if r.name == "test/gap" and r.client == 1] == rounds
    assert [r.round for r in rows if r.name == "holdout/gap"] == rounds
    assert len(rows_of(rows, "clients/asked")) == 5


def test_the_federations_score_is_the_mean_by_test_examples():
    data = federation(SIZES)
    tests = (2, 9, 5, 30)
    clients = tuple(
        dataclasses.replace(c, test=federation((n,), seed=n).clients[0].train)
        for c, n in zip(data.clients, tests, strict=True)
    )
    _, rows = train(Averaged(), dataclasses.replace(data, clients=clients))
    own = [rows_of(rows, "test/gap", 3, i)[0] for i in range(4)]
    assert rows_of(rows, "test/gap", 3) == [pytest.approx(np.average(own, weights=tests))]
    assert [rows_of(rows, "test/examples", 3, i)[0] for i in range(4)] == list(tests)
    assert rows_of(rows, "test/examples", 3) == []


def test_a_federation_without_holdout_is_scored_at_the_clients_only():
    data = dataclasses.replace(federation(), holdout=None)
    _, rows = train(Averaged(), data)
    assert not [r for r in rows if r.name.startswith("holdout")]
    assert rows_of(rows, "test/gap", 3)


def test_clients_who_never_took_part_are_scored_too():
    data = federation((3,) * 4)
    positions, rows = train(Averaged(rounds=1), data, cohort=Cohort(0.25))
    assert len(positions[-1].memories) == 1
    assert sorted(rows_of(rows, "test/turns", 1, i)[0] for i in range(4)) == [0, 0, 0, 1]


TUNED = Evaluation(tune=Tune(epochs=2, lr=0.05))


@pytest.mark.parametrize("sharing", [{"*": "shared"}, {"head.*": "personal", "*": "shared"}])
def test_tuning_comes_after_the_last_round_and_leaves_no_trace(sharing):
    data = federation(SIZES)
    method = dataclasses.replace(SMALL, sharing=sharing)
    plain, rows = train(method, data)
    tuned, more = train(method, data, evaluation=TUNED)
    for x, y in zip(plain, tuned, strict=True):
        assert_same(x.state, y.state)
        assert_same({str(k): m for k, m in x.memories.items()},
                    {str(k): m for k, m in y.memories.items()})  # fmt: skip
    new = [row for row in more if row not in rows]
    assert new == [row for row in more if row.name.startswith("tuned/")]
    assert {row.round for row in new} == {3}
    assert {row.client for row in new if row.name == "tuned/accuracy"} == {None, 0, 1, 2, 3}


def test_tuning_is_local_descent_from_what_the_client_receives():
    data = federation(SIZES)
    positions, rows = train(SMALL, data, evaluation=TUNED)
    for client in data.clients:
        network = plain_network(positions[-1].state["parameters"])
        descent = torch.optim.SGD(network.parameters(), lr=0.05)
        stream = RNG.at("round", 3, "evaluation", "tune", "client", client.id, "order")
        generator = stream.generator()
        for _ in range(2):
            order = torch.randperm(len(client.train), generator=generator)
            for index in order.split(4):
                batch = client.train.at(index)
                descent.zero_grad()
                torch.nn.functional.cross_entropy(network(batch["x"]), batch["y"]).backward()
                descent.step()
        test = client.test.tensors
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(network(test["x"]), test["y"])
        assert rows_of(rows, "tuned/loss", 3, client.id) == [pytest.approx(float(loss), rel=1e-6)]


def test_local_training_is_not_tuned():
    method = dataclasses.replace(SMALL, sharing={"*": "personal"})
    _, rows = train(method, federation(), evaluation=TUNED)
    assert not [row for row in rows if row.name.startswith("tuned/")]


def test_a_client_that_cannot_be_tuned_is_named(caplog):
    data = federation(SIZES)
    labels = {**data.clients[1].train.tensors, "y": torch.full((4,), 99)}
    broken = dataclasses.replace(data.clients[1], train=type(data.clients[1].train)(labels))
    clients = (data.clients[0], broken, *data.clients[2:])
    _, rows = train(SMALL, dataclasses.replace(data, clients=clients), evaluation=TUNED)
    assert {r.client for r in rows if r.name == "tuned/accuracy"} == {None, 0, 2, 3}
    tuned = [r.getMessage() for r in caplog.records if "tun" in r.getMessage()]
    assert len(tuned) == 1
    assert "client 1" in tuned[0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Evaluation(0), "every must be at least 1, got 0"),
        (lambda: Tune(0), "epochs must be at least 1, got 0"),
        (lambda: Tune(1, nan), "lr must be a positive number, got nan"),
        (lambda: Schedule(0), "epochs must be at least 1, got 0"),
        (lambda: Schedule(1, 0), "batch_size must be at least 1, got 0"),
        (lambda: Schedule(1, 1, 0), "repeats must be at least 1, got 0"),
    ],
)
def test_values_outside_their_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
