"""Imports point downwards only: the layers of the code base, read from every file unexecuted."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

COMMANDS = "the command layer"
"""Top-level files that turn a configuration into a run's folder; they may import one another."""

LAYERS = (
    ("fedbolic.reading",),
    ("fedbolic", "fedbolic.types", "fedbolic.rng", "fedbolic.check", "fedbolic.figure"),
    ("fedbolic.imports",),
    ("fedbolic.log", "fedbolic.renamed", "fedbolic.yaml_text"),
    ("fedbolic.torch_files",),
    ("fedbolic.checksums", "fedbolic.tree_bytes"),
    ("fedbolic.client_states", "fedbolic.pair_keys", "fedbolic.kernels", "fedbolic.foreach"),
    ("fedbolic.manifolds", "fedbolic.tree", "fedbolic.record", "fedbolic.published"),
    ("fedbolic.comparison", "fedbolic.run_scores"),
    ("fedbolic.client_table", "fedbolic.table_rows", "fedbolic.fused_adam"),
    ("fedbolic.nn", "fedbolic.data", "fedbolic.optim", "fedbolic.plots"),
    ("fedbolic.federated", "fedbolic.report", "fedbolic.panels", "fedbolic.torch_optim"),
    ("fedbolic.methods", "fedbolic.hierarchies", "flatland", "hyperfed", "fedhull", "flynn"),
    ("fedbolic.html_report",),
    ("fedbolic.testing",),
    (COMMANDS,),
    ("fedbolic.remote",),
    ("fedbolic.commands", "benchmarks"),
    ("fedbolic.__main__",),
    ("tests",),
)
COMMAND_FILES = (
    *("experiment", "configuration", "progress", "sweep"),
    *("jobs", "help", "reproducible", "packaged_configs"),
    *("trained", "export", "loggers", "computing", "suited_methods"),
)
INSTALLED = ("fedbolic", "flatland", "hyperfed", "fedhull", "flynn")
FENCED = (
    *("geoopt", "torch_geometric", "lightning", "jsonargparse", "flwr", "opendp", "flint"),
    *("cryptography", "pooch", "matplotlib", "pymetis", "numba", "dp_accounting"),
)


def part_of(module):
    """The package or file of ``LAYERS`` that a module belongs to; ``None`` if it has no layer."""
    if module in [f"fedbolic.{name}" for name in COMMAND_FILES]:
        return COMMANDS
    named = [part for names in LAYERS for part in names]
    top, *below = module.split(".")
    part = f"{top}.{below[0]}" if top == "fedbolic" and below else top
    return part if part in named else None


def layer(part):
    return next(i for i, names in enumerate(LAYERS, 1) if part in names)


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
    """Every import that the layers forbid, as text."""
    known = modules(root)
    for module, file in known.items():
        own = part_of(module)
        if own is None:
            yield f"{module} has no layer"
            continue
        for target in sorted(imports(file, known)):
            part = part_of(target)
            if target.startswith("."):
                yield f"{module} imports {target}, which is relative"
            elif target.partition(".")[0] not in (*INSTALLED, "benchmarks", "tests"):
                continue
            elif part is None:
                yield f"{module} imports {target}, which has no layer"
            elif part != own and layer(part) >= layer(own):
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
    assert [m for m in found if not m.startswith("fedbolic.kernels.")] == []


def _imports(file, package):
    return any(name.partition(".")[0] == package for name in imports(file, ()))


def test_the_files_are_found():
    known = modules(ROOT)
    assert {"fedbolic", "fedbolic.__main__", "fedbolic.methods.fedavg"} <= set(known)
    assert "fedbolic.tree" in imports(known["fedbolic.federated.trainer"], known)
    assert users(ROOT, "lightning")
    assert users(ROOT, "jsonargparse")
    by_layer = defaultdict(list)
    for module in known:
        by_layer[layer(part_of(module))].append(module)
    assert set(by_layer) == set(range(1, len(LAYERS) + 1))


def plant(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("fedbolic/rng.py", "from fedbolic import tree", "fedbolic.rng imports fedbolic.tree"),
        ("fedbolic/rng.py", "from fedbolic import check", "fedbolic.rng imports fedbolic.check"),
        ("fedbolic/data/a.py", "import fedbolic.nn", "fedbolic.data.a imports fedbolic.nn"),
        (
            "fedbolic/nn/a.py",
            "def f():\n    if 1:\n        from fedbolic.federated import FedAvg",
            "fedbolic.nn.a imports fedbolic.federated,",
        ),
        (
            "fedbolic/federated/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import flatland.method",
            "fedbolic.federated.a imports flatland.method",
        ),
        ("hyperfed/method.py", "from flatland import x", "hyperfed.method imports flatland,"),
        ("flynn/method.py", "import fedbolic.methods.ditto", "flynn.method imports fedbolic.m"),
        ("fedbolic/methods/a.py", "import fedbolic.sweep", "a imports fedbolic.sweep"),
        ("fedbolic/sweep.py", "import fedbolic.__main__", "fedbolic.sweep imports fedbolic.__main"),
        ("fedbolic/data/a.py", "from . import b", "which is relative"),
        ("fedbolic/utils.py", "", "fedbolic.utils has no layer"),
        ("fedhull/a.py", "import fedbolic.utils", "imports fedbolic.utils, which has no layer"),
    ],
)
def test_a_planted_import_is_found(file, text, fault, tmp_path):
    below = ("fedbolic/check.py", "fedbolic/tree.py", "fedbolic/data/b.py", "fedbolic/sweep.py")
    plant(tmp_path, {**dict.fromkeys(below, ""), file: text})
    (found,) = faults(tmp_path)
    assert fault in found


def test_what_the_layers_allow_is_not_called_a_fault(tmp_path):
    allowed = {
        "fedbolic/tree.py": "import torch\nfrom fedbolic import rng\nimport fedbolic.types",
        "fedbolic/rng.py": "",
        "fedbolic/nn/a.py": "from fedbolic.nn import b\nfrom fedbolic.manifolds import Lorentz",
        "fedbolic/nn/b.py": "import lightning",
        "fedbolic/sweep.py": "from fedbolic.experiment import run\nimport fedbolic.progress",
        "fedbolic/experiment.py": "from fedbolic.federated import FedAvg",
        "fedbolic/__main__.py": "import fedbolic.sweep\nfrom fedbolic import __version__",
        "hyperfed/method.py": "from hyperfed import loss\nfrom fedbolic.federated import Method",
        "hyperfed/loss.py": "",
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


def test_tests_mirror_the_packages():
    """A folder of tests has the name of the package it tests; ``plain`` tests the public API."""
    folders = {file.parent for file in (ROOT / "tests").rglob("test_*.py")}
    named = {folder.relative_to(ROOT / "tests") for folder in folders} - {Path(), Path("plain")}
    tops = (*INSTALLED, "benchmarks")
    tested = {path if path.parts[0] in tops else "fedbolic" / path for path in named}
    assert [str(path) for path in sorted(tested) if not (ROOT / path).is_dir()] == []
    inside = {
        "fedbolic/federated": (
            "aggregators",
            "attacks",
            "engines",
            "evaluation",
            "privacy",
            "secure",
        )
    }
    for package, parts in inside.items():
        assert {Path(package, part) for part in parts} <= tested


def test_properties_are_drawn_alike_on_every_machine():
    assert settings.get_profile("fedbolic").derandomize
    assert not settings.get_profile("fuzz").derandomize


def test_no_test_reads_a_stopwatch():
    stopwatch = re.compile(r"\btime\.(perf_counter|process_time|time)(_ns)?\(")
    found = [str(f) for f in (ROOT / "tests").rglob("*.py") if stopwatch.search(f.read_text())]
    assert found == [str(ROOT / "tests/federated/engines/test_engines.py")]  # it tests CPU time
