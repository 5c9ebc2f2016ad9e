import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits

from flynn import FlyHash, FlyNNClassifier


def blobs(n=60, d=8, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    return rng.normal(size=(classes, d))[y] + rng.normal(size=(n, d)), y


MODEL = FlyNNClassifier(dim=200, fan_in=2, active=9, decay=0.6, channels="on-off", scaling=None)
decays = st.sampled_from([0.0, 0.1, 0.5, 0.9])


def direct(model, X, y, tested):
    """Algorithm 1, lines 3 to 12, in extended precision: one example at a time."""
    sizes = model.dim, model.fan_in, model.active
    hashes = FlyHash(*sizes, channels=model.channels, seed=model.seed).fit(X)
    learned, asked = hashes.transform(X).toarray() > 0, hashes.transform(tested).toarray() > 0
    classes = np.unique(y)
    w = np.ones((len(classes), learned.shape[1]), dtype=np.longdouble)
    for h, label in zip(learned, y, strict=True):
        w[np.searchsorted(classes, label), h] *= np.longdouble(model.decay)
    return w @ asked.T.astype(np.longdouble), classes


@given(decays, st.integers(0, 2**20))
def test_scores_are_those_of_the_algorithm(decay, seed):
    X, y = blobs(seed=seed)
    model = clone(MODEL).set_params(decay=decay, seed=seed).fit(X[:40], y[:40])
    scores, classes = direct(model, X[:40], y[:40], X[40:])
    found = np.exp(-model.decision_function(X[40:])).T
    if decay == 0:
        scores = np.maximum(scores, 0.5)
    np.testing.assert_allclose(found, scores.astype(float), rtol=1e-12)
    chosen = np.searchsorted(classes, model.predict(X[40:]))
    of_chosen = scores[chosen, np.arange(len(chosen))]  # ties are common: any minimum is right
    assert (of_chosen <= scores.min(axis=0) * (1 + 1e-12)).all()
    proba = (1 / scores / (1 / scores).sum(axis=0)).T.astype(float)
    np.testing.assert_allclose(model.predict_proba(X[40:]), proba, rtol=1e-10)


def test_small_weights_do_not_lose_the_counts():
    X, y = blobs(n=4000, classes=2)
    model = clone(MODEL).set_params(decay=0.1).fit(X, y)
    assert np.isfinite(model.decision_function(X)).all()
    assert model.counts_.max() > 330  # 0.1 ** 330 underflows in float64


@given(st.integers(1, 59), st.integers(0, 2**20))
def test_learning_in_parts_is_learning_at_once_and_unlearning_undoes_it(cut, seed):
    X, y = blobs(seed=seed)
    whole = clone(MODEL).fit(X, y)
    parts = clone(MODEL).partial_fit(X[:cut], y[:cut], classes=[0, 1, 2])
    first = parts.counts_.copy()
    parts.partial_fit(X[cut:], y[cut:])
    assert (parts.counts_ == whole.counts_).all()
    assert (parts.unlearn(X[cut:], y[cut:]).counts_ == first).all()


def test_leaving_one_out_is_learning_all_others():
    X, y = blobs()
    for decay in (0.0, 0.6):
        model = clone(MODEL).set_params(decay=decay).fit(X, y)
        found = model.leave_one_out(X, y)
        for i in range(len(X)):
            others = np.arange(len(X)) != i
            assert found[i] == clone(model).fit(X[others], y[others]).predict(X[i : i + 1])[0]


def test_what_was_not_learned_cannot_be_left_out():
    X, y = blobs()
    model = clone(MODEL).fit(X[:20], y[:20])
    with pytest.raises(ValueError, match="left out was not learned: a count would be below 0"):
        model.leave_one_out(X[20:], y[20:])


@pytest.mark.parametrize("decay", [0.0, 0.6])
def test_a_class_that_no_example_has_is_never_told(decay):
    X, y = blobs(classes=2)
    model = clone(MODEL).set_params(decay=decay).partial_fit(X, y, classes=[-1, 0, 1])
    assert set(model.predict(X)) == {0, 1}
    assert (model.predict_proba(X)[:, 0] <= 1 / 3).all()


def test_examples_of_another_width_are_refused():
    X, y = blobs()
    model = clone(MODEL).fit(X, y)
    for call in (model.predict, lambda x: model.partial_fit(x, y), lambda x: model.unlearn(x, y)):
        with pytest.raises(ValueError, match="7 features, but FlyNNClassifier is expecting 8"):
            call(X[:, :7])
    with pytest.raises(ValueError, match="7 features, but FlyHash is expecting 8"):
        FlyHash(dim=50).fit(X).transform(X[:, :7])


def test_a_weight_is_a_number_of_copies():
    X, y = blobs()
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    weighed = clone(MODEL).fit(X, y, sample_weight=weights)
    repeated = clone(MODEL).fit(X.repeat(weights, axis=0), y.repeat(weights))
    assert weighed.counts_.dtype == np.int64
    assert (weighed.counts_ == repeated.counts_).all()
    half = clone(MODEL).fit(X, y, sample_weight=weights / 2)
    assert (half.counts_ * 2 == weighed.counts_).all()


def test_of_equal_scores_the_first_class_wins():
    X, y = np.ones((20, 5)), np.arange(20) % 4
    assert set(clone(MODEL).fit(X, y).predict(X)) == {0}


def test_integers_of_every_type_give_the_bits_of_floats():
    X = load_digits().data[:50]
    expected = FlyHash(active=20).fit_transform(X).indices
    for dtype in (np.uint8, np.int8, np.uint16, np.int32, np.float32, np.float16):
        assert (FlyHash(active=20).fit_transform(X.astype(dtype)).indices == expected).all()


def test_what_was_not_learned_cannot_be_unlearned():
    X, y = blobs()
    model = clone(MODEL).fit(X[:20], y[:20])
    with pytest.raises(ValueError, match="were not all learned: a count would be below 0"):
        model.unlearn(X[20:], y[20:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": 1.0}, r"decay must lie in \[0, 1\), got 1: every class"),
        ({"decay": -0.1}, r"decay must lie in \[0, 1\]"),
        ({"active": 201}, r"active must lie in 1 .. dim = 200, got 201"),
        ({"fan_in": 9, "channels": "plain"}, "fan_in is 9, but there are 8 features"),
        ({"fan_in": 17}, "fan_in is 17, but there are 8 features, twice with on-off"),
        ({"dim": 0}, "dim must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        clone(MODEL).set_params(**settings).fit(*blobs())


def test_a_label_that_was_not_announced_is_refused():
    X, y = blobs()
    model = clone(MODEL)
    with pytest.raises(ValueError, match="needs classes"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match="label 2 is not among the classes"):
        model.partial_fit(X, y, classes=[0, 1])
