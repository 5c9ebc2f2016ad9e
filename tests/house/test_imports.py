"""Modules loaded by importing this package, in fresh processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("lightning", "flwr", "torch_geometric", "geoopt", "jsonargparse")
DATA = ("pooch", "sklearn", "opendp", "dp_accounting")
SECRETS = ("cryptography", "flint")


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("fedbolic, fedbolic.manifolds", HEAVY),
        ("fedbolic.nn, fedbolic.data, fedbolic.federated", HEAVY + DATA + SECRETS),
    ],
)
def test_an_import_is_silent_and_light(modules, absent):
    code = f"import {modules}, sys; print(sorted({set(absent)} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_the_check_itself_sees_a_loaded_package():
    code = "import jsonargparse, sys; print(sorted({'jsonargparse'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout == "['jsonargparse']\n"
