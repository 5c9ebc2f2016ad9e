import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedbolic.federated import Cohort, LocalTraining
from fedbolic.methods import SphereFed
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import (
    RNG,
    NormNet,
    assert_near,
    assert_same,
    federation,
    plain_network,
    train,
)

SIZES = (7, 4, 12, 5)
METHOD = SphereFed(MLP((4,)), rounds=3, local=LocalTraining(2, 3), lr=0.5, ridge=1e-2)
HEAD = "head.weight"


def head(width, classes, seed=0):
    meta = federation(classes=classes).meta
    method = dataclasses.replace(METHOD, backbone=MLP((width,)))
    return method.init(meta, RNG.at(seed))["parameters"][HEAD].double()


@pytest.mark.parametrize(("width", "classes"), [(4, 3), (3, 3), (20, 10), (50, 2)])
def test_rows_of_the_head_are_orthonormal_where_there_is_room(width, classes):
    w = head(width, classes)
    torch.testing.assert_close(w @ w.T, torch.eye(classes).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("width", "classes"), [(2, 3), (5, 17), (20, 62)])
def test_else_its_rows_have_length_one_and_are_scaled_rows_of_orthonormal_columns(width, classes):
    w = head(width, classes).numpy()
    np.testing.assert_allclose(np.linalg.norm(w, axis=1), 1, atol=1e-6)
    # some positive scale s per row makes the columns orthonormal: sum_i s_i^2 w_i w_i' = I
    outer = np.einsum("ia,ib->abi", w, w).reshape(width * width, classes)
    squares, *_ = np.linalg.lstsq(outer, np.eye(width).ravel(), rcond=None)
    np.testing.assert_allclose(outer @ squares, np.eye(width).ravel(), atol=1e-5)


def test_different_seeds_give_different_heads():
    assert not torch.allclose(head(4, 3, seed=0), head(4, 3, seed=1))


def test_the_head_never_leaves_a_client():
    data = federation(SIZES)
    server_state = METHOD.init(data.meta, RNG)
    double = {n: v.double() for n, v in server_state["parameters"].items()}
    message = {"parameters": double, "buffers": {}}
    update, client_state = METHOD.local_update(message, data.clients[0], {}, RNG)
    assert set(update.payload["delta"]) == {"body.1.weight", "body.1.bias"}
    assert client_state == {}


def features(parameters, data):
    """Unit-length features and one-hot labels of all training examples in one place."""
    x = torch.cat([c.train.tensors["x"] for c in data.clients]).numpy()
    y = torch.cat([c.train.tensors["y"] for c in data.clients]).numpy()
    weight, bias = (parameters[f"body.1.{n}"].numpy() for n in ("weight", "bias"))
    z = np.maximum(x @ weight.T + bias, 0)
    norms = np.linalg.norm(z, axis=1, keepdims=True)
    return z / np.maximum(norms, 1e-12), np.eye(3)[y]


@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 10.0])
def test_the_ridge_head_is_the_ridge_regression_of_all_data_in_one_place(ridge):
    data = federation((70, 40, 1200, 50))  # one client has more examples than are read at once
    method = dataclasses.replace(METHOD, ridge=ridge, lr=0.05, local=LocalTraining(1, 64))
    positions, _ = train(method, data)
    z, y = features(positions[-2].server_state["parameters"], data)
    epsilon = ridge * np.mean(np.sum(z**2, axis=0))
    found = positions[-1].server_state["parameters"][HEAD].numpy()
    normal = np.linalg.solve(z.T @ z + epsilon * np.eye(4), z.T @ y).T
    np.testing.assert_allclose(found, normal, rtol=0, atol=1e-9)
    sklearn = Ridge(alpha=epsilon, fit_intercept=False, solver="svd").fit(z, y).coef_
    np.testing.assert_allclose(found, sklearn, rtol=0, atol=1e-9)


def test_the_last_round_alone_solves_for_the_head_and_asks_everybody():
    data = federation(SIZES)
    positions, rows = train(METHOD, data, cohort=Cohort(0.5))
    asked = [r.value for r in rows if r.name == "clients/asked"]
    assert asked == [2, 2, 4]
    states = [p.server_state for p in positions]
    assert [p.round for p in positions] == [1, 2, 3]
    assert_same({"w": states[0]["parameters"][HEAD]}, {"w": states[1]["parameters"][HEAD]})
    assert not torch.equal(states[1]["parameters"][HEAD], states[2]["parameters"][HEAD])
    for name in ("body.1.weight", "body.1.bias"):
        assert not torch.equal(states[0]["parameters"][name], states[1]["parameters"][name])
        assert torch.equal(states[1]["parameters"][name], states[2]["parameters"][name])


def test_without_a_ridge_head_every_round_trains_a_sample():
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, closed_form_head=False)
    positions, rows = train(method, data, cohort=Cohort(0.5))
    assert [r.value for r in rows if r.name == "clients/asked"] == [2, 2, 2]
    assert_same(
        {"w": positions[0].server_state["parameters"][HEAD]},
        {"w": positions[2].server_state["parameters"][HEAD]},
    )


def test_the_split_of_the_data_does_not_change_the_ridge_head():
    pooled = federation((24,))
    whole = pooled.clients[0]
    parts = [torch.arange(0, 5), torch.arange(5, 17), torch.arange(17, 24)]
    meta = dataclasses.replace(whole.meta, num_clients=3)
    clients = tuple(
        dataclasses.replace(whole, id=i, meta=meta, train=type(whole.train)(whole.train.at(part)))
        for i, part in enumerate(parts)
    )
    server_state = METHOD.init(whole.meta, RNG)
    server_state = {
        "parameters": {n: v.double() for n, v in server_state["parameters"].items()},
        "buffers": {},
    }
    heads = []
    for members in ((whole,), clients):
        phase = METHOD.phase({**server_state, "round": 2})
        updates = [(c.id, phase.local_update(server_state, c, {}, RNG)[0]) for c in members]
        total = phase.aggregator.aggregate(updates)
        heads.append(phase.server_update(server_state, total)["parameters"])
    assert_near(heads[0], heads[1], 1e-10)


def test_features_of_a_body_with_batch_norm_are_those_of_evaluation():
    data = federation(SIZES)
    method = dataclasses.replace(METHOD, backbone=NormNet())
    positions, _ = train(method, data)
    before = positions[-2].server_state
    weights = {"head.weight": torch.zeros(3, 4), "head.bias": torch.zeros(3)}
    body_values = {n: v for n, v in before["parameters"].items() if n != HEAD}
    network = plain_network({**body_values, **weights}, before["buffers"], norm=True).eval()
    x = torch.cat([c.train.tensors["x"] for c in data.clients])
    y = torch.cat([c.train.tensors["y"] for c in data.clients]).numpy()
    z = network.body(x).detach().numpy()
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    epsilon = METHOD.ridge * np.mean(np.sum(z**2, axis=0))
    expected = Ridge(alpha=epsilon, fit_intercept=False, solver="svd").fit(z, np.eye(3)[y]).coef_
    found = positions[-1].server_state["parameters"][HEAD].numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert_same(before["buffers"], positions[-1].server_state["buffers"])


@pytest.mark.parametrize("changes", [{"rounds": 1}, {"lr": 0.0}, {"ridge": 0.0}])
def test_values_outside_their_range_are_refused(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"{name} must be"):
        dataclasses.replace(METHOD, **changes)
