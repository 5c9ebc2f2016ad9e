"""Imports point downwards only: the rooms of the code base, read from every file unexecuted."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks.house import long_functions

ROOT = Path(__file__).parents[2]

ROOMS = (
    ("fedbolic", "fedbolic.core", "fedbolic.kernels"),
    ("fedbolic.formulas", "fedbolic.data.contract", "fedbolic.data.files"),
    ("fedbolic.manifolds", "fedbolic.data.graphs", "fedbolic.data.hierarchies"),
    (
        "fedbolic.data.images",
        "fedbolic.data.knowledge",
        "fedbolic.data.tables",
        "fedbolic.search",
        "fedbolic.hierarchies.layouts",
    ),
    ("fedbolic.data", "fedbolic.optim", "fedbolic.nn.functional", "fedbolic.nn.loss"),
    ("fedbolic.nn.layers",),
    ("fedbolic.nn.graph", "fedbolic.nn.network", "fedbolic.nn.transformer"),
    ("fedbolic.nn",),
    ("fedbolic.federated.accounting", "fedbolic.federated.aggregators"),
    ("fedbolic.federated.scores",),
    ("fedbolic.federated.contract",),
    ("fedbolic.federated.batched", "fedbolic.federated.processes", "fedbolic.federated.noise"),
    ("fedbolic.federated.rounds", "fedbolic.federated.engines"),
    ("fedbolic.federated.privacy",),
    ("fedbolic.federated.secure", "fedbolic.federated.attacks"),
    ("fedbolic.federated",),
    ("fedbolic.methods.personal",),
    ("fedbolic.methods", "fedbolic.hierarchies", "fedbolic.knowledge", "hyperfed", "flynn"),
    ("fedhull.geometry", "flatland.graphs"),
    ("fedhull", "flatland.rivals"),
    ("flatland",),
    ("fedbolic.run",),
    ("fedbolic.report", "fedbolic.remote"),
    ("fedbolic.testing",),
    ("fedbolic.cli", "benchmarks"),
    ("fedbolic.__main__",),
    ("tests",),
)
"""Folders from the lowest to the highest; those of one line do not import one another either.

A package that exports names, such as ``fedbolic.nn``, stands above the folders that it names.
"""

CROWDED = 20
"""Most modules of a folder; only ``fedbolic/kernels`` may have more, a kernel each."""

INSTALLED = ("fedbolic", "flatland", "hyperfed", "fedhull", "flynn")
FENCED = (
    *("geoopt", "torch_geometric", "lightning", "jsonargparse", "flwr", "opendp", "flint"),
    *("cryptography", "pooch", "matplotlib", "pymetis", "numba", "dp_accounting"),
)


def room_of(module):
    """The folder of ``ROOMS`` that a module lies in; ``None`` if it lies in no room."""
    named = [room for rooms in ROOMS for room in rooms]
    top, _, below = module.partition(".")
    if top in ("benchmarks", "tests") or module in named:
        return module if module in named else top
    folder = module.rpartition(".")[0]
    return folder if folder in named and folder != "fedbolic" and below else None


def floor(room):
    return next(i for i, rooms in enumerate(ROOMS, 1) if room in rooms)


def system(room):
    """The published system that a room belongs to; systems never import one another."""
    tops = ("fedbolic.methods", "fedbolic.hierarchies", "fedbolic.knowledge", *INSTALLED[1:])
    return next((top for top in tops if f"{room}.".startswith(f"{top}.")), None)


def strangers(one, other):
    """True if two rooms belong to different systems."""
    return len({system(one), system(other)} - {None}) > 1


def modules(root):
    """Every module of the project by its dotted name, with its file."""
    found = {}
    for top in (*INSTALLED, "benchmarks", "tests"):
        for file in sorted((root / top).rglob("*.py")):
            names = file.relative_to(root).with_suffix("").parts
            found[".".join(names[:-1] if names[-1] == "__init__" else names)] = file
    return found


def imports(file, known):
    """Dotted names of all imports of a file, also in functions; submodules by their full name."""
    found = set()
    for node in _import_statements(file, file.stat().st_mtime_ns):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            base = "." * node.level + (node.module or "")
            full = {alias.name: f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in known else base for name in full.values()}
    return found


@cache
def _import_statements(file, changed):
    """Import statements of a file; ``changed`` is when, so that a file is parsed once."""
    tree = ast.parse(file.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def faults(root):
    """Every import that the rooms forbid, as text."""
    known = modules(root)
    for module, file in known.items():
        own = room_of(module)
        if own is None:
            yield f"{module} has no room"
            continue
        for target in sorted(imports(file, known)):
            room = room_of(target)
            if target.startswith("."):
                yield f"{module} imports {target}, which is relative"
            elif target.partition(".")[0] not in (*INSTALLED, "benchmarks", "tests"):
                continue
            elif room is None:
                yield f"{module} imports {target}, which has no room"
            elif room == own:
                continue
            elif floor(room) >= floor(own) or strangers(own, room):
                yield f"{module} imports {target}, which is not below it"


def circle(root):
    """Sorted names of the modules whose imports lead to a cycle; empty if there is no cycle."""
    known = modules(root)
    graph = {name: imports(file, known) & set(known) for name, file in known.items()}
    free: set[str] = set()
    while ready := [name for name in graph if name not in free and graph[name] <= free]:
        free.update(ready)
    return sorted(set(graph) - free)


def users(root, package):
    """Installed modules that import a given third-party package."""
    known = modules(root)
    names = {package, f"pytorch_{package}"}
    return [
        module
        for module, file in known.items()
        if module.partition(".")[0] in INSTALLED
        and any(target.partition(".")[0] in names for target in imports(file, known))
    ]


def test_imports_go_down_only():
    assert list(faults(ROOT)) == []


def test_no_modules_import_each_other_in_a_circle():
    assert circle(ROOT) == []


@pytest.mark.parametrize("package", FENCED)
def test_a_foreign_package_stays_behind_three_files(package):
    assert len(users(ROOT, package)) <= 3, users(ROOT, package)


def test_only_the_kernels_import_triton():
    found = [m for m, file in modules(ROOT).items() if _imports(file, "triton")]
    assert found
    assert [m for m in found if not m.startswith(("fedbolic.kernels.", "benchmarks."))] == []


def _imports(file, package):
    return any(name.partition(".")[0] == package for name in imports(file, ()))


def test_the_files_are_found():
    known = modules(ROOT)
    assert {"fedbolic", "fedbolic.__main__", "fedbolic.methods.fedavg"} <= set(known)
    assert "fedbolic.core.tree" in imports(known["fedbolic.federated.trainer"], known)
    assert users(ROOT, "lightning")
    assert users(ROOT, "jsonargparse")
    assert {room_of(module) for module in known} == {room for rooms in ROOMS for room in rooms}


def test_no_folder_is_crowded():
    held = defaultdict(set)
    for module in modules(ROOT):
        room = room_of(module)
        held[room].add(module)
    kept = {"fedbolic.kernels", "benchmarks", "tests"}
    assert {room for room, files in held.items() if len(files) > CROWDED} - kept == set()


def test_no_function_is_long():
    assert long_functions() == []


def plant(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("fedbolic/core/rng.py", "import fedbolic.nn.loss", "core.rng imports fedbolic.nn.loss"),
        ("fedbolic/core/rng.py", "from fedbolic import manifolds", "imports fedbolic.manifolds,"),
        ("fedbolic/data/files/a.py", "import fedbolic.data", "files.a imports fedbolic.data,"),
        (
            "fedbolic/nn/loss/a.py",
            "def f():\n    if 1:\n        from fedbolic.federated import FedAvg",
            "fedbolic.nn.loss.a imports fedbolic.federated,",
        ),
        (
            "fedbolic/federated/rounds/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import flatland.method",
            "fedbolic.federated.rounds.a imports flatland.method",
        ),
        ("hyperfed/method.py", "from flatland import x", "hyperfed.method imports flatland,"),
        ("flatland/method.py", "import hyperfed.loss", "flatland.method imports hyperfed.loss"),
        (
            "flynn/method.py",
            "import fedbolic.methods.moon",
            "flynn.method imports fedbolic.m",
        ),
        ("fedbolic/methods/a.py", "import fedbolic.run.sweeps", "a imports fedbolic.run.sweeps"),
        ("fedbolic/run/b.py", "import fedbolic.__main__", "fedbolic.run.b imports fedbolic.__main"),
        ("fedbolic/data/a.py", "from . import b", "which is relative"),
        ("fedbolic/utils.py", "", "fedbolic.utils has no room"),
        ("fedbolic/data/utils/a.py", "", "fedbolic.data.utils.a has no room"),
        ("fedhull/a.py", "import fedbolic.utils", "imports fedbolic.utils, which has no room"),
    ],
)
def test_a_planted_import_is_found(file, text, fault, tmp_path):
    below = ("fedbolic/manifolds/__init__.py", "fedbolic/data/b.py", "fedbolic/run/sweeps.py")
    plant(tmp_path, {**dict.fromkeys(below, ""), file: text})
    (found,) = faults(tmp_path)
    assert fault in found


def test_what_the_rooms_allow_is_not_called_a_fault(tmp_path):
    allowed = {
        "fedbolic/core/tree.py": "import torch\nfrom fedbolic.core import rng",
        "fedbolic/core/rng.py": "",
        "fedbolic/nn/loss/a.py": "from fedbolic.nn.loss import b\nimport fedbolic.manifolds",
        "fedbolic/nn/loss/b.py": "import lightning",
        "fedbolic/nn/__init__.py": "from fedbolic.nn.loss.b import f",
        "fedbolic/run/sweeps.py": "from fedbolic.run.experiment import run\nimport fedbolic.data",
        "fedbolic/run/experiment.py": "from fedbolic.federated import FedAvg",
        "fedbolic/__main__.py": "import fedbolic.run.sweeps\nfrom fedbolic import __version__",
        "hyperfed/method.py": "from hyperfed import loss\nfrom fedbolic.federated import Method",
        "hyperfed/loss.py": "",
        "flatland/method.py": "import flatland.rivals.gcfl",
        "flatland/rivals/gcfl.py": "",
    }
    plant(tmp_path, allowed)
    assert list(faults(tmp_path)) == []
    assert circle(tmp_path) == []


def test_a_planted_circle_is_found(tmp_path):
    plant(
        tmp_path,
        {
            "fedbolic/nn/a.py": "import fedbolic.nn.b",
            "fedbolic/nn/b.py": "def f():\n    from fedbolic.nn.c import g",
            "fedbolic/nn/c.py": "from fedbolic.nn import a",
            "fedbolic/nn/d.py": "import fedbolic.nn.e",
            "fedbolic/nn/e.py": "if TYPE_CHECKING:\n    import fedbolic.nn.d",
            "fedbolic/nn/f.py": "import torch",
        },
    )
    assert circle(tmp_path) == [f"fedbolic.nn.{name}" for name in "abcde"]


def test_a_planted_fourth_user_is_found(tmp_path):
    files = {f"fedbolic/nn/{name}.py": "def f():\n    import geoopt.manifolds" for name in "abcd"}
    assert len(users(plant(tmp_path, files), "geoopt")) == 4


def test_a_test_lies_in_the_folder_of_its_room():
    """Folders are named after the rooms that they test; ``house`` tests the whole repository."""
    rooms = {room.removeprefix("fedbolic.") for rooms in ROOMS for room in rooms} - {"tests"}
    folders = {room.replace(".", "/") for room in rooms} | {"house"}
    commands = (file.parent for file in (ROOT / "benchmarks").rglob("__main__.py"))
    folders |= {str(folder.relative_to(ROOT)) for folder in commands}
    files = (file.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py"))
    assert [str(file) for file in files if str(file.parent) not in folders] == []


def test_properties_are_drawn_alike_on_every_machine():
    assert settings.get_profile("fedbolic").derandomize
    assert not settings.get_profile("fuzz").derandomize


def test_no_test_reads_a_stopwatch():
    stopwatch = re.compile(r"\btime\.(perf_counter|process_time|time)(_ns)?\(")
    found = [str(f) for f in (ROOT / "tests").rglob("*.py") if stopwatch.search(f.read_text())]
    assert found == [str(ROOT / "tests/federated/engines/test_engines.py")]  # it tests CPU time
