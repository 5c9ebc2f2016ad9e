"""Answers without torch: equal to those of the whole command line, and made without it."""

import subprocess
import sys

import pytest

from fedbolic.cli import commands
from fedbolic.cli.overview import FIRST_LINES, overview
from fedbolic.remote import loopback
from fedbolic.report import report
from tests.command_line import ROOT


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_the_help_is_that_of_the_whole_command_line(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert overview(["--help"]) == overview(["-h"]) == commands.command_line().format_help()


def test_first_lines_are_those_of_the_functions():
    functions = (commands.run, commands.sweep, commands.resume, report, commands.export)
    docs = {function.__name__: function.__doc__ for function in functions}
    docs |= {"flower": loopback.flower.__doc__, "names": commands.agree_names.__doc__}
    assert {name: FIRST_LINES[name] for name in docs} == {
        name: text.partition("\n")[0] for name, text in docs.items()
    }
    assert list(FIRST_LINES) == [
        *commands.command_line().format_usage().split("{")[1].split("}")[0].split(",")
    ]


@pytest.mark.parametrize("words", [["run"], ["--version", "run"], ["configs", "--help"], []])
def test_other_words_are_left_to_the_whole_command_line(words):
    assert overview(words) is None


@pytest.mark.parametrize("word", ["--version", "--help", "configs"])
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
