"""The ridge head of a run's features, compared with scikit-learn on all data in one place."""

import dataclasses
from math import inf, nan

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedbolic.data import Examples
from fedbolic.federated import Clip, Evaluation, LocalTraining, RidgeHead
from fedbolic.federated.rounds.ridge_head import solve_ridge
from fedbolic.methods import (
    Apfl,
    Ditto,
    FedAvg,
    FedRoD,
    Majority,
    Moon,
    PFedMe,
    Scaffold,
    SphereFed,
)
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    SIZES,
    SMALL,
    Averaged,
    NormNet,
    assert_same,
    federation,
    plain_network,
    rows_of,
    saved_and_loaded,
    train,
)

COMMON = {"backbone": MLP((4,)), "rounds": 2, "local": LocalTraining(1, 4), "lr": 0.2}
METHODS = {
    "FedAvg": FedAvg(**COMMON),
    "FedBABU": FedAvg(**COMMON, sharing={"head.*": "fixed", "*": "shared"}),
    "a fixed body": FedAvg(**COMMON, sharing={"body.*": "fixed", "*": "shared"}),
    "batch norm": FedAvg(**{**COMMON, "backbone": NormNet()}),
    "Scaffold": Scaffold(**COMMON),
    "Ditto": Ditto(**COMMON),
    "FedRoD": FedRoD(**COMMON),
    "Moon": Moon(**COMMON),
    "PFedMe": PFedMe(**COMMON),
    "Apfl": Apfl(**COMMON),
    "SphereFed": SphereFed(**COMMON),
}
RIDGE = 1e-2
EVALUATION = Evaluation(ridge_head=RidgeHead(RIDGE))
EMPTY = {"head.weight": torch.zeros(3, 4), "head.bias": torch.zeros(3)}


def body(method, data, server_state):
    """Unit-length features by a hand-written network in evaluation mode."""
    parameters, buffers = server_state["parameters"], server_state["buffers"]
    if "body.1.weight" not in parameters:  # a fixed body is never sent: it follows from the seed
        initial, _ = method.model(data.meta).init(server_state["seed"])
        parameters = {**{n: v.double() for n, v in initial.items()}, **parameters}
    values = {n: v for n, v in parameters.items() if n.startswith("body.")}
    network = plain_network({**values, **EMPTY}, buffers, norm=bool(buffers)).eval()

    def features(x):
        z = network.body(x).detach().numpy()
        return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)

    return features


def expected(method, data, server_state, ridge=RIDGE, *, without=()):
    """Ridge regression on all examples in one place: maps a split to its accuracy and loss."""
    there = [c for c in data.clients if c.id not in without]
    features = body(method, data, server_state)
    z = features(torch.cat([c.train.tensors["x"] for c in there]))
    y = np.eye(3)[torch.cat([c.train.tensors["y"] for c in there]).numpy()]
    alpha = ridge * np.mean(np.sum(z**2, axis=0))
    model = Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(z, y)

    def scores(split):
        logits = model.predict(features(split.tensors["x"]))
        labels = split.tensors["y"].numpy()
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
        return float(np.mean(logits.argmax(axis=1) == labels)), float(losses.mean())

    return scores


@pytest.mark.parametrize("name", METHODS)
def test_the_head_is_the_ridge_regression_of_all_data_in_one_place(name):
    method, data = METHODS[name], federation((70, 40, 1200, 50), num_test=40)  # 1200 is 2 chunks
    positions, rows = train(method, data, evaluation=EVALUATION)
    scores = expected(method, data, positions[-1].server_state)
    for client in data.clients:
        accuracy, loss = scores(client.test)
        assert rows_of(rows, "ridge_head/accuracy", 2, client.id) == [accuracy]
        assert rows_of(rows, "ridge_head/loss", 2, client.id) == [pytest.approx(loss, rel=1e-6)]
        assert rows_of(rows, "ridge_head/examples", 2, client.id) == [40]
    accuracy, loss = scores(data.holdout.test)
    assert rows_of(rows, "ridge_head/holdout/accuracy", 2) == [accuracy]
    assert rows_of(rows, "ridge_head/holdout/loss", 2) == [pytest.approx(loss, rel=1e-6)]
    mean = np.mean([scores(c.test)[0] for c in data.clients])
    assert rows_of(rows, "ridge_head/accuracy", 2) == [pytest.approx(mean)]


def test_validation_examples_are_scored_under_their_own_name():
    data = federation(SIZES)
    clients = tuple(
        dataclasses.replace(c, validation=federation((5,), seed=9).clients[0].train)
        for c in data.clients
    )
    data = dataclasses.replace(data, clients=clients)
    positions, rows = train(SMALL, data, evaluation=EVALUATION)
    scores = expected(SMALL, data, positions[-1].server_state)
    for client in clients:
        found = rows_of(rows, "ridge_head/validation/accuracy", 3, client.id)
        assert found == [scores(client.validation)[0]]


@pytest.mark.parametrize("name", METHODS)
def test_it_comes_after_the_last_round_and_leaves_no_trace(name):
    method, data = METHODS[name], federation(SIZES)
    plain, rows = train(method, data)
    calibrated, more = train(method, data, evaluation=EVALUATION)
    for x, y in zip(plain, calibrated, strict=True):
        saved = [saved_and_loaded(state.checkpoint()) for state in (x, y)]
        assert_same(*saved)
    new = [row for row in more if row not in rows]
    assert new == [row for row in more if row.name.startswith("ridge_head/")]
    assert {row.round for row in new} == {2}


def test_spherefeds_own_last_round_is_the_same_head():
    method, data = SphereFed(**COMMON, ridge=RIDGE), federation((70, 40, 50), num_test=40)
    _, rows = train(method, data, evaluation=EVALUATION)
    for own, calibrated in (
        ("test/loss", "ridge_head/loss"),
        ("holdout/loss", "ridge_head/holdout/loss"),
    ):
        assert rows_of(rows, own, 2) == pytest.approx(rows_of(rows, calibrated, 2), rel=1e-6)


def spoiled(client, fault):
    tensors = client.train.tensors
    if fault == "label":
        return Examples({**tensors, "y": torch.full_like(tensors["y"], 99)})
    return Examples({**tensors, "x": torch.full_like(tensors["x"], nan)})


@pytest.mark.parametrize("fault", ["label", "nan"])
def test_a_client_that_fails_is_named_and_left_out(fault, caplog):
    data = federation(SIZES)
    broken = dataclasses.replace(data.clients[1], train=spoiled(data.clients[1], fault))
    data = dataclasses.replace(data, clients=(data.clients[0], broken, *data.clients[2:]))
    positions, rows = train(SMALL, data, evaluation=EVALUATION)
    scores = expected(SMALL, data, positions[-1].server_state, without={1})
    assert {r.client for r in rows if r.name == "ridge_head/accuracy"} == {None, 0, 2, 3}
    loss = rows_of(rows, "ridge_head/holdout/loss", 3)
    assert loss == [pytest.approx(scores(data.holdout.test)[1], rel=1e-6)]
    assert rows_of(rows, "ridge_head/clients/failed", 3) == [1]
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 3 + 1  # once in every round, and once for the head
    assert all("client 1 is left out" in message for message in said)


def test_a_client_without_training_examples_adds_nothing():
    data = federation((7, 0, 12))
    positions, rows = train(SMALL, data, evaluation=EVALUATION)
    scores = expected(SMALL, data, positions[-1].server_state)
    assert rows_of(rows, "ridge_head/accuracy", 3, 1) == [scores(data.clients[1].test)[0]]
    loss = rows_of(rows, "ridge_head/holdout/loss", 3)
    assert loss == [pytest.approx(scores(data.holdout.test)[1], rel=1e-6)]


@dataclasses.dataclass(frozen=True)
class Featureless(FedAvg):
    """A method whose clients fail to compute features."""

    def features(self, model, local, batch, context):
        raise RuntimeError("no features today")


def test_if_everybody_fails_there_are_no_rows_and_the_run_ends(caplog):
    positions, rows = train(Featureless(**COMMON), federation(SIZES), evaluation=EVALUATION)
    assert positions[-1].round == 2
    assert not [row for row in rows if row.name.startswith("ridge_head/")]
    said = [r.getMessage() for r in caplog.records]
    assert len([m for m in said if "no features today" in m]) == 4
    assert "Featureless gets no ridge head" in said[-1]


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(**COMMON, sharing={"*": "personal"}),
        FedAvg(**COMMON, sharing={"head.*": "personal", "*": "shared"}),
        Majority(),
        Averaged(),
    ],
)
def test_without_a_global_model_there_are_no_rows_and_it_is_said_once(method, caplog):
    _, rows = train(method, federation(SIZES), evaluation=EVALUATION)
    assert not [row for row in rows if row.name.startswith("ridge_head/")]
    (said,) = [r.getMessage() for r in caplog.records]
    name = type(method).__name__
    assert said == f"{name} has no common features, so it gets no ridge head"


def test_without_holdout_it_is_scored_at_the_clients_only():
    data = dataclasses.replace(federation(SIZES), holdout=None)
    _, rows = train(SMALL, data, evaluation=EVALUATION)
    assert not [row for row in rows if "holdout" in row.name]
    assert rows_of(rows, "ridge_head/accuracy", 3)


def test_its_exchange_is_counted_apart_and_no_channel_acts_on_it():
    data = federation(SIZES)
    positions, rows = train(SMALL, data, evaluation=EVALUATION, channels=(Clip(0.5),))
    scores = expected(SMALL, data, positions[-1].server_state)
    loss = rows_of(rows, "ridge_head/holdout/loss", 3)
    assert loss == [pytest.approx(scores(data.holdout.test)[1], rel=1e-6)]
    assert rows_of(rows, "ridge_head/bytes/up", 3) == [4 * 8 * (4 * 4 + 4 * 3)]
    assert rows_of(rows, "ridge_head/bytes/down", 3) == rows_of(rows, "bytes/down", 3)
    assert rows_of(rows, "ridge_head/clients/asked", 3) == [4]


def test_every_head_fits_features_that_are_all_zero():
    total = {"gram": torch.zeros(4, 4).double(), "cross": torch.zeros(4, 3).double()}
    assert_same({"w": solve_ridge(total, 1e-4)}, {"w": torch.zeros(4, 3).double()})


def test_the_head_solves_the_normal_equations():
    z = torch.randn(50, 4, generator=RNG.generator(), dtype=torch.float64)
    y = torch.randn(50, 3, generator=RNG.at(1).generator(), dtype=torch.float64)
    head = solve_ridge({"gram": z.T @ z, "cross": z.T @ y}, 0.1)
    alpha = 0.1 * float(z.square().sum()) / 4
    torch.testing.assert_close(z.T @ (y - z @ head), alpha * head, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ridge", [0.0, -1e-4, nan, inf])
def test_a_ridge_that_is_not_positive_is_refused(ridge):
    with pytest.raises(ValueError, match=f"ridge must be a positive number, got {ridge}"):
        RidgeHead(ridge)
