"""Batched scores equal those of one client after another; samples of clients and their rows."""

import dataclasses
import logging
import os
from dataclasses import dataclass

import pytest
from typing_extensions import override

from fedbolic.federated import (
    Batched,
    Cohort,
    Evaluation,
    FineTune,
    LocalTraining,
    RidgeHead,
    RunStoppedError,
    Sequential,
    Workers,
)
from fedbolic.federated.batched import stacked_scores
from fedbolic.federated.contract.engine import Engine, Exchange
from fedbolic.federated.scores import score
from fedbolic.methods import Ditto, FedAvg, Scaffold
from fedbolic.nn.network.backbone import MLP
from fedbolic.optim import SGD
from hyperfed import HyperFed
from tests.federated.simple_method import RNG, SMALL, Averaged, NormNet, federation, rows_of, train

NETWORK, STEPS = MLP((4,)), LocalTraining(1, 4)
PERSONAL = {"head.*": "personal", "*": "shared"}

METHODS = {
    "fedavg": SMALL,
    "personal heads": dataclasses.replace(SMALL, sharing=PERSONAL),
    "momentum": dataclasses.replace(SMALL, optimizer=SGD(momentum=0.5)),
    "batch norm": dataclasses.replace(SMALL, backbone=NormNet()),
    "scaffold": Scaffold(NETWORK, rounds=2, local=STEPS),
    "ditto": Ditto(NETWORK, rounds=2, local=STEPS),
    "hyperfed": HyperFed(NETWORK, rounds=2, local=STEPS, lr=0.1),
}


def unequal():
    """Clients with different numbers of validation and test examples, some with none."""
    data = federation((7, 4, 12, 1, 5, 6))
    more = [federation((1, 1, 1), num_test=n, seed=n).clients[0].test for n in (1, 3, 17, 2)]
    none = data.clients[0].validation
    tests = [data.clients[0].test, none, more[2], more[0], more[1], none]
    validations = [none, none, more[1], more[3], none, more[2]]
    clients = tuple(
        dataclasses.replace(client, test=test, validation=validation)
        for client, test, validation in zip(data.clients, tests, validations, strict=True)
    )
    return dataclasses.replace(data, clients=clients)


DATA = unequal()


def trained(method):
    """Arguments of ``scores`` after training; some clients have no client state."""
    (*_, state), _ = train(method, DATA, cohort=Cohort(0.7))
    messages = {
        client.id: method.broadcast(state.server_state, client.id) for client in DATA.clients
    }
    return Exchange(method, messages, DATA.clients, state.client_states, RNG.at("scores"))


def assert_same_scores(found, expected, *, abs):
    assert list(found) == list(expected)
    for client_id, named in expected.items():
        assert list(found[client_id]) == list(named)
        assert found[client_id] == pytest.approx(named, abs=abs)


def refuse(*arguments, **named):
    raise AssertionError("a client was scored alone")


@pytest.mark.parametrize("chunk", [1024, 20])
@pytest.mark.parametrize("name", METHODS)
def test_scores_of_many_in_one_pass_are_those_of_one_after_another(name, chunk, monkeypatch):
    given = trained(METHODS[name])
    expected = Sequential().scores(given)
    monkeypatch.setattr(stacked_scores, "CHUNK", chunk)
    if name != "batch norm":
        monkeypatch.setattr(Engine, "scores", refuse)
        monkeypatch.setattr(stacked_scores, "unread_scores", refuse)
    assert_same_scores(Batched().scores(given), expected, abs=1e-6)


@pytest.mark.parametrize("memory", [1e-6, 512.0])
def test_the_memory_of_a_batched_engine_bounds_how_many_are_scored_together(memory, monkeypatch):
    sizes = []
    inner = stacked_scores._scores
    monkeypatch.setattr(
        stacked_scores,
        "_scores",
        lambda m, held, *on: sizes.append(len(held)) or inner(m, held, *on),
    )
    given = trained(METHODS["personal heads"])
    expected = Sequential().scores(given)
    assert_same_scores(Batched(memory=memory).scores(given), expected, abs=1e-6)
    assert (max(sizes) == 1) == (memory < 1)


def test_a_client_of_more_examples_than_a_chunk_is_scored_in_chunks(monkeypatch):
    given = trained(SMALL)
    expected = Sequential().scores(given)
    for module in (score, stacked_scores):
        monkeypatch.setattr(module, "CHUNK", 4)
    assert_same_scores(Batched().scores(given), expected, abs=1e-6)


class SumsOfAll(FedAvg):
    """Predictions with data-dependent values that vmap cannot follow."""

    @override
    def predict(self, model, local, batch, context):
        logits = super().predict(model, local, batch, context)
        return logits + float(logits.sum() > 1e9)


def test_what_cannot_be_vectorised_is_scored_one_by_one_and_said(caplog):
    given = trained(SumsOfAll(NETWORK, rounds=2, local=STEPS))
    caplog.set_level(logging.INFO, "fedbolic")
    engine = Batched()
    for _ in range(2):
        assert engine.scores(given) == Sequential().scores(given)
    assert caplog.text.count("the clients of SumsOfAll are scored one by one") == 1


@dataclass(frozen=True)
class Processes(Averaged):
    """A score that reports the process that computed it."""

    broken: int = -1

    @override
    def evaluate(self, message, client, client_state, rng):
        if client.id == self.broken:
            raise ArithmeticError("of client 2")
        if client.id == self.broken - 10:
            os._exit(9)
        number = rng.at("draw").numpy().random()
        return {"test/process": float(os.getpid()), "test/draw": number, "test/examples": 1.0}


def all_scores(engine, method):
    server_state = method.init(DATA.meta, RNG)
    messages = {client.id: server_state for client in DATA.clients}
    return engine.scores(Exchange(method, messages, DATA.clients, {}, RNG))


@pytest.mark.processes
def test_workers_score_in_their_processes_what_sequential_scores():
    with Workers(2).open(DATA.clients) as pool:
        found, expected = (all_scores(engine, Processes()) for engine in (pool, Sequential()))
        processes = {named.pop("test/process") for named in found.values()}
        assert len(processes) == 2
        assert os.getpid() not in processes
        for named in expected.values():
            del named["test/process"]
        assert found == expected
        for name in ("fedavg", "personal heads", "batch norm"):
            given = trained(METHODS[name])
            assert pool.scores(given) == Sequential().scores(given)
        with pytest.raises(ArithmeticError, match="of client 2"):
            all_scores(pool, Processes(broken=2))
        with pytest.raises(RunStoppedError, match="ended with exit code 9"):
            all_scores(pool, Processes(broken=12))
        assert all_scores(pool, Processes()).keys() == expected.keys()


# --- samples of clients and their rows ---------------------------------------------------------


def clients_of(rows, name):
    return {row.client for row in rows if row.name == name and row.client is not None}


@pytest.mark.parametrize("engine", [Sequential(), Batched()], ids=repr)
def test_a_sample_of_clients_is_scored_and_is_the_same_throughout(engine):
    data = federation((4,) * 9)
    _, everybody = train(SMALL, data)
    _, rows = train(SMALL, data, evaluation=Evaluation(clients=3), engine=engine)
    sample = clients_of(rows, "test/accuracy")
    assert len(sample) == 3
    for round in range(1, SMALL.rounds + 1):
        own = [rows_of(rows, "test/loss", round, i) for i in sorted(sample)]
        whole = [rows_of(everybody, "test/loss", round, i) for i in sorted(sample)]
        assert own == [pytest.approx(value, abs=1e-6) for value in whole]
        assert rows_of(rows, "test/loss", round) == [pytest.approx(sum(x for (x,) in own) / 3)]
        for name in ("holdout/loss", "train/loss"):  # the sample restricts the scored clients only
            here, there = (rows_of(found, name, round) for found in (rows, everybody))
            assert here == [pytest.approx(value, abs=1e-6) for value in there]


def test_samples_of_other_seeds_differ_and_many_make_all():
    data = federation((4,) * 9)
    evaluation = Evaluation(clients=3)
    samples = set()
    for seed in range(5):
        _, rows = train(Averaged(), data, RNG.at(seed), evaluation=evaluation)
        samples.add(frozenset(clients_of(rows, "test/gap")))
    assert len(samples) > 1
    _, rows = train(Averaged(), data, evaluation=Evaluation(clients=10))
    assert rows == train(Averaged(), data)[1]
    with pytest.raises(ValueError, match="clients must be at least 1"):
        Evaluation(clients=0)


def test_who_is_fine_tuned_and_scored_under_the_common_head_are_the_sample():
    data = federation((4,) * 6)
    evaluation = Evaluation(clients=2, fine_tuning=FineTune(1), ridge_head=RidgeHead())
    _, rows = train(SMALL, data, evaluation=evaluation)
    sample = clients_of(rows, "test/accuracy")
    for name in ("fine_tuned/accuracy", "ridge_head/accuracy"):
        assert clients_of(rows, name) == sample
    asked = rows_of(rows, "ridge_head/clients/asked", SMALL.rounds)
    assert asked == [6]  # the sums are over all clients


@pytest.mark.parametrize(
    "evaluation", [Evaluation(), Evaluation(fine_tuning=FineTune(1))], ids=repr
)
def test_without_the_clients_rows_those_of_the_federation_are_as_they_were(evaluation):
    data = federation((4, 6, 5))
    thin = dataclasses.replace(evaluation, per_client=False)
    (_, whole), (_, rows) = (train(SMALL, data, evaluation=each) for each in (evaluation, thin))
    assert rows == [row for row in whole if row.client is None]
    assert any(row.client is not None for row in whole)
