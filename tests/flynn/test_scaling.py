"""Scaled features compared with scikit-learn's scalers, and the parties' sums with fractions."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from fedbolic.federated.secure import SecureSum
from flynn import FlyHash, FlyNN, FlyNNClassifier, Histogram, PublicBounds, ZScores
from tests.federated.simple_method import RNG, federation, train
from tests.seeded import SeededKeys

METHOD = FlyNN(dim=300, fan_in=2, active=7, decay=0.4, scaling=ZScores(64.0))


def table(seed=0, n=80, d=6):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * 10.0 ** np.arange(d) + 50
    return X, rng.integers(0, 3, n)


SCALERS = {"standard": StandardScaler(), "range": MinMaxScaler((-1, 1))}


@pytest.mark.parametrize("scaling", ["standard", "range"])
def test_the_estimators_scale_as_a_pipeline_with_that_of_sklearn(scaling):
    X, y = table()
    given = {"dim": 200, "fan_in": 2, "active": 9, "channels": "on-off"}
    model = FlyNNClassifier(scaling=scaling, **given).fit(X[:60], y[:60])
    pipeline = make_pipeline(SCALERS[scaling], FlyNNClassifier(scaling=None, **given)).fit(
        X[:60], y[:60]
    )
    assert (model.counts_ == pipeline[-1].counts_).all()
    assert (model.decision_function(X[60:]) == pipeline.decision_function(X[60:])).all()
    hashes = FlyHash(scaling=scaling, **given).fit(X[:60]).transform(X[60:])
    expected = make_pipeline(SCALERS[scaling], FlyHash(**given)).fit(X[:60]).transform(X[60:])
    assert (hashes != expected).nnz == 0


@pytest.mark.parametrize("scaling", ["standard", "range"])
def test_a_scale_is_that_of_the_first_examples_and_stays(scaling):
    X, y = table()
    model = FlyNNClassifier(scaling=scaling).partial_fit(X[:60], y[:60], classes=[0, 1, 2])
    first = model.counts_.copy()
    expected = SCALERS[scaling].fit(X[:60]).transform(X)
    assert (model.scaler_.transform(X) == expected).all()
    model.partial_fit(X[60:], y[60:])
    assert (model.scaler_.transform(X) == expected).all()
    assert (model.unlearn(X[60:], y[60:]).counts_ == first).all()


@pytest.mark.parametrize("scaling", ["standard", "range"])
def test_examples_of_weight_zero_do_not_scale(scaling):
    X, y = table()
    weights = np.random.default_rng(1).integers(0, 3, len(X))
    X[weights == 0] *= 1000
    weighed = FlyNNClassifier(scaling=scaling).fit(X, y, sample_weight=weights)
    repeated = FlyNNClassifier(scaling=scaling).fit(X.repeat(weights, axis=0), y.repeat(weights))
    np.testing.assert_allclose(weighed.scaler_.scale_, repeated.scaler_.scale_)


def moments(x, bound):
    """Mean and standard deviation of features rounded to 2 ** -30 of the bound, in fractions."""
    unit = Fraction(bound) / 2**30
    whole = [[round(Fraction(v) / unit) for v in column] for column in x.T.tolist()]
    means = [Fraction(sum(of), len(of)) for of in whole]
    squares = [sum((v - m) ** 2 for v in of) / len(of) for of, m in zip(whole, means, strict=True)]
    return [float(m * unit) for m in means], [math.sqrt(s) * float(unit) for s in squares]


@settings(max_examples=8)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 2**31))
def test_z_scores_are_those_of_all_examples_in_one_place(sizes, seed):
    data = federation(tuple(sizes), seed=seed)
    (*_, state), _ = train(METHOD, data)
    x = torch.cat([client.train.tensors["x"] for client in data.clients]).numpy()
    y = torch.cat([client.train.tensors["y"] for client in data.clients]).numpy()
    center, spread = moments(x, 64)
    server_state = state.server_state
    np.testing.assert_allclose(server_state["center"], center, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(server_state["spread"], [s or 1.0 for s in spread], rtol=1e-12)
    together = dataclasses.replace(data, clients=(one_party(data),))
    (*_, alone), _ = train(METHOD, dataclasses.replace(together, meta=together.clients[0].meta))
    for name in ("center", "spread", "counts"):
        assert torch.equal(server_state[name], alone.server_state[name])
    scaled = (x - server_state["center"].numpy()) / server_state["spread"].numpy()
    seed = RNG.at("init", "hash").number()
    model = FlyNNClassifier(300, 2, 7, decay=0.4, channels="plain", scaling=None, seed=seed)
    model.partial_fit(scaled, y, classes=np.arange(3))
    assert (server_state["counts"].numpy() == model.counts_).all()


def one_party(data):
    """A client that holds the examples of all clients."""
    first = data.clients[0]
    tensors = {
        key: torch.cat([client.train.tensors[key] for client in data.clients])
        for key in first.train.tensors
    }
    meta = dataclasses.replace(data.meta, num_clients=1)
    return dataclasses.replace(first, train=type(first.train)(tensors), meta=meta)


def test_a_feature_that_never_changes_is_only_centred():
    data = federation((9, 6))
    for client in data.clients:
        client.train.tensors["x"][:, 2] = 7.25
    (*_, state), rows = train(METHOD, data)
    assert state.server_state["center"][2] == 7.25
    assert state.server_state["spread"][2] == 1.0
    assert next(row.value for row in rows if row.name == "clients/failed") == 0


def test_z_scores_under_masks_are_those_in_the_clear():
    data = federation((9, 6, 8))
    (*_, masked), _ = train(SecureSum(METHOD), data)
    (*_, clear), _ = train(METHOD, data)
    for name in ("center", "spread", "counts"):
        # with masks, the seed of the hash comes from the same stream as without
        assert torch.equal(masked.server_state["inner"][name], clear.server_state[name])


@pytest.mark.parametrize("channels", ["plain", "signed", "on-off"])
def test_public_bounds_are_a_map_that_every_party_makes_alone(channels):
    data = federation((9, 6))
    low, high = (-3.0, -2.0, 0.0, -9.0, -1.0), (3.0, 5.0, 1.0, 9.0, 2.0)
    method = dataclasses.replace(METHOD, channels=channels, scaling=PublicBounds(low, high))
    (state,), _ = train(method, data)
    scaler = MinMaxScaler((-1, 1)).fit(np.array([low, high]))
    x, y = (
        torch.cat([client.train.tensors[key] for client in data.clients]).numpy() for key in "xy"
    )
    seed = RNG.at("init", "hash").number()
    model = FlyNNClassifier(300, 2, 7, decay=0.4, channels=channels, scaling=None, seed=seed)
    model.partial_fit(scaler.transform(x), y, classes=np.arange(3))
    assert (state.server_state["counts"].numpy() == model.counts_).all()


def test_private_features_are_never_scaled_by_records_and_the_ledger_tells(caplog):
    with pytest.raises(ValueError, match="ZScores sends sums of the records that no privacy"):
        dataclasses.replace(METHOD, privacy=Histogram(1.0))
    bounds = PublicBounds(-3.0, 3.0)
    method = dataclasses.replace(METHOD, privacy=Histogram(1.0), noise=SeededKeys(), scaling=bounds)
    train(method, federation((9, 6)))
    assert f"features: scaled by {bounds}; free if that does not come" in caplog.text
    caplog.clear()
    train(dataclasses.replace(method, scaling=None), federation((9, 6)))
    assert "features: as they are" in caplog.text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PublicBounds(1.0, 1.0), "high must be above low"),
        (lambda: PublicBounds(0.0, math.inf), "both finite"),
        (lambda: PublicBounds((0.0, 1.0), (2.0, 3.0, 4.0)), "low has 2 features and high has 3"),
        (lambda: ZScores(0.0), "bound must be a positive number, got 0.0"),
        (lambda: ZScores((1.0, -1.0)), "bound must be a positive number, got -1.0"),
    ],
)
def test_bounds_that_bound_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("scaling", [PublicBounds((0.0, 1.0), 2.0), ZScores((1.0, 1.0))])
def test_bounds_of_another_number_of_features_are_refused_before_the_first_round(scaling):
    method = dataclasses.replace(METHOD, scaling=scaling)
    with pytest.raises(ValueError, match="bounds of 2 features, but inputs have 5"):
        method.init(federation().meta, RNG)
