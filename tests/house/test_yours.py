"""The paths of the page about your own parts: their numbers of lines, and that they work."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbolic.federated.scores.metrics import EXTRA_METRICS
from fedbolic.run.configuration import build
from fedbolic.run.experiment import run
from fedbolic.run.loggers import LoggerSettings, check_loggers
from fedbolic.run.record import RunFolder
from tests.house.test_readme import ROOT, anchors, blocks, commands

PAGE = (ROOT / "fedbolic" / "YOURS.md").read_text()
LANGUAGES = {"Python": "python", "YAML": "yaml", "command": "bash"}
PATHS = re.findall(r"^\| ([^|]+) \| (\d+) \| \[(\w+)\]\(#([\w-]+)\) \|$", PAGE, re.M)
SHORT = ["--method.rounds=1", "--method.local.epochs=1"]


def example(language, anchor):
    """The first block in a language below the heading with an anchor."""
    (section,) = [s for s in re.split(r"^(?=## )", PAGE, flags=re.M) if anchor in anchors(s)]
    return blocks(section, LANGUAGES[language])[0][1]


def num_lines(code):
    """Number of lines without blank ones and comments."""
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") for line in code.splitlines()
    )


def test_every_kind_of_path_is_in_the_table():
    words = ["model out", "network in", "arrays in", "table", "metrics", "loggers", "contract"]
    for word in [*words, "notebook"]:
        assert any(word in path for path, *_ in PATHS), word


@pytest.mark.parametrize(("path", "lines", "language", "anchor"), PATHS, ids=[p for p, *_ in PATHS])
def test_a_path_has_the_number_of_lines_that_the_page_says(path, lines, language, anchor):
    assert num_lines(example(language, anchor)) == int(lines)


def test_lines_without_code_are_not_counted():
    assert num_lines("a\n\n# b\n  # c\n  d  # e\n") == 2


def saved(code):
    """A configuration file in the working directory."""
    Path("yours.yaml").write_text(code)
    return ["--config", "yours.yaml"]


def test_a_network_by_its_class_path_is_trained(fedbolic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    code = example("Python", "your-own-network")
    kind = code[code.index("class Small") : code.index("data = ")]
    Path("my_networks.py").write_text(f"from torch import nn\n\n\n{kind}")
    words = saved(example("YAML", "your-own-network"))
    words += ["--data=fedbolic.data.Partitioned", "--data.partition=fedbolic.data.IID"]
    assert fedbolic("run", *words, *SHORT)[0] == 0
    assert RunFolder(tmp_path / "runs" / "yours" / "seed0").rows()


def test_a_table_with_its_clients_is_learnt_from(fedbolic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0).random((60, 2))
    rows = [f"{a},{b},{'ill' if a > b else 'well'},h{i % 3}" for i, (a, b) in enumerate(draws)]
    Path("patients.csv").write_text("\n".join(["age,dose,outcome,hospital", *rows]))
    words = [*saved(example("YAML", "your-own-data")), "--method=fedbolic.methods.FedAvg"]
    words += ["--method.backbone=fedbolic.nn.network.backbone.MLP"]
    assert fedbolic("run", *words, *SHORT)[0] == 0
    clients = {row.client for row in RunFolder(tmp_path / "runs" / "yours" / "seed0").rows()}
    assert clients == {None, 0, 1, 2}


def test_the_loggers_of_the_page_take_their_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedbolic.run.loggers.find_spec", lambda package: package)  # wandb is there
    chosen = build(run, saved(example("YAML", "loggers")))["loggers"]
    assert chosen[0] == "csv"
    assert isinstance(chosen[1], LoggerSettings)
    check_loggers(chosen)


def test_every_metric_of_the_page_is_recorded_under_its_name(fedbolic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (words,) = commands(example("command", "metrics"))
    words += [*SHORT, f"--evaluation.metrics={list(EXTRA_METRICS)}", "--name=yours"]
    assert fedbolic(*words)[0] == 0
    rows = RunFolder(tmp_path / "runs" / "yours" / "seed0").rows()
    recorded = {row.name for row in rows if row.client is None}
    table = PAGE[PAGE.index("| name | value of the federation |") : PAGE.index("The calibration")]
    named = set(re.findall(r"`(test/\w+)`", table))
    assert len(named) > 9
    assert named <= recorded


def test_the_command_exports_the_run_of_the_page(fedbolic, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    exec(compile(example("Python", "a-trained-model"), "block", "exec"), {"__name__": "block"})
    (words,) = commands(example("command", "a-trained-model"))
    assert fedbolic(*words)[0] == 0
    assert Path("model.onnx").stat().st_size > 0
    assert Path("model.json").is_file()
