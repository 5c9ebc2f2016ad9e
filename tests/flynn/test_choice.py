"""Channels and scaling of a classifier as it comes, against refitting without every example."""

import itertools

import numpy as np
import pytest

from flynn import FlyNNClassifier
from flynn.estimators import CHANNELS, SCALINGS
from tests.flynn.test_scaling import SCALERS

SIZES = {"dim": 60, "fan_in": 2, "active": 7}


def table(kind, n=24, d=5):
    """Classes that differ in the shape, in the height or in a small column of their features."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    x = rng.normal(size=(n, d)) * 0.3
    if kind == "shape":
        x[np.arange(n), y] += 2
    elif kind == "height":
        x += 2 * y[:, None]
    else:
        x[:, 0] *= 1000
        x[:, 1:] += y[:, None] * [1, -1, 1, -1]
    return x, y


def num_right(x, y, scaling, channels):
    """Examples that a model of all others, scaled as all are, classifies rightly."""
    x = SCALERS[scaling].fit_transform(x) if scaling else x
    right = 0
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        model = FlyNNClassifier(channels=channels, scaling=None, **SIZES)
        right += int(model.fit(x[others], y[others]).predict(x[i : i + 1])[0] == y[i])
    return right


@pytest.mark.parametrize("kind", ["shape", "height", "column"])
def test_the_pair_with_most_right_answers_is_taken(kind):
    x, y = table(kind)
    found = {pair: num_right(x, y, *pair) for pair in itertools.product(SCALINGS, CHANNELS)}
    assert len(set(found.values())) > 1
    best = max(found, key=lambda pair: found[pair])
    model = FlyNNClassifier(**SIZES).fit(x, y)
    assert (model.scaling_, model.channels_) == best
    given = FlyNNClassifier(channels=best[1], scaling=best[0], **SIZES).fit(x, y)
    assert (model.counts_ == given.counts_).all()
    assert (model.predict(x) == given.predict(x)).all()
    scaled = max(SCALINGS, key=lambda scaling: found[scaling, "signed"])
    assert FlyNNClassifier(channels="signed", **SIZES).fit(x, y).scaling_ == scaled


def test_weights_count_as_repeated_examples_and_small_ones_have_no_say():
    x, y = table("column")
    weights = np.arange(len(x)) % 3
    model = FlyNNClassifier(**SIZES).fit(x, y, sample_weight=weights)
    repeated = FlyNNClassifier(**SIZES).fit(x.repeat(weights, axis=0), y.repeat(weights))
    assert (model.scaling_, model.channels_) == (repeated.scaling_, repeated.channels_)
    assert (model.counts_ == repeated.counts_).all()
    light = FlyNNClassifier(**SIZES).fit(x, y, sample_weight=np.full(len(x), 0.5))
    assert (light.scaling_, light.channels_) == (SCALINGS[0], CHANNELS[0])


def test_of_equals_the_first_is_taken_and_the_choice_stays():
    x = np.random.default_rng(0).normal(size=(12, 4))
    model = FlyNNClassifier(**SIZES).fit(x, np.zeros(12))  # a single class is always right
    assert (model.scaling_, model.channels_) == (SCALINGS[0], CHANNELS[0])
    x, y = table("height")
    first = FlyNNClassifier(**SIZES).partial_fit(x, y, classes=[0, 1, 2, 3])
    chosen = first.scaling_, first.channels_, first.counts_
    first.partial_fit(-x, y[::-1]).unlearn(-x, y[::-1])
    assert (first.scaling_, first.channels_) == chosen[:2]
    assert (first.counts_ == chosen[2]).all()


def test_a_name_that_is_none_is_refused():
    x, y = table("shape")
    with pytest.raises(ValueError, match=r"scaling must be .* auto"):
        FlyNNClassifier(scaling="best").fit(x, y)
    with pytest.raises(ValueError, match=r"channels must be .* auto"):
        FlyNNClassifier(channels="best").fit(x, y)
