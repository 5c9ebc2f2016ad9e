import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedbolic.__main__ import main

ROOT = Path(__file__).parents[2]

TINY = """
method:
  class_path: fedbolic.methods.FedAvg
  init_args:
    rounds: 2
    backbone: {class_path: fedbolic.nn.network.backbone.MLP, init_args: {widths: [4]}}
    local: {epochs: 1, batch_size: 16}
data:
  class_path: fedbolic.data.Partitioned
  init_args:
    num_train: 60
    num_test: 20
    partition: {class_path: fedbolic.data.IID, init_args: {num_clients: 3}}
"""


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch, tmp_path):
    """Hide the data and cache folders of the user who runs the tests."""
    monkeypatch.delenv("FEDBOLIC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def config(tmp_path) -> Path:
    """A configuration that trains in an instant."""
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    return file


@pytest.fixture
def runs(tmp_path) -> Path:
    """Folder of runs, not yet created."""
    return tmp_path / "runs"


@pytest.fixture
def fedbolic(capsys):
    """Call the command line in this process: exit code, standard output and standard error."""

    def call(*words):
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as error:  # --help and --print_config
            code = error.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def process():
    """Start the command line with this code in a separate process, as a user would."""

    def start(*words, cwd=ROOT, path=(), first=False):
        folders = (*path, ROOT) if first else (ROOT, *path)
        return subprocess.Popen(
            [sys.executable, "-m", "fedbolic", *map(str, words)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_interrupts,
        )

    return start


def hear_interrupts():
    """Restore Ctrl-C: background jobs of a shell, possibly pytest itself, ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def refused(answer, *, names):
    """Assert exit code 2 and a single line on standard error that contains all of ``names``."""
    code, out, err = answer
    assert code == 2, answer
    assert out == ""
    assert err.startswith("fedbolic: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for name in names:
        assert name in err
    assert "Traceback" not in err
    return True
