"""Every reader on damaged and on crafted files: bounded memory and time, and errors in one line."""

import itertools
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readers.crafted import CRAFTED
from tests.readers.formats import FORMATS
from tests.readers.mutations import mutated

ROOM = 200 * 10**6
"""Bytes that a reader may take besides five times what it returns."""

MOST = 2**30
"""Bound on the memory of a reader, far above what any of these files holds."""


@pytest.fixture(scope="module")
def outcome():
    """Outcome of a reader on a file, with its message, peak and the size of its result."""
    command = [sys.executable, "-m", "tests.readers.sandbox"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:

        def ask(reader, path):
            process.stdin.write(json.dumps([reader, str(path), MOST]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.kill()


def fault(found):
    """Fault of an outcome; ``None`` if there is none."""
    kind, message, peak, returned = found
    if kind not in ("read", "refused"):
        return f"{kind}: {message}"
    if peak > 5 * returned + ROOM:
        return f"{kind} with {peak / 1e6:.0f} MB for {returned / 1e6:.1f} MB: {message}"
    return None


def test_whole_files_are_read(outcome, tmp_path):
    """So the tests below refuse the damage itself."""
    for number, (name, form) in enumerate(FORMATS.items()):
        (folder := tmp_path / str(number)).mkdir()
        assert outcome(name, form.write(folder))[:2] == ["read", ""], name


@pytest.mark.processes
def test_crafted_files_cost_little_and_are_refused_in_one_line(outcome, tmp_path):
    faults, read = {}, []
    for number, (name, reader, write) in enumerate(CRAFTED):
        (folder := tmp_path / str(number)).mkdir()
        found = outcome(reader, write(folder))
        if wrong := fault(found):
            faults[f"{reader}: {name}"] = wrong
        elif found[0] == "read":
            read.append(f"{reader}: {name}")
        shutil.rmtree(folder)
    assert faults == {}
    assert read == HARMLESS


HARMLESS = [
    "table.csv: a long text",
    "table.csv: long numbers",
    "table.csv: wide characters",
    "arrays with clients: a long name of a client",
    "sparse graph: a sparse matrix of 100 MB",
    "hierarchy.csv: a header",
    "place: a pipe for place",
]
"""Crafted files that are read, at the cost of what they hold; the order of rows can be unknown."""


@pytest.mark.parametrize("number", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.processes
def test_damaged_files_cost_little_and_are_refused_in_one_line(number, outcome, tmp_path):
    """Each format in turn, with the damage of its number."""
    whole = {}
    for place, (name, form) in enumerate(FORMATS.items()):
        (folder := tmp_path / str(place)).mkdir()
        whole[name] = folder, form.write(folder)
    faults = {}
    for seed, name in zip(range(number), itertools.cycle(FORMATS)):
        folder, path = whole[name]
        copy = shutil.copytree(folder, tmp_path / "copy")
        damaged = copy / path.relative_to(folder)
        damaged.write_bytes(mutated(path.read_bytes(), random.Random(seed)))
        if wrong := fault(outcome(name, damaged)):
            faults[f"{name}, {seed}"] = wrong
        shutil.rmtree(copy)
    assert faults == {}
