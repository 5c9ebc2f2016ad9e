"""The scripts of the page on ten tasks run, are short, and are in its table."""

import csv
import importlib.util
import io

import pytest
import torch

from fedbolic.cli.parser import command_line
from fedbolic.run.configuration import parse
from tests.house.test_readme import ROOT, commands

file = ROOT / "docs" / "run_tasks.py"
spec = importlib.util.spec_from_file_location("run_tasks", file)
tasks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tasks)

MOST_LINES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the scripts read."""
    made = tmp_path_factory.mktemp("tasks")
    tasks.write_files(made)
    return made


def values(name, folder, monkeypatch):
    """Names that a script defines, after it ran."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDBOLIC_DATA", raising=False)
    torch.manual_seed(0)
    named = {"__name__": name}
    exec(compile((ROOT / f"docs/tasks/{name}.py").read_text(), name, "exec"), named)
    return named


def test_each_of_ten_tasks_is_short_and_on_the_page():
    page = (ROOT / "docs" / "start" / "tasks.md").read_text()
    table = {row["script"]: row for row in csv.DictReader(io.StringIO(tasks.TABLE.read_text()))}
    assert len(tasks.SCRIPTS) == 10
    assert table.keys() == {script.name for script in tasks.SCRIPTS}
    for script in tasks.SCRIPTS:
        assert f"{{literalinclude}} ../tasks/{script.name}\n" in page
        assert int(table[script.name]["lines"]) == tasks.num_lines(script) <= MOST_LINES
        assert table[script.name]["task"] == tasks.summary(script)


def test_a_head_in_plain_pytorch_learns(folder, monkeypatch):
    named = values("head", folder, monkeypatch)
    right = named["network"](named["x"].float() / 16).argmax(dim=1) == named["y"]
    assert right.float().mean() > 0.3  # a tenth by chance


def test_a_layer_in_a_model_of_pyg_learns(folder, monkeypatch):
    named = values("graph_layer", folder, monkeypatch)
    graph = named["graph"]
    loss = torch.nn.functional.cross_entropy(named["model"](graph.x, graph.edge_index), graph.y)
    assert loss < 1.2  # log 4 by chance


@pytest.mark.filterwarnings("ignore")  # Lightning's advice
def test_a_head_in_lightning_is_trained(folder, monkeypatch):
    named = values("lightning_head", folder, monkeypatch)
    assert list((folder / "lightning_logs").rglob("*.ckpt"))
    assert issubclass(named["Network"], torch.nn.Module)


@pytest.mark.parametrize(
    ("name", "run", "shown"),
    [
        ("own_method", "fedprox", "| fedprox "),
        ("own_images", "pets", "| pets "),
        ("own_table", "patients", "| patients "),
        ("own_graphs", "hospitals", "| hospitals "),
        ("own_taxonomy", "shops", "'laptops'"),
        ("model_out", "digits", "tensor"),
    ],
)
def test_a_run_in_python_leaves_its_folder(name, run, shown, folder, monkeypatch, capsys):
    values(name, folder, monkeypatch)
    assert (folder / "runs" / run / "seed0" / "complete.json").is_file()
    assert shown in capsys.readouterr().out


def test_the_commands_of_five_clients_parse():
    for words in commands((ROOT / "docs/tasks/five_clients.sh").read_text()):
        parse(command_line(), words)


def test_lines_without_code_are_not_counted(tmp_path):
    (tmp_path / "a.py").write_text('"""A."""\n\nx = 1  # b\n# c\n')
    assert tasks.num_lines(tmp_path / "a.py") == 1
    assert tasks.summary(tmp_path / "a.py") == "A."
