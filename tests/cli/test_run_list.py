"""The list of runs, and reports that follow them."""

import itertools

import pytest

from fedbolic.cli import commands
from fedbolic.cli.overview import overview


@pytest.fixture
def trained(fedbolic, config, runs):
    """Folder of all runs, with one that is finished after two rounds."""
    fedbolic("run", "--config", config, "--runs", runs)
    return runs


def test_a_finished_run_has_a_line_with_its_score(trained, fedbolic):
    code, out, err = fedbolic("runs", trained)
    assert (code, err) == (0, "")
    path, state, name, score, *_ = out.split()
    assert path == str(trained / "tiny" / "seed0")
    assert (state, name) == ("finished", "holdout/accuracy")
    assert 0 <= float(score) <= 1
    assert overview(["runs", str(trained)]) == out


def test_a_run_that_goes_on_has_its_round(trained, fedbolic):
    file = trained / "tiny" / "seed0" / "times.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    assert "round 1 of 2" in fedbolic("runs", trained)[1]


def test_a_damaged_run_does_not_hide_the_others(trained, fedbolic):
    (trained / "tiny" / "seed1").mkdir()
    (trained / "tiny" / "seed1" / "config.yaml").write_text("")
    (trained / "tiny" / "seed1" / "metrics.csv").write_text("nonsense\n")
    finished, damaged = fedbolic("runs", trained)[1].splitlines()
    assert "finished" in finished
    assert "seed1" in damaged


def test_no_runs_are_refused_in_one_line(fedbolic, tmp_path):
    code, out, err = fedbolic("runs", tmp_path)
    assert (code, out) == (2, "")
    assert "there is no run" in err


def test_a_watched_report_is_written_anew_when_a_run_has_gone_on(trained, fedbolic, monkeypatch):
    metrics = trained / "tiny" / "seed0" / "metrics.csv"
    lines = metrics.read_text().splitlines(keepends=True)
    looks = itertools.count()

    def sleep(seconds):
        look = next(looks)
        if look == 1:
            metrics.write_text("".join([*lines, lines[-1]]))
        if look == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(commands.time, "sleep", sleep)
    code, out, _ = fedbolic("report", trained, "--watch", "0.1")
    assert code == 130
    assert out.count("G-FL %:") == 2  # at once, and after the second look


def test_a_watch_needs_a_positive_time(trained, fedbolic):
    assert fedbolic("report", trained, "--watch", "-1")[0] == 2
