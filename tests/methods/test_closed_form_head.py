"""Heads in closed form, compared with scikit-learn on the features of all data in one place."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedbolic.federated import (
    AggregatedUpdate,
    Batched,
    Cohort,
    Evaluation,
    FineTune,
    LocalTraining,
    RidgeHead,
)
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import (
    Apfl,
    ClosedFormHead,
    Ditto,
    FedAvg,
    FedDyn,
    FedNova,
    FedRep,
    FedRoD,
    Moon,
    PFedMe,
    RandomFeatures,
    Scaffold,
    SphereFed,
)
from fedbolic.nn.network.backbone import MLP
from hyperfed import HyperFed
from tests.federated.simple_method import (
    RNG,
    assert_near,
    assert_same,
    average,
    batches,
    federation,
    rows_of,
    train,
    values,
)


@dataclass(frozen=True)
class Solving(FedAvg):
    """A method of another project that says that it solves for its head."""

    @property
    def traits(self):
        return dataclasses.replace(super().traits, solves_head=True)


COMMON = {"backbone": MLP((6, 4)), "rounds": 2, "local": LocalTraining(1, 4), "lr": 0.2}
METHODS = {
    "FedAvg": FedAvg(**COMMON),
    "FedBABU": FedAvg(**COMMON, sharing={"head.*": "fixed", "*": "shared"}),
    "Scaffold": Scaffold(**COMMON),
    "FedDyn": FedDyn(**COMMON),
    "FedNova": FedNova(**COMMON),
    "Moon": Moon(**COMMON),
    "Ditto": Ditto(**COMMON),
    "FedRoD": FedRoD(**COMMON),
    "PFedMe": PFedMe(**COMMON),
    "Apfl": Apfl(**COMMON),
    "SphereFed": SphereFed(**COMMON, closed_form_head=False),
    "HyperFed": HyperFed(**COMMON),
}
LINEAR = {name: m for name, m in METHODS.items() if name not in ("FedBABU", "HyperFed")}
RIDGE, LENGTH = 1e-2, 1.5
SIZES = (7, 4, 12, 5)
BEFORE_LAST = {"layer": "body.2", "replaces": "body.3"}
ROWS = ("body.1.weight", "body.1.bias", "body.3.weight", "body.3.bias")


def layers(parameters, x):
    """Outputs of both layers of the backbone, by a few lines of numpy."""
    w, b, v, c = (parameters[name].numpy() for name in ROWS)
    hidden = x.flatten(1).numpy() @ w.T + b
    return {"body.1": hidden, "body": np.maximum(np.maximum(hidden, 0) @ v.T + c, 0)}


def unit(z):
    return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)


def pooled(data, parameters, layer):
    """Ridge regression of all clients' examples, one row of coefficients per class."""
    raw = layers(parameters, torch.cat([c.train.tensors["x"] for c in data.clients]))[layer]
    y = np.eye(3)[torch.cat([c.train.tensors["y"] for c in data.clients]).numpy()]
    z = unit(raw)
    alpha = RIDGE * np.mean(np.sum(z**2, axis=0))
    return Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(z, y)


@pytest.mark.parametrize("layer", ["body", "body.1"])
@pytest.mark.parametrize("name", METHODS)
def test_the_last_round_is_the_ridge_regression_of_all_data_in_one_place(name, layer):
    data = federation(SIZES)
    method = ClosedFormHead(METHODS[name], layer=layer, ridge=RIDGE)
    states, rows = train(method, data)
    assert states[-1].round == 3
    parameters = states[-1].server_state["parameters"]
    model = pooled(data, parameters, layer)
    for client in (*data.clients, data.holdout):
        logits = model.predict(unit(layers(parameters, client.test.tensors["x"])[layer]))
        labels = client.test.tensors["y"].numpy()
        loss = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
        own = client is not data.holdout
        names = ("test/accuracy", "test/loss") if own else ("holdout/accuracy", "holdout/loss")
        client_id = client.id if own else None
        accuracy = np.mean(logits.argmax(axis=1) == labels)
        assert rows_of(rows, names[0], 3, client_id) == [pytest.approx(accuracy)]
        assert rows_of(rows, names[1], 3, client_id) == [pytest.approx(loss.mean(), rel=1e-5)]


def test_a_head_on_random_features_is_the_ridge_regression_on_their_cosines():
    data, expanded = federation(SIZES), RandomFeatures(num=30, bandwidth=0.7)
    method = ClosedFormHead(METHODS["FedAvg"], ridge=RIDGE, random_features=expanded)
    states, rows = train(method, data)
    state = states[-1].server_state
    drawn = expanded.draw(4, state["closed_form"]["seed"])
    frequencies, phases = drawn["frequencies"].numpy(), drawn["phases"].numpy()

    def cosines(x):
        z = unit(layers(state["parameters"], x)["body"])
        return np.sqrt(2 / 30) * np.cos(z @ frequencies + phases)

    x, y = (torch.cat([c.train.tensors[key] for c in data.clients]) for key in "xy")
    phi = cosines(x)
    alpha = RIDGE * np.mean(np.sum(phi**2, axis=0))
    model = Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(phi, np.eye(3)[y.numpy()])
    for client in data.clients:
        logits, labels = model.predict(cosines(client.test.tensors["x"])), client.test.tensors["y"]
        loss = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels.numpy()]
        assert rows_of(rows, "test/loss", 3, client.id) == [pytest.approx(loss.mean(), rel=1e-5)]


@pytest.mark.parametrize("name", METHODS)
def test_before_the_last_round_it_is_the_method_itself(name):
    data = federation(SIZES)
    alone, rows = train(METHODS[name], data)
    states, more = train(ClosedFormHead(METHODS[name], ridge=RIDGE), data)
    inner = {k: v for k, v in states[1].server_state.items() if k != "closed_form"}
    assert_same(inner, alone[1].server_state)
    assert_same(dict(states[2].client_states), dict(alone[1].client_states))
    scores = [row for row in rows if not row.name.startswith("bytes")]
    assert scores == [r for r in more if r.round < 3 and not r.name.startswith("bytes")]


@pytest.mark.parametrize("name", LINEAR)
def test_every_round_starts_from_the_ridge_regression_of_all_data(name):
    data = federation(SIZES)
    method = ClosedFormHead(LINEAR[name], "start", ridge=RIDGE, row_length=LENGTH)
    states, _ = train(method, data, cohort=Cohort(0.5))
    assert [state.round for state in states] == [0, 1, 1, 2]
    for solved in states[::2]:
        parameters = solved.server_state["parameters"]
        model = pooled(data, parameters, "body")
        weight = torch.tensor(model.coef_)
        if "head.bias" in parameters:
            weight = weight * LENGTH / np.sqrt(np.mean(np.linalg.norm(model.coef_, axis=1) ** 2))
            assert not parameters["head.bias"].any()
        torch.testing.assert_close(parameters["head.weight"], weight, rtol=1e-8, atol=1e-8)


def test_the_rounds_between_are_local_descent_from_that_head():
    data = federation(SIZES)
    method = ClosedFormHead(METHODS["FedAvg"], "start", ridge=RIDGE, row_length=LENGTH)
    states, _ = train(method, data)
    ends = []
    for client in data.clients:
        start = states[0].server_state["parameters"]
        network = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4),
            torch.nn.ReLU(), torch.nn.Linear(4, 3),
        ).double()  # fmt: skip
        names = dict(zip(start, (name for name, _ in network.named_parameters()), strict=True))
        network.load_state_dict({names[name]: value for name, value in start.items()})
        descent = torch.optim.SGD(network.parameters(), lr=0.2)
        for x, y in batches(RNG, 1, client, epochs=1, batch_size=4, exchange=1):
            descent.zero_grad()
            torch.nn.functional.cross_entropy(network(x), y).backward()
            descent.step()
        found = values(network)
        ends.append({name: found[names[name]] for name in start})
    expected = average(ends, SIZES)
    assert_near(states[1].server_state["parameters"], expected, 1e-12)


def test_engines_agree():
    data = federation(SIZES)
    for when in ("start", "end"):
        method = ClosedFormHead(METHODS["Moon"], when, ridge=RIDGE)
        one, rows = train(method, data)
        two, more = train(method, data, engine=Batched())
        assert_near(two[-1].server_state["parameters"], one[-1].server_state["parameters"], 1e-12)
        assert rows_of(more, "holdout/loss", 2) == pytest.approx(rows_of(rows, "holdout/loss", 2))
        last = method.rounds
        found, expected = (
            [r.value for r in of if r.name == "test/loss" and r.round == last]
            for of in (more, rows)
        )
        assert found == pytest.approx(expected)


def test_its_exchange_is_counted_and_channels_and_cohorts_leave_the_last_one_whole():
    data = federation(SIZES)
    _, rows = train(ClosedFormHead(METHODS["FedAvg"], ridge=RIDGE), data, cohort=Cohort(0.5))
    assert rows_of(rows, "bytes/up", 3) == [4 * 8 * (4 * 4 + 4 * 3)]
    assert rows_of(rows, "clients/asked", 3) == [4]
    _, plain = train(METHODS["FedAvg"], data)
    _, rows = train(ClosedFormHead(METHODS["FedAvg"], "start", ridge=RIDGE), data)
    more = 4 * 8 * (4 * 4 + 4 * 3)
    assert rows_of(rows, "bytes/up", 1) == [rows_of(plain, "bytes/up", 1)[0] + more]


@pytest.mark.parametrize("when", ["start", "end"])
def test_a_secure_sum_finds_the_same_head(when):
    data = federation(SIZES)
    method = ClosedFormHead(METHODS["FedAvg"], when, ridge=RIDGE)
    _, rows = train(method, data)
    _, masked = train(SecureSum(method, fraction_bits=40), data)
    last = method.rounds
    expected = rows_of(rows, "holdout/loss", last)
    assert rows_of(masked, "holdout/loss", last) == pytest.approx(expected, rel=1e-5)


def test_fine_tuning_and_the_head_of_the_evaluation_are_those_of_the_method():
    data = federation(SIZES)
    evaluation = Evaluation(fine_tuning=FineTune(1), ridge_head=RidgeHead(RIDGE, layer="body.1"))
    _, rows = train(METHODS["FedAvg"], data, evaluation=evaluation)
    method = ClosedFormHead(METHODS["FedAvg"], layer="body.1", ridge=RIDGE)
    _, more = train(method, data, evaluation=evaluation)
    expected = rows_of(rows, "ridge_head/holdout/loss", 2)
    assert rows_of(more, "ridge_head/holdout/loss", 3) == expected
    assert rows_of(more, "holdout/loss", 3) == pytest.approx(expected)
    assert rows_of(more, "fine_tuned/loss", 3)


def test_a_layer_that_is_missing_is_refused_before_the_first_round():
    data = federation(SIZES)
    with pytest.raises(ValueError, match=r"the model has no layer '9', only 0, 1, 2, 3, 4"):
        train(ClosedFormHead(METHODS["FedAvg"], layer="body.9"), data)
    with pytest.raises(ValueError, match=r"layer must be body, or begin with 'body\.', got 'head'"):
        train(METHODS["FedAvg"], data, evaluation=Evaluation(ridge_head=RidgeHead(layer="head")))


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (FedRep(**COMMON), {}, "FedRep has no common features"),
        (SphereFed(**COMMON), {}, "SphereFed solves for its head already"),
        (ClosedFormHead(FedAvg()), {}, "ClosedFormHead solves for its head already"),
        (Solving(), {}, "Solving solves for its head already"),
        (FedAvg(), {"when": "start", "layer": "body.1"}, "starts with a head on the features"),
        (FedAvg(), {"when": "start", "random_features": RandomFeatures()}, "no random features"),
        (FedAvg(), {"when": "start", "replaces": "body.3"}, "before it, got 'body', 'start'"),
        (FedAvg(), {"layer": "body.2", "replaces": "body.3"}, "got 'body.2', 'end'"),
        (FedAvg(), {"ridge": 0.0}, "ridge must be a positive number, got 0.0"),
        (FedAvg(), {"row_length": -1.0}, "row_length must be a positive number, got -1.0"),
    ],
)
def test_what_cannot_work_is_refused(method, settings, message):
    with pytest.raises(ValueError, match=message):
        ClosedFormHead(method, **settings)


@pytest.mark.parametrize("name", ["FedBABU", "HyperFed"])
def test_a_method_without_a_head_on_its_server_cannot_start_from_one(name):
    method = ClosedFormHead(METHODS[name], "start")
    with pytest.raises(ValueError, match="has no linear head on its server"):
        train(method, federation(SIZES))


def test_every_round_of_prototypes_starts_from_the_regression_on_their_directions():
    data = federation(SIZES)
    method = ClosedFormHead(
        METHODS["HyperFed"], "start", **BEFORE_LAST, ridge=RIDGE, row_length=LENGTH
    )
    states, _ = train(method, data)
    assert [state.round for state in states] == [0, 1, 1, 2]
    x, y = (torch.cat([c.train.tensors[key] for c in data.clients]).numpy() for key in "xy")
    for solved in states[::2]:
        parameters = solved.server_state["parameters"]
        w, b = (parameters[name].numpy() for name in ROWS[:2])
        z = unit(np.maximum(x.reshape(len(x), -1) @ w.T + b, 0))
        directions = unit(solved.server_state["prototypes"]["head.weight"].numpy())
        alpha = RIDGE * np.mean(np.sum(z**2, axis=0))
        fitted = Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(z, directions[y]).coef_
        fitted *= LENGTH / np.sqrt(np.mean(np.sum(fitted**2, axis=1)))
        torch.testing.assert_close(
            parameters["body.3.weight"], torch.tensor(fitted), rtol=1e-8, atol=1e-8
        )
        assert not parameters["body.3.bias"].any()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("FedAvg", {}, "FedAvg has no fixed vectors of classes"),
        ("HyperFed", {"replaces": "body.1"}, r"shape \(4, 6\), .* got 'body.1' with \(6, 5\)"),
        ("HyperFed", {"replaces": "body.9"}, "got 'body.9' with none"),
    ],
)
def test_a_layer_that_cannot_be_replaced_is_refused(name, settings, message):
    method = ClosedFormHead(METHODS[name], "start", **{**BEFORE_LAST, **settings})
    with pytest.raises(ValueError, match=message):
        train(method, federation(SIZES))


def test_features_that_are_all_zero_give_a_head_of_zeros():
    data = federation(SIZES)
    method = ClosedFormHead(METHODS["FedAvg"], "start", ridge=RIDGE)
    server_state = method.init(data.meta, RNG)
    exchange = method.phase(server_state)
    sums = AggregatedUpdate(exchange.template(server_state), 1.0, ())
    parameters = exchange.server_update(server_state, sums)["parameters"]
    assert not parameters["head.weight"].any()
