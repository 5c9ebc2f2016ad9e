"""One torch thread, reproducible property tests, and markers that are skipped by default."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
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


def pytest_addoption(parser):
    parser.addoption("--wheel", type=Path, help="folder of a built wheel to test")
    parser.addoption("--data-root", type=Path, default=os.environ.get("FEDBOLIC_DATA"))
    parser.addoption("--one-case", action="store_true", help="run one case of every test function")
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


def _data_root(config) -> Path | None:
    """The folder of real data, or ``None`` if none was given or it does not exist."""
    root = config.getoption("--data-root")
    return Path(root) if root and Path(root).is_dir() else None


def pytest_collection_modifyitems(config, items):
    root = _data_root(config)
    if config.getoption("--one-case"):
        items[:] = {item.nodeid.partition("[")[0]: item for item in reversed(items)}.values()
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


@pytest.fixture
def data_root(request) -> Path:
    """The folder of real data; tests that use it carry the marker ``data``."""
    return Path(request.config.getoption("--data-root"))
