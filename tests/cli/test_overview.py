"""Answers without torch: equal to those of the whole command line, and made without it."""

import json
import subprocess
import sys

import pytest

from fedbolic.cli import commands, parser
from fedbolic.cli.overview import FIRST_LINES, LISTS, overview
from fedbolic.remote import loopback
from fedbolic.report import report
from fedbolic.run.experiment import resume
from tests.command_line import ROOT


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_the_help_is_that_of_the_whole_command_line(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    whole = parser.command_line().format_help()
    assert overview(["--help"]) == overview(["-h"]) == overview([]) == whole


def test_first_lines_are_those_of_the_functions():
    functions = (commands.run, commands.sweep, commands.resume, report, commands.export)
    docs = {function.__name__: function.__doc__ for function in functions}
    docs |= {"flower": loopback.flower.__doc__, "names": commands.agree_names.__doc__}
    assert {name: FIRST_LINES[name] for name in docs} == {
        name: text.partition("\n")[0] for name, text in docs.items()
    }
    assert list(FIRST_LINES) == [
        *parser.command_line().format_usage().split("{")[1].split("}")[0].split(",")
    ]


def test_lists_name_what_there_is():
    named = {name: overview([name]).split() for name in LISTS}
    assert {"HyperFed", "FlatLand", "FedHull", "FlyNN", "HierarchyEmbedding"} <= {*named["methods"]}
    assert {"ClassifierMethod", "Method"}.isdisjoint(named["methods"])  # which nobody can run
    assert {"Digits", "Planetoid", "Mammals", "Dirichlet", "Metis"} <= {*named["data"]}
    assert {"Linear", "HGCNConv", "LorentzAttention"} <= {*named["layers"]}


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["--version", "run"],
        ["configs", "--help"],
        ["resume", "--help"],
        ["resume", "x"],
    ],
)
def test_other_words_are_left_to_the_whole_command_line(words):
    assert overview(words) is None


@pytest.mark.parametrize("word", ["--version", "--help", *LISTS])
def test_answers_import_no_torch(word):
    code = (
        "import sys; from fedbolic.__main__ import main; code = main(sys.argv[1:])\n"
        "assert code == 0 and not {'torch', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, word], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == overview([word])


@pytest.mark.processes
def test_a_run_imports_what_it_needs_alone():
    code = (
        "import sys, fedbolic.cli.commands\n"
        "print(*{'lightning', 'scipy.optimize', 'scipy.stats', 'matplotlib', 'sklearn'}\n"
        "      & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


@pytest.fixture
def finished(fedbolic, config, runs):
    """Folder of a finished run."""
    fedbolic("run", "--config", config, "--runs", runs, "--method.rounds=1")
    return runs / "tiny" / "seed0"


@pytest.mark.processes
def test_a_finished_run_is_reported_without_torch_and_as_by_the_whole_command_line(
    finished, fedbolic
):
    pytest.importorskip("matplotlib")
    (finished / "complete.json").rename(finished / "kept.json")
    whole = fedbolic("resume", finished)  # builds the run, and finds that it is finished
    assert (finished / "complete.json").read_bytes() == (finished / "kept.json").read_bytes()
    plot = (finished / "accuracy.png").read_bytes()
    for _ in range(2):
        code = (
            "import sys; from fedbolic.__main__ import main; code = main(sys.argv[1:])\n"
            "assert code == 0 and 'torch' not in sys.modules"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, "resume", str(finished)],
            **{"cwd": ROOT, "capture_output": True, "text": True, "check": False},
        )
        assert (done.returncode, done.stdout, done.stderr) == whole
        assert (finished / "accuracy.png").read_bytes() == plot
        (finished / "accuracy.png").unlink()  # and drawn again


@pytest.mark.parametrize("name", ["metrics.csv", "config.yaml", "state.pt"])
def test_a_finished_run_with_a_damaged_file_is_refused_as_any_other(name, finished, fedbolic):
    assert overview(["resume", str(finished)])
    content = bytearray((finished / name).read_bytes())
    content[len(content) // 2] ^= 1
    (finished / name).write_bytes(content)
    assert overview(["resume", str(finished)]) is None
    code, out, err = fedbolic("resume", finished)
    assert (code, out) == (2, "")
    assert name in err


def test_a_finished_run_is_not_built_again(finished, monkeypatch):
    monkeypatch.setattr("fedbolic.run.experiment.build", None)
    assert resume(finished) is False


def test_a_run_marked_by_somebody_else_is_looked_at(finished, fedbolic):
    (finished / "complete.json").write_text(json.dumps(["anything"]))
    assert overview(["resume", str(finished)]) is None
    assert "is finished" in fedbolic("resume", finished)[1]
    assert overview(["resume", str(finished)])
