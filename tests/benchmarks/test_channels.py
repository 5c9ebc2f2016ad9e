"""The rule for the default channels: its criterion, and the ranks that it counts."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from benchmarks import channels, nearest_rows
from flynn import FlyNNClassifier


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    return nearest_rows.Task(rng.normal(size=(3, 6))[y] + 5 * rng.normal(size=(120, 6)), y)


@pytest.mark.parametrize("kind", channels.KINDS)
def test_a_setting_has_the_accuracies_of_the_estimator(data, kind):
    train, test = data.splits()[0]
    x = StandardScaler().fit(data.x[train]).transform(data.x)
    winners = channels._winners(x, kind, 0.3, seed=1)
    inside, outside = channels._accuracies(data, winners, train, test)
    fan_in = 4 if kind == "on-off" else 2
    model = FlyNNClassifier(256 * 6, fan_in, 32, channels=kind, scaling="standard", seed=1)
    model.fit(data.x[train], data.y[train])
    left = model.leave_one_out(data.x[train], data.y[train])
    assert inside == pytest.approx((left == data.y[train]).mean())
    assert outside == pytest.approx(model.score(data.x[test], data.y[test]))


def test_a_setting_is_chosen_by_training_folds_whatever_the_test_fold_says():
    assert channels._best([(0.5, 0.9), (0.6, 0.1), (0.6, 0.3)]) == 0.1


def test_the_verdict_is_the_least_mean_rank(capsys):
    names = [f"{kind}{end}" for kind in channels.KINDS for end in ("", " none", " standard")]
    high = dict.fromkeys(names, 0.5) | {"signed": 0.6}
    channels.verdict([high, high, dict.fromkeys(names, 0.5) | {"on-off": 0.9}])
    assert capsys.readouterr().out.endswith("the default is signed\n")
    channels.verdict([dict.fromkeys(names, 0.5)] * 2)
    assert capsys.readouterr().out.endswith("the default is plain\n")
