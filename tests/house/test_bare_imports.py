"""Imports on a machine with a GPU and torch, but without the packages of the command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABSENT = (
    *("jsonargparse", "beartype", "geoopt", "pooch", "cryptography", "flint"),
    "dp_accounting",
)
BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Absent())
"""
MODULES = (
    *("fedbolic", "fedbolic.nn", "fedbolic.manifolds", "fedbolic.federated", "fedbolic.methods"),
    *("fedbolic.data", "fedbolic.hierarchies", "hyperfed", "flatland", "flynn", "benchmarks.gpu"),
)


def imported(module):
    return subprocess.run(
        [sys.executable, "-c", f"{BLOCK}\nimport {module}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_all_that_a_gpu_needs_is_imported():
    done = imported(", ".join(MODULES))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("module", ABSENT)
def test_the_block_holds(module):
    assert "ModuleNotFoundError" in imported(module).stderr
