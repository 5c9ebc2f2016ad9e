"""Metadata of the release: one version, extras, package data, and the files around it."""

import ast
import csv
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from shutil import which

import pytest
import yaml

from fedbolic import __version__
from fedbolic.core.imports import DISTRIBUTIONS, SYSTEMS
from fedbolic.run.packaged_configs import FOLDERS

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, HATCH = PYPROJECT["project"], PYPROJECT["tool"]["hatch"]
EXTRAS = PROJECT["optional-dependencies"]
WHEEL = HATCH["build"]["targets"]["wheel"]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = {
    file.name: yaml.safe_load(file.read_text())
    for file in sorted((ROOT / ".github/workflows").glob("*.yml"))
}
SWEEPS = [f for f in (ROOT / "configs").rglob("*.yaml") if "\nrows:" in f.read_text()]


def test_the_version_is_written_once_and_cited():
    assert "version" not in PROJECT
    assert "version" in PROJECT["dynamic"]
    assert f'__version__ = "{__version__}"' in (ROOT / HATCH["version"]["path"]).read_text()
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert cited["license"] == PROJECT["license"]
    assert [one["name"] for one in cited["authors"]] == [one["name"] for one in PROJECT["authors"]]
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_badges_are_what_the_package_declares():
    oldest = dict(requirement.split(">=") for requirement in PROJECT["dependencies"])
    python = PROJECT["requires-python"].removeprefix(">=")
    said = [PROJECT["license"], f"Python {python} or newer", f"torch {oldest['torch']} or newer"]
    assert f"![{', '.join(said)}](fedbolic/badges.svg)" in (ROOT / "README.md").read_text()
    badges = ElementTree.fromstring((ROOT / "fedbolic/badges.svg").read_text())
    texts = [each.text for each in badges.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[1::2] == [PROJECT["license"], f"≥ {python}", f"≥ {oldest['torch']}"]


def test_all_is_every_extra_but_those_of_development_of_the_site_and_one_to_compile():
    (all_extras,) = EXTRAS["all"]
    named = re.fullmatch(r"fedbolic\[([\w,]+)\]", all_extras)[1].split(",")
    assert sorted(named) == sorted(set(EXTRAS) - {"all", "dev", "docs", "vectors"})


def test_the_page_lists_every_extra_of_users():
    with (ROOT / "docs/start/extras.csv").open(newline="") as file:
        listed = [
            name for row in csv.DictReader(file) for name in re.findall("`(.+?)`", row["extra"])
        ]
    assert sorted(listed) == sorted(set(EXTRAS) - {"dev", "docs"})


def test_no_tool_of_development_is_a_dependency():
    assert names_in(PROJECT["dependencies"]) & names_in(EXTRAS["dev"]) == set()


def names_in(requirements):
    """Packages by their names for pip, without extras, versions and the project itself."""
    return {re.match(r"[\w.-]+", text)[0] for text in requirements} - {"fedbolic"}


def imported(tree):
    """Packages of other projects that code imports, by their names for pip."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    tops = {name.partition(".")[0] for name in found}
    tops -= {"fedbolic", *SYSTEMS, *sys.stdlib_module_names}
    return {DISTRIBUTIONS.get(top, top.replace("_", "-")) for top in tops}


def guarded(tree):
    """The extra of every block ``with extra(NAME, ...)`` of code, and what it imports."""
    return [
        (node.items[0].context_expr.args[0].value, imported(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and ast.unparse(node.items[0]).startswith("extra(")
    ]


def unnamed(file):
    """Packages that a file imports, which neither every installation nor a named extra has."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    left = imported(tree) - names_in(PROJECT["dependencies"])
    for name, packages in guarded(tree):
        assert packages <= names_in(EXTRAS[name]), (file, name)
        left -= packages
    for folder in file.relative_to(ROOT).parents[:-1]:  # a package may guard all of its modules
        for name, _ in guarded(ast.parse((ROOT / folder / "__init__.py").read_text())):
            left -= names_in(EXTRAS[name])
    return left


@pytest.mark.parametrize("top", ["fedbolic", *SYSTEMS])
def test_a_package_that_is_no_dependency_is_imported_under_the_name_of_its_extra(top):
    found = {file: unnamed(file) - {"triton"} for file in (ROOT / top).rglob("*.py")}
    # torch for CUDA brings triton
    assert {file: packages for file, packages in found.items() if packages} == {}


def test_an_import_without_the_name_of_its_extra_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/__init__.py").touch()
    for code, expected in {
        "import torch, sklearn.svm": {"scikit-learn"},
        "with extra('data', 'x'):\n    from sklearn import svm\nimport sklearn": set(),
        "with extra('data', 'x'):\n    import sklearn\nimport networkx": {"networkx"},
    }.items():
        (tmp_path / "a/b.py").write_text(code)
        assert unnamed(tmp_path / "a/b.py") == expected
    (tmp_path / "a/b.py").write_text("with extra('graphs', 'x'):\n    import sklearn")
    with pytest.raises(AssertionError):
        unnamed(tmp_path / "a/b.py")


def test_configurations_are_package_data_where_they_are_looked_for():
    inside, beside = FOLDERS
    assert ROOT / WHEEL["sources"]["configs"] == inside
    assert beside == ROOT / "configs"
    assert set(WHEEL["sources"]) <= set(WHEEL["only-include"])


def is_packaged(file, path):
    """True if the same path leads from a sweep to a file here and in the wheel."""
    target = (file.parent / path).resolve().relative_to(ROOT)
    (source,) = [s for s in WHEEL["sources"] if target.is_relative_to(s)]
    packaged = ROOT / WHEEL["sources"][source] / target.relative_to(source)
    folder = ROOT / WHEEL["sources"]["configs"] / file.parent.relative_to(ROOT / "configs")
    return (ROOT / target).is_file() and (folder / path).resolve() == packaged


def test_what_sweeps_refer_to_is_packaged_next_to_them():
    sweeps = {file: yaml.safe_load(file.read_text()) for file in SWEEPS}
    paths = [
        (f, p) for f, sweep in sweeps.items() for p in (sweep["base"], *sweep.get("published", ()))
    ]
    assert [(str(file), path) for file, path in paths if not is_packaged(file, path)] == []


def test_images_are_left_out():
    images = {file.suffix for file in ROOT.glob("*/*.png")}
    assert images == {".png"}
    assert "*.png" in HATCH["build"]["exclude"]


def test_the_workflow_runs_targets_of_the_makefile_on_every_version():
    (job,) = WORKFLOWS["ci.yml"]["jobs"].values()
    versions = job["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert f"OLDEST := python{versions[0]}\nNEWEST := python{versions[-1]}\n" in MAKEFILE
    assert PROJECT["requires-python"] == f">={versions[0]}"
    targets = [step["run"].removeprefix("make ") for step in job["steps"] if "run" in step]
    assert {"test", "avx2", "check", "site", "wheel"} <= set(targets)
    (weekly,) = WORKFLOWS["audit.yml"]["jobs"].values()
    targets += weekly["strategy"]["matrix"]["target"]
    (setup,) = (step["with"] for step in weekly["steps"] if "with" in step)
    assert setup["python-version"].split() == [versions[-1], versions[0]]  # the last is python3
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.M)


def test_workflows_name_actions_by_commit_and_can_only_read():
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        uses = re.findall(r"uses: (.*)", (ROOT / ".github/workflows" / name).read_text())
        assert uses, name
        pinned = r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+"
        assert [action for action in uses if not re.fullmatch(pinned, action)] == [], name


def test_every_constraint_is_one_version():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [s for s in lines if not re.fullmatch(r"#.*|[\w.-]+==[\w.+]+", s)] == []


@pytest.mark.skipif(not which("make"), reason="needs make")
@pytest.mark.parametrize("failing", ["nothing", "--ignore", "tests/cli"])
def test_make_test_runs_both_halves_and_then_fails(failing, tmp_path):
    bin = tmp_path / ".venv/bin"
    bin.mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    for name in ("pip", "ruff", "python"):
        # notes its arguments, and fails if they have the word
        (bin / name).write_text(
            f'#!/bin/sh\necho "$@" >> {name}\ncase "$*" in *" {failing}"*) exit 1; esac'
        )
        (bin / name).chmod(0o755)
    command = ["make", "--file", str(ROOT / "Makefile"), "PYTHON=true", "test"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode == 0) == (failing == "nothing")
    assert len((tmp_path / "python").read_text().splitlines()) == 2


def test_the_hooks_are_the_linters_of_the_makefile():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]:
        command = hook["entry"].replace(" --force-exclude", "").replace(".venv/bin", "$(BIN)")
        assert f"\t{command}\n" in MAKEFILE


def test_the_image_is_built_from_what_the_wheel_needs():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    assert [path for path in sent if not (ROOT / path).exists()] == []
    assert {*WHEEL["only-include"], *PROJECT["license-files"], PROJECT["readme"]} <= sent
    steps = re.findall(r"^(FROM|ARG|COPY|ENTRYPOINT) (.*)", (ROOT / "Dockerfile").read_text(), re.M)
    copied = [text.split()[0] for kind, text in steps if kind == "COPY"]
    assert set(copied) <= sent | {"."}
    arguments = dict(text.split("=") for kind, text in steps if kind == "ARG")
    assert set(arguments["EXTRAS"].split(",")) <= set(EXTRAS)
    assert ("FROM", f"python:{PROJECT['requires-python'][2:]}-slim") in steps
    (program,) = (yaml.safe_load(text) for kind, text in steps if kind == "ENTRYPOINT")
    assert set(program) <= set(PROJECT["scripts"])
