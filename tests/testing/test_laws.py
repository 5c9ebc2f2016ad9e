"""The contract tests for other packages: what keeps the laws passes, what breaks one is found."""

import os
from dataclasses import dataclass, replace

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Digits, Partitioned
from fedbolic.federated import Batched, LocalTraining, Mean, Sequential, Update
from fedbolic.manifolds import Euclidean, Lorentz, Poincare
from fedbolic.methods import FedAvg, Majority
from fedbolic.nn.network.backbone import MLP
from fedbolic.testing import (
    METHOD_LAWS,
    MethodRun,
    check_aggregator,
    check_engine,
    check_manifold,
    check_method,
)

DATA = Partitioned(Digits(), IID(2), num_train=24, num_test=8).load(Rng(0))
METHOD = FedAvg(MLP((3,)), rounds=1, local=LocalTraining(1, 4))
UPDATES = [(i, Update({"a": torch.arange(3.0) * i}, weight=1.0 + i)) for i in range(4)]


def test_parts_that_keep_the_laws_pass():
    check_method(METHOD, DATA)
    check_aggregator(Mean(), UPDATES)
    check_engine(Batched(), METHOD, DATA.to("cpu", torch.float64))
    for space in (Lorentz(0.5), Poincare(2.0), Euclidean()):
        check_manifold(space, ambient=4)


@dataclass(frozen=True)
class Global(Majority):
    """Draws from the global random stream."""

    def local_update(self, message, client, client_state, rng):
        update, new = super().local_update(message, client, client_state, rng)
        return replace(update, metrics={"noise": float(torch.rand(()))}), new


@dataclass(frozen=True)
class Leaking(Majority):
    """Sends the examples of a client."""

    def template(self, message):
        return None

    def local_update(self, message, client, client_state, rng):
        update, new = super().local_update(message, client, client_state, rng)
        return replace(
            update, payload={**update.payload, "x": client.train.all()["x"][:1] + 0}
        ), new


@dataclass(frozen=True)
class Undeclared(Majority):
    """Sends more than its template declares."""

    def local_update(self, message, client, client_state, rng):
        update, new = super().local_update(message, client, client_state, rng)
        return replace(update, payload={**update.payload, "more": torch.ones(1)}), new


@dataclass(frozen=True)
class Stepping(Majority):
    """Modifies the message."""

    def init(self, meta, rng):
        return {**super().init(meta, rng), "turns": torch.zeros(1)}

    def local_update(self, message, client, client_state, rng):
        message["turns"] += 1
        return super().local_update(message, client, client_state, rng)

    def server_update(self, server_state, total):
        return {**super().server_update(server_state, total), "turns": server_state["turns"]}


KNOWN: dict[int, float] = {}
"""Numbers of clients that this process has seen, which no argument of a method holds."""


@dataclass(frozen=True)
class Remembering(Majority):
    """Depends on what the process has done before."""

    def local_update(self, message, client, client_state, rng):
        update, new = super().local_update(message, client, client_state, rng)
        KNOWN.setdefault(client.id, float(len(KNOWN) + os.getpid()))
        return replace(update, metrics={"known": KNOWN[client.id]}), new


@dataclass(frozen=True)
class Unasked(Majority):
    """Has figures that no run asks for, as it is not ``Reporting``."""

    def figures(self, server_state, data):
        return {}


@pytest.mark.parametrize(
    ("method", "law"),
    [
        (Remembering(), "pickled_copies_answer_alike_in_another_process"),
        (Global(), "local_work_is_pure_and_deterministic"),
        (Leaking(), "no_row_of_a_payload_is_an_input"),
        (Undeclared(), "payloads_have_the_declared_form"),
        (Stepping(), "local_work_is_pure_and_deterministic"),
        (Unasked(), "figures_are_pure_and_may_be_saved"),
    ],
)
def test_a_method_that_breaks_a_law_is_found(method, law):
    (one,) = [each for each in METHOD_LAWS if each.__name__ == law]
    one(MethodRun(Majority(), DATA))
    with pytest.raises((AssertionError, RuntimeError)):
        one(MethodRun(method, DATA))


class First(Mean):
    """An aggregate that depends on the order of updates."""

    def aggregate(self, updates):
        total = super().aggregate(updates := list(updates))
        return replace(total, payload=updates[0][1].payload)


class Uneven(Sequential):
    """An engine with other random streams."""

    def run(self, exchange):
        return super().run(replace(exchange, rng=exchange.rng.at("other")))


@dataclass(frozen=True, eq=False)
class Squared(Euclidean):
    """A space whose distance is no metric."""

    def dist(self, x, y):
        return super().dist(x, y).square()


def test_other_parts_that_break_a_law_are_found():
    with pytest.raises(AssertionError):
        check_aggregator(First(), UPDATES)
    with pytest.raises(AssertionError):
        check_engine(Uneven(), METHOD, DATA.to("cpu", torch.float64))
    with pytest.raises(AssertionError):
        check_manifold(Squared(), ambient=3)
