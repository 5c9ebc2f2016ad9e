import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.dummy import DummyClassifier

from fedbolic.federated import Cohort
from fedbolic.methods import Majority
from tests.federated.simple_method import federation, train

sizes = st.lists(st.integers(1, 30), min_size=1, max_size=6).map(tuple)


def labels(client, split):
    return getattr(client, split).tensors["y"].numpy()


@given(sizes, st.integers(2, 6), st.integers(0, 2**31))
def test_counts_are_those_of_all_labels_in_one_place(n, classes, seed):
    data = federation(n, classes=classes, seed=seed)
    (state,), _ = train(Majority(), data)
    pooled = np.concatenate([labels(c, "train") for c in data.clients])
    assert state.server_state["counts"].tolist() == np.bincount(pooled, minlength=classes).tolist()
    for client in data.clients:
        own = np.bincount(labels(client, "train"), minlength=classes).tolist()
        assert state.client_states[client.id]["own_counts"].tolist() == own


def dummy(y_train, y_test):
    model = DummyClassifier(strategy="most_frequent").fit(np.zeros((len(y_train), 1)), y_train)
    return model.score(np.zeros((len(y_test), 1)), y_test)


@given(sizes, st.integers(2, 6), st.integers(0, 2**31))
def test_scores_are_those_of_the_dummy_classifier_of_sklearn(n, classes, seed):
    data = federation(n, classes=classes, seed=seed)
    _, rows = train(Majority(), data)
    scores = {(r.client, r.name): r.value for r in rows}
    pooled = np.concatenate([labels(c, "train") for c in data.clients])
    for client in data.clients:
        test = labels(client, "test")
        assert scores[client.id, "test/accuracy"] == pytest.approx(dummy(pooled, test))
        own = dummy(labels(client, "train"), test)
        assert scores[client.id, "fine_tuned/accuracy"] == pytest.approx(own)
    assert scores[None, "holdout/accuracy"] == pytest.approx(
        dummy(pooled, labels(data.holdout, "test"))
    )
    assert "holdout/fine_tuned/accuracy" not in {r.name for r in rows}


def test_a_cohort_counts_only_its_own():
    data = federation((5, 9, 3, 8))
    (state,), _ = train(Majority(), data, cohort=Cohort(0.5))
    assert len(state.client_states) == 2
    pooled = np.concatenate([labels(data.clients[i], "train") for i in state.client_states])
    assert state.server_state["counts"].tolist() == np.bincount(pooled, minlength=3).tolist()


def test_one_round_is_all_it_takes():
    assert Majority().rounds == 1
