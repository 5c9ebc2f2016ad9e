"""Imports where packages are missing: those of the command line, all but torch, those of extras."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from fedbolic.core.imports import DISTRIBUTIONS
from tests.house.test_release import EXTRAS, names_in

ROOT = Path(__file__).parents[2]
BLOCK = """
import sys
absent = set({absent!r})
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *others):
        return None if name.partition(".")[0] in absent else self.finder.find_spec(name, *others)
sys.meta_path[:] = map(Hiding, sys.meta_path)
"""

COMMAND_LINE = (
    *("jsonargparse", "beartype", "geoopt", "pooch", "cryptography", "flint", "sklearn"),
    "dp_accounting",
)
SKIPPED = {"test_arrays.py", "test_experiment.py", "test_reproducible.py", "test_shadow.py"}
"""Files whose tests for a GPU need one of these packages."""

MODULES = (
    *("fedbolic", "fedbolic.nn", "fedbolic.manifolds", "fedbolic.federated", "fedbolic.methods"),
    *("fedbolic.data", "fedbolic.hierarchies", "hyperfed", "flatland", "flynn", "benchmarks.gpu"),
)

LAYERS = (ROOT / "tests/layers_alone.py").read_text()
"""Steps of training that need no package but torch, numpy, jaxtyping and what these need."""

USES = {
    "run": (
        "import fedbolic; fedbolic.load",
        "import fedbolic.run; fedbolic.run.sweep",
        "import fedbolic.run.progress",
        "import fedbolic.run.record",
        "import fedbolic.report",
        "import fedbolic.cli.commands",
    ),
    "data": (
        "from fedbolic.data import Digits; Digits().read(None, download=False)",
        "import fedbolic.data.files.download",
    ),
    "scores": (
        "import torch; from fedbolic.federated.scores.metrics import label_scores\n"
        "label_scores(torch.tensor([0]), torch.tensor([0]), num_classes=2)",
    ),
    "graphs": (
        "from fedbolic.data import Louvain; Louvain(2).parts(None, None)",
        "from fedbolic.data import Metis; Metis(2).parts(None, None)",
    ),
    "hull": ("import fedhull",),
    "secure": ("import fedbolic.federated.secure",),
    "fly": ("from flynn import FlyHash", "from flynn import FlyNNClassifier"),
    "dp": ("from flynn.noise import _by_opendp; _by_opendp(1.0, 3)",),
    "accounting": (
        "from fedbolic.federated.accounting.accountants import renyi_epsilon\n"
        "renyi_epsilon('poisson', 0.1, 1.0, 3, dp_delta=1e-5)",
    ),
    "plots": ("from fedbolic.report.canvas import new_canvas; new_canvas(1, 1)",),
    "umap": ("from fedbolic.report.figure_plots import umap; umap(None)",),
    "flower": ("import fedbolic.remote.app", "import fedbolic.remote.flower"),
    "export": (
        "from fedbolic.run.exports import _onnx; _onnx(None, None)",
        "from fedbolic.run.exports import _safetensors; _safetensors(None, None)",
        "from fedbolic.hierarchies.embedding_files import _read_safetensors as read; read(None)",
    ),
    "ontologies": (
        "from fedbolic.data.hierarchies.ontologies import obo_pairs; [*obo_pairs('x.obo')]",
        "from fedbolic.data.hierarchies.ontologies import skos_pairs; [*skos_pairs('x.ttl')]",
    ),
    "search": ("from fedbolic.search.approximate import _new_graph; _new_graph(2, 16, 64)",),
    "vectors": (
        "from fedbolic.search import Faiss; Faiss(None)",
        "from fedbolic.search import Hnswlib; Hnswlib(None)",
        "from fedbolic.search import Qdrant; Qdrant(None)",
    ),
    "timm": (
        "from fedbolic.data import Meta; from fedbolic.nn.network.own_network import Timm\n"
        "Timm('resnet18').build(Meta(10, (3, 32, 32), 1))",
    ),
    "sentences": (
        "from fedbolic.nn.network.retrieval import SentenceEncoder; SentenceEncoder('all')",
    ),
    "images": ("from fedbolic.data import ImageFolder; ImageFolder._image(None, None, None, 1)",),
    "parquet": (
        "from fedbolic.data.tables.table_file import _parquet; _parquet('x.parquet', None)",
        "from fedbolic.hierarchies.embedding_tables import write_parquet as write\n"
        "write('x.parquet', (), None, None)",
    ),
}
"""Code that needs a package of an extra."""

FOUND = packages_distributions()
"""Installed packages by their names in import statements."""

FORKS = """
import json, os
import torch
import fedbolic.federated
for name, needed, code in {cases!r}:
    if os.fork() == 0:  # so that one use imports nothing for the next one
        absent.update(needed)
        try:
            exec(code)
        except Exception as error:
            print(json.dumps([name, code, type(error).__name__, str(error)]), flush=True)
        os._exit(0)
    os.wait()
"""


def run_without(absent, code):
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            BLOCK.format(absent=[*absent]) + code,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def modules_of(extra):
    """Names of an extra's packages in import statements."""
    by_pip = {pip: module for module, pip in DISTRIBUTIONS.items()}
    return [by_pip.get(pip, pip.replace("-", "_")) for pip in names_in(EXTRAS[extra])]


def needed_by(packages):
    """The packages, and all that these need, by their names for pip in small letters."""
    installed = {normal(name) for names in FOUND.values() for name in names}
    found = {normal(package) for package in packages}
    for package in packages:
        always = [text for text in requires(package) or () if "extra ==" not in text]
        here = {name for name in names_in(always) if normal(name) in installed}
        found |= needed_by(here - found)
    return found


def normal(name):
    return name.lower().replace("_", "-")


def test_all_that_a_gpu_needs_is_imported_and_its_tests_are_collected():
    options = ["-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]
    code = f"import pytest; code = pytest.main({options}); import {', '.join(MODULES)}"
    done = run_without(COMMAND_LINE, f"{code}; sys.exit(code)")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    files = (ROOT / "tests").rglob("test_*.py")
    files = {file.name for file in files if re.search(r"mark\.gpu", file.read_text())}
    found = {*re.findall(r"^\S*/(test_\w+\.py)::", done.stdout, re.MULTILINE)}
    assert files - found == SKIPPED


@pytest.mark.parametrize("module", COMMAND_LINE)
def test_the_block_holds(module):
    assert "ModuleNotFoundError" in run_without(COMMAND_LINE, f"import {module}").stderr


@pytest.mark.processes
def test_layers_train_with_torch_numpy_and_jaxtyping_alone():
    kept = {"fedbolic", *needed_by(["torch", "numpy", "jaxtyping"])}
    absent = {top for top, names in FOUND.items() if not kept & {*map(normal, names)}}
    assert {"geoopt", "lightning", "scipy", "torch_geometric", "sklearn", "yaml"} <= absent
    assert not {"torch", "numpy", "jaxtyping", "typing_extensions"} & absent
    done = run_without(absent, LAYERS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


@pytest.fixture(scope="module")
def refusals():
    """Errors of code where the packages of its extra are missing, by extra and code."""
    cases = [(name, modules_of(name), code) for name, codes in USES.items() for code in codes]
    done = run_without((), FORKS.format(cases=cases))
    assert done.stderr == ""
    return {(name, code): rest for name, code, *rest in map(json.loads, done.stdout.splitlines())}


def test_every_extra_that_code_of_ours_imports_has_a_use():
    # users import the packages of `datasets`, and hand over what they give
    assert set(USES) == set(EXTRAS) - {"all", "dev", "docs", "datasets"}


@pytest.mark.parametrize(
    ("name", "code"), [(n, code) for n, codes in USES.items() for code in codes]
)
@pytest.mark.processes
def test_a_missing_package_names_its_extra(refusals, name, code):
    kind, text = refusals[name, code]
    assert kind == "MissingExtraError"
    package = re.search(rf"needs (\S+): pip install 'fedbolic\[{name}\]'", text)[1]
    assert package in names_in(EXTRAS[name])


def test_the_command_line_names_its_extra_in_one_line():
    code = "from fedbolic.__main__ import main; sys.exit(main(['run']))"
    done = run_without(modules_of("run"), code)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"fedbolic: .* needs \S+: pip install 'fedbolic\[run\]'\n", done.stderr)
