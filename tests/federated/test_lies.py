"""No lie of some clients ends a run or reaches the server's state, if one client is honest."""

import copy
import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.data import BlockModel, Dirichlet, Graphs
from fedbolic.federated import (
    Batched,
    CenteredClipping,
    ClientPrivacy,
    Clip,
    Devices,
    Evaluation,
    GeometricMedian,
    LocalTraining,
    Median,
    MinNorm,
    RidgeHead,
    RunStoppedError,
    Sequential,
    ServerAdam,
    TrainerState,
    TrimmedMean,
    Workers,
)
from fedbolic.federated.contract.engine import moved_result
from fedbolic.methods import (
    Apple,
    ClosedFormHead,
    FedAvg,
    FedDyn,
    FedNova,
    FedProto,
    Majority,
    Scaffold,
)
from flatland import FedGta, FlatLand, Gcfl
from flynn import FlyNN
from tests.federated.lies import ACCEPTED, LIES, Lying
from tests.federated.simple_method import (
    RNG,
    SMALL,
    Averaged,
    assert_near,
    assert_same,
    federation,
    rows_of,
    saved_and_loaded,
    train,
)
from tests.subjects import subject

SIZES = (7, 4, 12)
SCORED_ONCE = Evaluation(every=100, clients=1)


def classifier(kind, **more):
    method = kind(backbone=SMALL.backbone, rounds=2, local=SMALL.local, lr=0.1, **more)
    return method, federation(SIZES, dtype=torch.float32)


def graphs(kind, **more):
    source = Graphs(BlockModel(num_nodes=120), Dirichlet(num_clients=3, alpha=9.0, min_size=6))
    return kind(rounds=2, local=LocalTraining(1), **more), source.load(Rng(0))


def fedhull():
    method, data = subject("fedhull")
    return method, data.to(torch.device("cpu"), torch.float64)


SUBJECTS = {
    "FedAvg": lambda: classifier(FedAvg),
    "FedAdam": lambda: classifier(FedAvg, server_optimizer=ServerAdam(lr=0.1)),
    "FedNova": lambda: classifier(FedNova),
    "Scaffold": lambda: classifier(Scaffold),
    "FedDyn": lambda: classifier(FedDyn),
    "FedProto": lambda: classifier(FedProto),
    "Apple": lambda: classifier(Apple),
    "ClosedFormHead": lambda: (ClosedFormHead(classifier(FedAvg)[0]), federation(SIZES)),
    "Majority": lambda: (Majority(), federation(SIZES)),
    "FlyNN": lambda: (FlyNN(dim=40, fan_in=2, active=3), federation(SIZES)),
    "FlatLand": lambda: graphs(FlatLand),
    "Gcfl": lambda: graphs(Gcfl),
    "FedGta": lambda: graphs(FedGta),
    "FedHull": fedhull,
    "HierarchyEmbedding": lambda: subject("hierarchies"),
}


def told(method, data, lie, **settings):
    """The last state and the rows of a run in which all clients but the last tell a lie."""
    lies = dict.fromkeys(range(len(data.clients) - 1), lie)
    states, rows = train(method, data, RNG, engine=Lying(lies), evaluation=SCORED_ONCE, **settings)
    return states[-1], rows


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.filterwarnings("ignore")  # of torch, about kinds of tensors
def test_no_lie_ends_a_run_and_those_found_out_change_nothing(name):
    method, data = SUBJECTS[name]()
    alone, rows = told(method, data, "SystemExit")
    failed = rows_of(rows, "clients/failed")
    assert all(count >= len(data.clients) - 1 for count in failed)
    for lie in LIES:
        state, rows = told(method, data, lie)
        assert tree.is_finite(state.server_state), lie
        if lie not in ACCEPTED:
            assert rows_of(rows, "clients/failed") == failed, lie
            assert_same(state.server_state, alone.server_state)


def altered(part, client_id):
    """A method like another one, which alters a tensor or the entries of a client's message."""

    def modified(method):
        def local_update(self, message, client, client_state, rng):
            tensors = tree.tensors(message)
            if client.id == client_id and part == "tensor" and tensors:
                next(iter(tensors.values())).add_(1)
            elif client.id == client_id:
                message.popitem()
            raise ValueError("the rest does not matter")

        kind, other = type(method), copy.copy(method)
        changed = type(f"Lying{kind.__name__}", (kind,), {"local_update": local_update})
        object.__setattr__(other, "__class__", changed)
        return other

    return modified


@dataclass(frozen=True)
class Altering(Sequential):
    """The reference engine with another method."""

    part: str = "tensor"

    def run(self, exchange):
        last = exchange.clients[-1].id  # those before have received the same message
        method = altered(self.part, last)(exchange.method)
        return super().run(dataclasses.replace(exchange, method=method))


@pytest.mark.parametrize("part", ["tensor", "entry"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_method_that_modifies_its_message_stops_the_run(name, part):
    method, data = SUBJECTS[name]()
    text = f"modified the message to client {data.clients[-1].id}, which clients"
    with pytest.raises(RunStoppedError, match=text):
        train(method, data, RNG, engine=Altering(part))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layer", ["body", "body.1"])
def test_liars_before_the_honest_client_leave_its_ridge_head_as_it_is(layer):
    method, data = classifier(FedAvg)
    found = {}
    for lie in LIES.keys() - ACCEPTED:
        lies = Lying(dict.fromkeys(range(len(data.clients) - 1), lie))
        scored = dataclasses.replace(SCORED_ONCE, ridge_head=RidgeHead(layer=layer))
        _, rows = train(method, data, RNG, engine=lies, evaluation=scored)
        found[lie] = [r.value for r in rows if r.name == "ridge_head/accuracy" and r.client is None]
    assert all(len(scores) == 1 for scores in found.values()), found
    assert all(scores == found["SystemExit"] for scores in found.values()), found


@pytest.mark.filterwarnings("ignore")
def test_lies_that_pass_end_no_run_with_any_aggregator_and_channel():
    for aggregator in (
        Median(),
        TrimmedMean(0.4),
        GeometricMedian(),
        CenteredClipping(1.0),
        MinNorm(),
    ):
        method, data = classifier(FedAvg, aggregator=aggregator)
        for lie in ACCEPTED:
            state, _ = told(method, data, lie, channels=(Clip(1.0),))
            assert tree.is_finite(state.server_state), (aggregator, lie)


# --- engines ---------------------------------------------------------------------------------

SENT = (
    *("SystemExit", "GeneratorExit", "an error that cannot be printed", "nothing", "no update"),
    *("no payload", "an empty payload", "a deep payload", "an endless payload", "sparse", "meta"),
    *("quantised", "nested", "a subclass", "requires_grad", "repeated numbers", "None", "NaN"),
    *("a weight of text", "a metric on meta", "a metric that ends the program", "a forged row"),
    *("a state of its own class", "a state of 2 ** 40 numbers", "a state of NaN", "1e30"),
)
"""Lies that an engine which copies results could stumble over."""


@dataclass(frozen=True)
class Liar(Averaged):
    """A mean in which all clients but the last lie."""

    lie: str = "NaN"

    def local_update(self, message, client, client_state, rng):
        update, new = super().local_update(message, client, client_state, rng)
        return LIES[self.lie](update, new) if client.id < 2 else (update, new)


@dataclass(frozen=True)
class StackedLiar(FedAvg):
    """FedAvg in which all clients but the last lie when their local work ends."""

    lie: str = "NaN"

    def finish(self, local, client, context):
        update, new = super().finish(local, client, context)
        return LIES[self.lie](update, new) if client.id < 2 else (update, new)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", [Workers(1), Devices(devices=("cpu", "cpu"))], ids=repr)
def test_no_lie_ends_an_exchange_of_other_engines(engine):
    data = federation(SIZES, dtype=torch.float32)
    with engine.open(data.clients) as opened:
        for lie in SENT:
            method = Liar(rounds=1, lie=lie)
            states, rows = train(method, data, RNG, engine=opened, evaluation=SCORED_ONCE)
            assert tree.is_finite(states[-1].server_state)
            assert lie in ACCEPTED or rows_of(rows, "clients/failed") == [2], lie


@pytest.mark.filterwarnings("ignore")
def test_no_lie_ends_an_exchange_of_stacked_clients():
    _, data = classifier(FedAvg)
    for lie in LIES:
        method, _ = classifier(StackedLiar, lie=lie)
        states, rows = train(method, data, RNG, engine=Batched(), evaluation=SCORED_ONCE)
        assert tree.is_finite(states[-1].server_state)
        if lie in ("SystemExit", "1e30", "NaN", "sparse"):  # results of others are made anew
            assert rows_of(rows, "clients/failed") == [2, 2], lie


@pytest.mark.filterwarnings("ignore")
def test_no_lie_stops_the_move_of_a_result_to_another_device():
    method, data = Averaged(rounds=1), federation(SIZES)
    message = method.init(data.meta, RNG)
    honest = method.local_update(message, data.clients[0], {}, RNG)
    for lie in LIES.values():
        try:
            update, client_state = lie(*honest)
        except BaseException:
            continue
        moved, _ = moved_result(update, client_state, "cpu")
        assert moved is not None


# --- the second attempt ----------------------------------------------------------------------


@dataclass(frozen=True)
class Grown(Averaged):
    """A mean whose server takes steps so large that one long delta makes its state infinite."""

    rounds: int = 3
    grow: float = 1e34
    liars: tuple[int, ...] = (1,)
    repeats: bool = True

    @property
    def traits(self):
        return dataclasses.replace(super().traits, repeatable=self.repeats)

    def local_update(self, message, client, client_state, rng):
        update, new = super().local_update(message, client, client_state, rng)
        if client.id in self.liars and message["round"]:
            update = dataclasses.replace(update, payload={"delta": {"x": message["x"] * 0 + 9e5}})
        return update, new

    def server_update(self, server_state, total):
        step = self.grow * total.payload["delta"]["x"]
        x = server_state["x"] + step / self.grow
        return {"x": x, "round": server_state["round"] + 1}


def by_hand(data, liar):
    """The point after three rounds, the second of which was repeated without the liar."""
    x = torch.rand(5, generator=RNG.at("init").generator())
    for r in (1, 2, 3):
        stream = RNG.at("round", r, "exchange", 0, *(("attempt", 1) if r == 2 else ()))
        there = [client for client in data.clients if r == 1 or client.id != liar]
        ends = [
            client.train.tensors["x"].mean(0)
            + torch.rand((), generator=stream.at("client", client.id).generator())
            for client in there
        ]
        weights = torch.tensor([float(client.size) for client in there])
        x = (torch.stack(ends) * weights[:, None]).sum(0) / weights.sum()
    return x


def test_an_exchange_that_would_spoil_the_state_is_repeated_without_the_outliers(caplog):
    data = federation(SIZES, dtype=torch.float32)
    states, rows = train(Grown(), data, RNG)
    assert len(states) == 4  # three rounds, and the failed attempt between the first two
    between = states[1]
    assert (between.round, between.attempt, between.quarantined) == (1, 1, (1,))
    assert_same(between.server_state, states[0].server_state)
    assert between.client_states[1]["turns"] == 2  # nothing is rewound
    last = states[-1]
    assert (last.attempt, last.quarantined) == (0, (1,))
    assert [last.client_states[i]["turns"] for i in range(3)] == [4, 2, 4]
    assert_near(last.server_state["x"], by_hand(data, 1), 1e-5)
    assert rows_of(rows, "clients/asked") == [3, 5, 2]  # both attempts are counted
    assert "round 2 is repeated without clients [1]" in caplog.text
    for state, rest in zip(states[:-1], (3, 2, 1), strict=True):
        again = TrainerState.restore(saved_and_loaded(state.checkpoint()))
        resumed, _ = train(Grown(), data, RNG, again)
        assert len(resumed) == rest
        assert_same(resumed[-1].server_state, last.server_state)


def test_the_second_attempt_has_other_random_numbers():
    data = federation(SIZES, dtype=torch.float32)
    (first, between, *_), _ = train(Grown(), data, RNG)
    (second,), _ = train(Grown(rounds=2), data, RNG, between)
    assert first.client_states[0]["turns"] == 1
    noise = [state.client_states[0]["last"] for state in (between, second)]
    assert not torch.equal(*noise)


@pytest.mark.parametrize("case", ["not repeatable", "no outlier", "only outliers", "private"])
def test_otherwise_the_run_stops_at_its_last_state(case):
    data, settings = federation(SIZES, dtype=torch.float32), {}
    method = {
        "not repeatable": Grown(repeats=False),
        "no outlier": Grown(grow=math.inf, liars=()),
        "only outliers": Grown(liars=(0, 1, 2)),
        "private": Grown(grow=math.inf),
    }[case]
    if case == "private":
        settings = {"privacy": ClientPrivacy(noise_multiplier=1.0, dp_delta=1e-3)}
    with pytest.raises(RunStoppedError, match=r"round \d: the server's state would hold NaN"):
        train(method, data, RNG, **settings)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_delta_is_refused_above_a_million_times_its_broadcast(factor):
    """The bound is sharp, and no delta is scaled to it."""
    data = federation(SIZES, dtype=torch.float32)

    @dataclass(frozen=True)
    class Long(Averaged):
        def local_update(self, message, client, client_state, rng):
            update, new = super().local_update(message, client, client_state, rng)
            bound = 1e6 * (1 + message["x"].norm())
            direction = torch.nn.functional.normalize(update.payload["delta"]["x"], dim=0)
            payload = {"delta": {"x": factor * bound * direction}}
            return (dataclasses.replace(update, payload=payload) if client.id else update), new

    _, rows = train(Long(rounds=1), data, RNG)
    assert rows_of(rows, "clients/failed") == [0 if factor < 1 else 2]
