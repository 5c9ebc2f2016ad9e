"""One torch thread, reproducible property tests, and markers that are skipped by default."""

import collections
import gc
import itertools
import multiprocessing
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.command_line import ROOT, TINY, hear_interrupts

torch.set_num_threads(1)
gc.set_threshold(20_000, 20, 50)  # a full collection goes through millions of objects
# Fix every setting that hypothesis would otherwise derive from the machine or its speed.
PROFILE = {"deadline": None, "database": None, "suppress_health_check": (HealthCheck.too_slow,)}
settings.register_profile("fedbolic", **PROFILE, derandomize=True, max_examples=10)
settings.register_profile("fuzz", **PROFILE, derandomize=False, max_examples=300, print_blob=True)
settings.load_profile("fedbolic")  # --hypothesis-profile is read later and takes precedence

collect_ignore = ["browser.py"]  # a program of its own, which needs PyQt6

OPTIONS = {
    "slow": "--slow",
    "network": "--network",
    "flower": "--flower",
    "browser": "--browser",
    "kernels": "--kernels",
}


REAL = ("real data", True)
ONE_CASE = "run one case of every test function that is not marked processes"
CACHES = itertools.count()


def pytest_addoption(parser):
    parser.addoption("--wheel", type=Path, help="folder of a built wheel to test")
    parser.addoption("--data-root", type=Path, default=os.environ.get("FEDBOLIC_DATA"))
    parser.addoption("--one-case", action="store_true", help=ONE_CASE)
    for marker, option in OPTIONS.items():
        parser.addoption(option, action="store_true", help=f"run the tests marked {marker}")


def pytest_report_header(config):
    root = _data_root(config)
    return (
        f"real data: {root or 'none, tests marked data are skipped (--data-root or FEDBOLIC_DATA)'}"
    )


def pytest_terminal_summary(terminalreporter):
    ran = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    count = sum(r.when == "call" and REAL in r.user_properties for r in ran)
    terminalreporter.write_line(f"{count} of these tests ran on real data")
    seconds = collections.Counter()
    for report in itertools.chain(ran, terminalreporter.getreports("")):
        seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.write_line(f"{sum(seconds.values()):.0f} s in {len(seconds)} files, most in")
    for file, most in seconds.most_common(10):
        terminalreporter.write_line(f"{most:6.0f} s  {file}")


def _data_root(config) -> Path | None:
    """The folder of real data, or ``None`` if none was given or it does not exist."""
    root = config.getoption("--data-root")
    return Path(root) if root and Path(root).is_dir() else None


def pytest_collection_modifyitems(config, items):
    root = _data_root(config)
    if config.getoption("--one-case"):
        alone = [item for item in items if not item.get_closest_marker("processes")]
        items[:] = {item.nodeid.partition("[")[0]: item for item in reversed(alone)}.values()
        items.reverse()
    for item in items:
        for marker, option in OPTIONS.items():
            if item.get_closest_marker(marker) and not config.getoption(option):
                item.add_marker(pytest.mark.skip(reason=f"needs {option}"))
        if item.get_closest_marker("wheel") and not config.getoption("--wheel"):
            item.add_marker(pytest.mark.skip(reason="needs --wheel FOLDER"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("kernels") and not find_spec("triton"):
            item.add_marker(pytest.mark.skip(reason="needs triton: pip install triton"))
        if item.get_closest_marker("data"):
            item.user_properties.append(REAL)
        if item.get_closest_marker("data") and not root:
            item.add_marker(pytest.mark.skip(reason="needs --data-root or FEDBOLIC_DATA"))


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # modules and tests stay


@pytest.fixture
def data_root(request) -> Path:
    """The folder of real data; tests that use it carry the marker ``data``."""
    return Path(request.config.getoption("--data-root"))


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch, tmp_path_factory):
    """Hide the data and cache folders of the user who runs the tests."""
    monkeypatch.delenv("FEDBOLIC_DATA", raising=False)
    cache = tmp_path_factory.getbasetemp() / "caches" / str(next(CACHES))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(autouse=True, scope="session")
def _processes_fork_from_a_server():
    """Fork workers and jobs from one process that has imported what they need, in milliseconds.

    Commands that a test runs as a user would start their processes anew.
    """
    from fedbolic.federated.processes import worker
    from fedbolic.run import jobs

    multiprocessing.set_forkserver_preload(["fedbolic.run", "fedhull", "flatland", "flynn"])
    worker.SPAWN = jobs.SPAWN = multiprocessing.get_context("forkserver")


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

    from fedbolic.__main__ import main  # once the types of the package are checked or not

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
