import dataclasses
from math import nan

import numpy as np
import pytest
import torch

from fedbolic.federated import Cohort, Evaluation, FineTune, LocalTraining
from tests.federated.simple_method import (
    RNG,
    SIZES,
    SMALL,
    Averaged,
    assert_same,
    federation,
    plain_network,
    rows_of,
    train,
)

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
    assert len(positions[-1].client_states) == 1
    assert sorted(rows_of(rows, "test/turns", 1, i)[0] for i in range(4)) == [0, 0, 0, 1]


TUNED = Evaluation(fine_tuning=FineTune(epochs=2, lr=0.05))


@pytest.mark.parametrize("sharing", [{"*": "shared"}, {"head.*": "personal", "*": "shared"}])
def test_fine_tuning_comes_after_the_last_round_and_leaves_no_trace(sharing):
    data = federation(SIZES)
    method = dataclasses.replace(SMALL, sharing=sharing)
    plain, rows = train(method, data)
    tuned, more = train(method, data, evaluation=TUNED)
    for x, y in zip(plain, tuned, strict=True):
        assert_same(x.server_state, y.server_state)
        assert_same({str(k): m for k, m in x.client_states.items()},
                    {str(k): m for k, m in y.client_states.items()})  # fmt: skip
    new = [row for row in more if row not in rows]
    assert new == [row for row in more if row.name.startswith("fine_tuned/")]
    assert {row.round for row in new} == {3}
    assert {row.client for row in new if row.name == "fine_tuned/accuracy"} == {None, 0, 1, 2, 3}


def test_fine_tuning_is_local_descent_from_what_the_client_receives():
    data = federation(SIZES)
    positions, rows = train(SMALL, data, evaluation=TUNED)
    for client in data.clients:
        network = plain_network(positions[-1].server_state["parameters"])
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
        assert rows_of(rows, "fine_tuned/loss", 3, client.id) == [
            pytest.approx(float(loss), rel=1e-6)
        ]


def test_local_training_is_not_fine_tuned():
    method = dataclasses.replace(SMALL, sharing={"*": "personal"})
    _, rows = train(method, federation(), evaluation=TUNED)
    assert not [row for row in rows if row.name.startswith("fine_tuned/")]


def test_a_client_that_cannot_be_fine_tuned_is_named(caplog):
    data = federation(SIZES)
    labels = {**data.clients[1].train.tensors, "y": torch.full((4,), 99)}
    broken = dataclasses.replace(data.clients[1], train=type(data.clients[1].train)(labels))
    clients = (data.clients[0], broken, *data.clients[2:])
    _, rows = train(SMALL, dataclasses.replace(data, clients=clients), evaluation=TUNED)
    assert {r.client for r in rows if r.name == "fine_tuned/accuracy"} == {None, 0, 2, 3}
    tuned = [r.getMessage() for r in caplog.records if "tun" in r.getMessage()]
    assert len(tuned) == 1
    assert "client 1" in tuned[0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Evaluation(0), "every must be at least 1, got 0"),
        (lambda: FineTune(0), "epochs must be at least 1, got 0"),
        (lambda: FineTune(1, nan), "lr must be a positive number, got nan"),
        (lambda: LocalTraining(0), "epochs must be at least 1, got 0"),
        (lambda: LocalTraining(1, 0), "batch_size must be at least 1, got 0"),
        (lambda: LocalTraining(1, 1, 0), "repeats must be at least 1, got 0"),
    ],
)
def test_values_outside_their_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
