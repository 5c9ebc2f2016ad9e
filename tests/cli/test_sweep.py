"""The command sweep: its table, its figures, and rows that stop or are refused."""

import pytest
import torch

from fedbolic.core.figure import DiscFigure
from tests.federated.simple_method import Showing


def test_a_sweep_finds_its_base_beside_itself_and_prints_its_table(
    fedbolic, config, runs, monkeypatch, tmp_path
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    sweep = config.with_name("table.yaml")
    (tmp_path / "published.csv").write_text(
        "row,setting,column,value,source\nslow,Set,G-FL %,12.3,Table 9\n"
    )
    sweep.write_text(
        "base: tiny.yaml\npublished: [published.csv]\nseeds: [0, 1]\n"
        "rows: {slow: {method.lr: 0.01}, fast: {method.lr: 0.5}}\n"
    )
    code, out, _ = fedbolic("sweep", "--config", sweep, "--runs", runs, "--jobs=1")
    lines = [line.split("|")[1].strip() for line in out.splitlines() if line.startswith("| ")]
    assert code == 0
    assert lines == ["", "slow", "fast", "%", "slow", "fast"]  # the last three: over clients
    assert "12.3" in out
    assert "Published: Table 9." in out
    assert (runs / "table" / "report.md").exists()
    assert {path.name for path in (runs / "table" / "slow").iterdir()} == {
        "place",
        "seed0",
        "seed1",
    }


def test_a_sweep_ends_with_its_figures_drawn(fedbolic, config, runs, monkeypatch):
    pytest.importorskip("matplotlib")
    point = DiscFigure(torch.zeros(1, 2), torch.tensor([0]))
    monkeypatch.setattr(Showing, "figures", lambda self, server_state, data: {"origin": point})
    showing = "tests.federated.simple_method.Showing"
    config.write_text(config.read_text().replace("fedbolic.methods.FedAvg", showing))
    sweep = config.with_name("sweep.yaml")
    sweep.write_text("base: tiny.yaml\nseeds: [0, 1]\nrows: {ours: null, none: {method.rounds: 1}}")
    assert fedbolic("sweep", "--config", sweep, "--runs", runs, "--jobs=1")[0] == 0
    drawn = {str(file.relative_to(runs / "sweep")) for file in runs.rglob("origin.png")}
    assert drawn == {f"{r}/seed{k}/figures/origin.png" for r in ("ours", "none") for k in (0, 1)}


def test_one_stopped_row_does_not_stop_a_sweep(fedbolic, config, runs):
    sweep = config.with_name("sweep.yaml")
    sweep.write_text("base: tiny.yaml\nrows: {bad: {method.lr: 1e39}, good: null}")
    code, _, err = fedbolic("sweep", "--config", sweep, "--runs", runs, "--method.rounds=9")
    assert code == 2  # sweep does not have the options of run
    code, _, err = fedbolic("sweep", "--config", sweep, "--runs", runs)
    assert code == 1
    assert str(runs / "sweep" / "bad" / "seed0") in err.splitlines()[-1]
    assert torch.load(runs / "sweep" / "good" / "seed0" / "state.pt")["round"] == 2


def test_a_sweep_without_any_run_says_why_every_row_was_refused(fedbolic, config, runs):
    sweep = config.with_name("sweep.yaml")
    sweep.write_text("base: tiny.yaml\nrows: {a: {data.num_train: 1}, b: {data.num_train: 2}}")
    code, out, err = fedbolic("sweep", "--config", sweep, "--runs", runs)
    assert (code, out) == (2, "")
    first, second = (line for line in err.splitlines() if line.startswith("fedbolic: stopped: "))
    assert f"{runs / 'sweep' / 'a' / 'seed0'}: " in first
    assert f"{runs / 'sweep' / 'b' / 'seed0'}: " in second
