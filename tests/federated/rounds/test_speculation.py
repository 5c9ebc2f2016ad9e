"""Rounds on an accelerator that end before the host knows a number: one wait, the same results."""

import dataclasses
import math
import weakref

import pytest
import torch

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.data import Examples
from fedbolic.federated import (
    Attacked,
    Batched,
    Evaluation,
    Graphed,
    LocalTraining,
    Sequential,
    SignFlip,
    Trainer,
)
from fedbolic.federated.aggregators.update import Unread
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.contract.engine import Exchange, RunStoppedError
from fedbolic.federated.contract.server_optimizer import ServerSGD
from fedbolic.federated.rounds import speculation
from fedbolic.federated.rounds.evaluation import RidgeHead
from fedbolic.methods import FedProto
from fedbolic.nn.network.backbone import MLP
from tests.federated.agreement import with_, with_client
from tests.federated.simple_method import NormNet, federation
from tests.rehearsal import CUDA, rehearsal

LOCAL, ROUNDS = LocalTraining(1, 4), 4
DATA = dataclasses.replace(federation((8, 8, 8)), holdout=None)
METHODS = {
    "sums": with_(rounds=ROUNDS, local=LOCAL),
    "batch norm": with_(backbone=NormNet(), rounds=ROUNDS, local=LOCAL),  # scored one by one
    "prototypes": FedProto(MLP((6,)), rounds=ROUNDS, local=LOCAL),
}


def spoiled():
    """The federation with a client whose inputs are NaN."""
    train = DATA.clients[1].train
    nan = Examples({"x": train.tensors["x"] * math.nan, "y": train.tensors["y"]})
    return with_client(DATA, 1, train=nan)


def trained(engine, method, data, *, device="cpu", work=None, **settings):
    """Rows and last state of a run; with ``work`` also the waits of each round."""
    trainer = Trainer(engine, evaluation=Evaluation(**settings))
    rows, waits = [], []
    for found in trainer.run(method, data.to(device, torch.float64), Rng(0)):
        state, of_round = found
        rows += of_round
        if work is not None:
            waits.append(work.total()["waits"])
            work.clear()
    return rows, tree.tensors(tree.to(state.server_state, "cpu")), waits


def compared(engine, method, data, **settings):
    """Waits of each round of a run that equals the one of ``Sequential``."""
    expected, state, _ = trained(Sequential(), method, data, **settings)
    with rehearsal() as device:
        given = {"device": CUDA, "work": device.work, **settings}
        found, there, waits = trained(engine, method, data, **given)
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    values = [row.value for row in expected]
    assert [row.value for row in found] == pytest.approx(values, abs=1e-9)
    for path, value in state.items():
        torch.testing.assert_close(there[path], value, rtol=1e-9, atol=1e-9)
    return waits


@pytest.mark.parametrize("name", METHODS)
def test_a_round_waits_once(name):
    assert {*compared(Batched(), METHODS[name], DATA, every=2)} == {1}
    assert compared(Graphed(), METHODS[name], DATA)[-1] == 1  # captures wait as well


@pytest.mark.parametrize("name", METHODS)
def test_an_update_that_is_found_unusable_later_is_left_out(name, caplog):
    waits = compared(Batched(), METHODS[name], spoiled(), ridge_head=RidgeHead())
    texts = [record.getMessage() for record in caplog.records]
    assert texts[: len(texts) // 2] == texts[len(texts) // 2 :]  # of both runs
    assert sum("client 1 is left out" in text for text in texts) >= 2 * ROUNDS
    assert waits[-1] > 1


def test_a_result_that_stands_warns_once(caplog):
    method = dataclasses.replace(METHODS["prototypes"], rounds=1)
    compared(Batched(), method, DATA, ridge_head=RidgeHead())
    texts = [record.getMessage() for record in caplog.records]
    assert texts == ["FedProto has no common features, so it gets no ridge head"] * 2


def test_a_state_that_is_not_finite_stops_the_run():
    method = dataclasses.replace(METHODS["sums"], lr=50.0, server_optimizer=ServerSGD(lr=1e308))
    texts = []
    for device in ("cpu", CUDA):
        with rehearsal(), pytest.raises(RunStoppedError) as error:
            trained(Batched(), method, DATA, device=device)
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    assert "would hold NaN or infinite values" in texts[0]


def test_an_engine_that_cannot_take_a_payload_stops_the_run():
    engine = Attacked(SignFlip(), (1,), inner=Batched(), part="mu")
    with rehearsal(), pytest.raises(RunStoppedError, match="round 1: Attacked replaces"):
        trained(engine, METHODS["sums"], DATA, device=CUDA)


def test_payloads_of_too_many_bytes_are_not_held(monkeypatch):
    monkeypatch.setattr(speculation, "MOST_BYTES", 0)
    waits = compared(Batched(), METHODS["sums"], DATA)
    assert set(waits) == {3}  # numbers of the updates, the server's state and the scores


def test_unread_results_hold_no_tensors_of_their_tasks(monkeypatch):
    tasks, begin = [], ClientTask.begin

    def begun(_, *given):
        task = begin(*given)
        tasks.append(weakref.ref(task))
        return task

    monkeypatch.setattr(ClientTask, "begin", classmethod(begun))
    with rehearsal():
        method, data = METHODS["sums"], DATA.to(CUDA, torch.float64)
        state = Trainer().begin(method, data, 0).server_state
        messages = {client.id: method.broadcast(state, client.id) for client in data.clients}
        results = [*Batched().run(Exchange(method, messages, data.clients, {}, Rng(0)))]
        assert not any(update.row.numbers.unread.is_read for _, update, _ in results)
    assert [task() for task in tasks] == [None] * len(DATA.clients)


def test_numbers_whose_transfer_failed_are_read_later(monkeypatch):
    def fails(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with rehearsal():
        first, second = (Unread([torch.full((2,), x, device=CUDA)]) for x in (1.0, 2.0))
        with monkeypatch.context() as patch:
            patch.setattr(torch, "cat", fails)
            with pytest.raises(torch.OutOfMemoryError):
                first.read()
        assert second.read()[0].tolist() == [2.0, 2.0]
        assert first.is_read
        assert first.read()[0].tolist() == [1.0, 1.0]
