"""The wheel and the sdist hold what a user needs, and the wheel works in an empty environment."""

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from fedbolic import __version__
from tests.command_line import ROOT
from tests.house.test_bare_imports import LAYERS, needed_by

pytestmark = pytest.mark.wheel

SYSTEMS = ("fedbolic", "flatland", "hyperfed", "fedhull", "flynn")
LISTED = "from importlib.metadata import distributions\nfor d in distributions(): print(d.name)"
IMAGES = (".png", ".jpg", ".jpeg", ".svg", ".gif", ".pdf")


@pytest.fixture(scope="module")
def built(request):
    """The wheel and the sdist, the only files of their kind in the folder."""
    folder = request.config.getoption("--wheel").resolve()
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def environment(folder, wheel):
    """An environment with nothing but the wheel, and its folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    install = ["--python", folder / "bin" / "python", "install", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *install, wheel], check=True)
    return packages


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """An environment with nothing but the wheel; dependencies are those of this process."""
    folder = tmp_path_factory.mktemp("environment")
    packages = environment(folder, built[0])
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    # a nested .pth, such as that of an editable installation, is not read
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    return folder


@pytest.fixture
def call(installed, tmp_path):
    """Run a program of the environment in an empty folder."""
    return lambda program, *words: output(installed / "bin" / program, *words, folder=tmp_path)


def output(*words, folder):
    """Output of a program that succeeds in a folder, without the variables of this process."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        words, cwd=folder, env={**kept, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_all_packages_and_no_more(built):
    found = names(built[0])
    tops = {name.partition("/")[0] for name in found}
    assert tops == {*SYSTEMS, f"fedbolic-{__version__}.dist-info"}
    code = {name for name in found if name.endswith(".py")}
    assert code == {str(f.relative_to(ROOT)) for top in SYSTEMS for f in (ROOT / top).rglob("*.py")}
    assert "fedbolic/py.typed" in found


def test_no_image_travels(built):
    with tarfile.open(built[1]) as archive:
        both = {*names(built[0]), *archive.getnames()}
    assert [name for name in both if name.endswith(IMAGES)] == []


def test_all_configurations_of_the_command_line_travel(built):
    found = {n.removeprefix("fedbolic/") for n in names(built[0]) if n.endswith(".yaml")}
    of_benchmarks = {f for f in (ROOT / "configs").rglob("*.yaml") if "\nsets:" in f.read_text()}
    kept = {*(ROOT / "configs").rglob("*.yaml")} - of_benchmarks
    assert found == {str(file.relative_to(ROOT)) for file in kept}


def test_the_sdist_holds_the_tests(built):
    with tarfile.open(built[1]) as archive:
        found = archive.getnames()
    root = f"fedbolic-{__version__}"
    for name in ("tests/house/test_wheel.py", "Makefile", "constraints.txt", "CITATION.cff"):
        assert f"{root}/{name}" in found


def test_the_code_is_that_of_the_wheel(call, installed):
    out = call("python", "-c", f"import {', '.join(SYSTEMS)}; print(fedbolic.__file__)")
    assert Path(out.strip()).is_relative_to(installed)
    assert call("fedbolic", "--version").strip() == f"fedbolic {__version__}"


def test_layers_train_where_torch_numpy_and_jaxtyping_are_alone(built, tmp_path):
    packages = environment(tmp_path / "bare", built[0])
    for name in needed_by(["torch", "numpy", "jaxtyping"]):
        files = distribution(name).files or ()
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (packages / top).symlink_to(distribution(name).locate_file(top))
    python = tmp_path / "bare/bin/python"
    present = {name.lower() for name in output(python, "-c", LISTED, folder=tmp_path).split()}
    assert present & {"torch", "fedbolic", "lightning", "scipy"} == {"torch", "fedbolic"}
    assert output(python, "-c", LAYERS, folder=tmp_path) == "trained\n"


def test_a_run_by_name_and_its_report(call, tmp_path):
    out = call("fedbolic", "run", "--config", "fedavg/quick", "--method.rounds=1")
    assert out.strip().endswith("runs/fedavg_quick/seed0")
    assert "fedavg_quick" in call("fedbolic", "report", "runs")
    assert (tmp_path / "runs" / "fedavg_quick" / "seed0" / "metrics.csv").is_file()


def test_every_configuration_is_listed(call):
    names = [line.split()[0] for line in call("fedbolic", "configs").splitlines()]
    assert {"fedavg/quick", "flatland/quick", "hyperfed/table1_fmnist"} <= set(names)


def test_a_sweep_finds_its_base_and_published_numbers(call, installed, tmp_path):
    """Only the layout is tested: the sweep is read, and stops at data that are not there."""
    code = (
        "from fedbolic.run.configuration import build\n"
        "from fedbolic.run.sweeps import sweep\n"
        "from fedbolic.cli.commands import _seen_from\n"
        "from fedbolic.run.packaged_configs import *\n"
        "file = find_config('hyperfed/table1_fmnist')\n"
        "asked = build(sweep, ['--config', file])\n"
        "paths = [asked['base'], *asked['published']]\n"
        "print(*[_seen_from([file], path).resolve() for path in paths], sep='\\n')\n"
    )
    for line in call("python", "-c", code).splitlines():
        assert Path(line).is_file()
        assert Path(line).is_relative_to(installed)
