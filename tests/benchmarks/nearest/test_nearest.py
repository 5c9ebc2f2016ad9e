"""Rows of the FlyNN comparison equal scikit-learn's results; bookkeeping of the tables."""

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.nearest import __main__ as nearest
from benchmarks.nearest import curves
from benchmarks.nearest import rows as nearest_rows
from flynn import FlyNNClassifier

PUBLISHED = Path(nearest.__file__).parents[1] / "published"


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    return nearest_rows.Task(rng.normal(size=(3, 6))[y] + rng.normal(size=(120, 6)), y)


def test_the_best_k_and_one_neighbour_are_those_of_sklearn(data):
    accuracy = [
        cross_val_score(KNeighborsClassifier(k), data.x, data.y, cv=data.splits()).mean()
        for k in range(1, 65)
    ]
    assert nearest_rows.neighbours(data) == pytest.approx((max(accuracy), accuracy[0]))


def test_settings_fill_the_ranges_of_the_paper():
    corners = [nearest_rows.setting(np.full(4, corner), 50, 2048) for corner in (0.0, 1.0)]
    assert corners == [(100, 2, 8, 0.0), (2048 * 50, 25, 256, 0.8)]
    # with twice as many values, rows become longer but hashes do not
    assert nearest_rows.setting(np.ones(4), 50, 2048, "on-off") == (2048 * 50, 50, 256, 0.8)
    # at most half of the bits of a hash are ones
    assert nearest_rows.setting(np.array([0.0, 0.0, 1.0, 0.5]), 50, 2048)[2] == 50


def test_a_curve_is_that_of_the_classifier(data, monkeypatch):
    monkeypatch.setattr(curves, "TURNED", {**curves.TURNED, "rho": [4, 7, 40]})
    monkeypatch.setattr(curves, "FIXED", {**{name: [0.5] for name in curves.FIXED}, "m / d": [9]})
    (curve,) = curves.curves(data, "rho", lifts=2).values()
    assert list(curve) == [4, 7]  # 40 of 54 bits are too many
    for active, found in curve.items():
        plain = FlyNNClassifier(54, 3, active, decay=0.5, channels="plain", scaling=None)
        models = [clone(plain).set_params(seed=seed) for seed in range(2)]
        expected = [cross_val_score(m, data.x, data.y, cv=data.splits()).mean() for m in models]
        assert found == pytest.approx(expected)


def test_channels_are_compared_with_one_another_too(capsys):
    rows = {"kNN": 0.5, "1NN": 0.4, "FlyNN": 0.6, "on-off": 0.7}
    others = {f"{name} others": 0.3 for name in ("FlyNN", "on-off")}
    nearest.comparison([{**rows, **others}] * 2, [])
    cells = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    found = {tuple(of[:2]): of[3] for of in cells if len(of) > 3}
    assert found["on-off", "FlyNN"] == "2/0/0"
    assert found["on-off", "kNN"] == "2/0/0"
    assert found["on-off others", "kNN"] == "0/0/2"


def test_features_are_rows_of_length_one_or_z_scores():
    unit, scores = (nearest_rows.task("digits", of).x for of in ("unit rows", "z-scores"))
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1)
    spread = scores.std(axis=0)
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(spread[spread > 0], 1)


def test_a_data_set_that_is_done_is_not_computed_again(tmp_path, capsys, monkeypatch):
    sets = {"sets": ["real 40 x 8", "digits"], "results": tmp_path / "found.csv"}
    figures = {"kNN": 0.5, "1NN": 0.4, "SBFC": 0.1, "FlyNN others": 0.5}
    seen = []

    def row(data, **settings):
        seen.append((len(data.x), settings["lifts"]))
        # the second draw gains less
        return {**figures, "FlyNN": 0.65 - len(seen) / 20, "FlyNN spread": 0.01, "seconds": 2.0}

    monkeypatch.setattr(nearest, "row", row)
    nearest.compare(**sets, draws=2, lifts=3)
    first = capsys.readouterr().out
    nearest.compare(**sets, draws=2)
    assert capsys.readouterr().out == first
    assert seen == [(40, 3), (40, 3), (1797, 3)]
    assert "| FlyNN | -0.150 ± 0.050 |" in first
    assert "| FlyNN | kNN | 0.00 | 0/1/0 | 0.00 |" in first


def published(name):
    with (PUBLISHED / name).open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_published_figures_are_of_sets_that_can_be_made_and_of_71_that_cannot():
    table_1 = published("flynn_table1.csv")
    assert {line["row"] for line in table_1} == {"1NN", "SBFC", "FlyNN"}
    assert all(nearest_rows.SYNTHETIC.fullmatch(line["setting"]) for line in table_1)
    records = [line["value"] for line in published("flynn_table2.csv") if line["column"] == "W/T/L"]
    assert {sum(map(int, record.split("/"))) for record in records} == {71}


def test_binary_sets_are_hashes_and_other_names_are_refused():
    x = nearest_rows.synthetic("binary 30 x 100", 0).x
    assert set(np.unique(x)) == {0.0, 1.0}
    assert (x.sum(axis=1) == 20).all()
    with pytest.raises(ValueError, match=r'named such as "real 1000 x 50", got .spiral'):
        nearest_rows.synthetic("spiral 10 x 10", 0)
