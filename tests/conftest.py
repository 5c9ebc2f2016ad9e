"""One torch thread, a calm hypothesis, and what is left out unless asked for."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fedbolic", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fedbolic")

OPTIONS = {"slow": "--slow", "network": "--network", "flower": "--flower"}


def pytest_addoption(parser):
    parser.addoption("--data-root", type=Path, default=os.environ.get("FEDBOLIC_DATA"))
    for marker, option in OPTIONS.items():
        parser.addoption(option, action="store_true", help=f"run the tests marked {marker}")


def pytest_collection_modifyitems(config, items):
    root = config.getoption("--data-root")
    for item in items:
        for marker, option in OPTIONS.items():
            if item.get_closest_marker(marker) and not config.getoption(option):
                item.add_marker(pytest.mark.skip(reason=f"needs {option}"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("data") and not (root and Path(root).is_dir()):
            item.add_marker(pytest.mark.skip(reason="needs --data-root or FEDBOLIC_DATA"))


@pytest.fixture
def data_root(request) -> Path:
    """The folder of real data: tests that ask for it carry the marker ``data``."""
    return Path(request.config.getoption("--data-root"))
