"""Times by stage come from real runs, intervals are Student's, and plots show recorded values."""

import csv
import statistics
import types
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

pytest.importorskip("flint")
pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from benchmarks import table
from benchmarks.hulls import figure5
from benchmarks.hulls import times as fedhull
from fedbolic.data import HalfPlanes
from fedbolic.run.sweeps import sweep
from fedhull import FedHull

QUICK = Path(__file__).parents[3] / "configs" / "fedhull" / "quick.yaml"


def test_a_watched_function_is_timed_and_put_back_even_after_an_error():
    def busy(n):
        return sum(range(n)) if n else 1 / n

    module = types.SimpleNamespace(busy=busy)
    with fedhull.watched({"stage": (module, "busy")}) as seconds:
        assert module.busy(300_000) == 44_999_850_000
        once = seconds["stage"]
        module.busy(300_000)
    assert 0 < once < seconds["stage"]
    assert module.busy is busy
    with (
        pytest.raises(ZeroDivisionError),
        fedhull.watched({"stage": (module, "busy")}),
    ):
        module.busy(0)
    assert module.busy is busy


def test_a_trial_has_all_stages_within_the_run():
    found = fedhull.trial(FedHull(), HalfPlanes(num_points=400, least=20).load(fedhull.Rng(0)))
    stages = list(found)[: list(found).index("together")]
    assert set(fedhull.SPEC["Olsson"]) <= set(found)
    assert all(found[stage] > 0 for stage in stages)
    assert found["together"] == pytest.approx(sum(found[stage] for stage in stages))
    assert found["together"] < found["a run, with scores"]
    assert found["bytes up, packed"] < found["bytes up"]


def test_an_interval_is_that_of_scipy():
    values = [80.0, 83.0, 79.5, 90.0]
    low, high = student.interval(0.95, 3, np.mean(values), np.std(values, ddof=1) / 2)
    assert table.interval(values) == f"{np.mean(values):.2f} ± {(high - low) / 2:.2f}"


def test_a_panel_shows_the_mean_of_the_accuracies_recorded(tmp_path):
    for value in (0.4, 0.2):
        rows = {"FLP": {"data.offset": value, "data.num_points": 400, "data.least": 20}}
        sweep(QUICK, rows, seeds=(0, 1), runs=tmp_path, name=f"mu {value}")
    axes = Figure().subplots()
    printed = figure5.panel(axes, tmp_path, {"other": "C0"})
    (shown,) = axes.containers
    line, _, (bars,) = shown.lines
    expected = [accuracies(tmp_path / f"mu {value}") for value in (0.2, 0.4)]
    assert np.array(line.get_xdata()).tolist() == [0.2, 0.4]
    assert line.get_ydata() == pytest.approx([statistics.fmean(of) for of in expected])
    for (low, high), of in zip(bars.get_segments(), expected, strict=True):
        half = 12.7062 * np.std(of, ddof=1) / np.sqrt(2)  # Student's table, one degree of freedom
        assert (low[1], high[1]) == pytest.approx((np.mean(of) - half, np.mean(of) + half))
    cells = [table.interval(of) for of in expected]
    assert printed.splitlines()[::2] == ["| mu | 0.2 | 0.4 |", f"| FLP | {' | '.join(cells)} |"]
    assert (axes.get_xlabel(), shown.get_label(), line.get_color()) == ("mu", "FLP", "C1")


def accuracies(folder):
    """Accuracies in percent, read from the files of runs."""
    found = []
    for file in folder.rglob("metrics.csv"):
        with file.open(newline="") as text:
            of = [row["value"] for row in csv.DictReader(text) if row["name"] == "holdout/accuracy"]
        found += [100 * float(value) for value in of]
    return found
