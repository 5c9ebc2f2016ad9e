"""The notebooks of the site: their code compiles, names exist, outputs are those of the code."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from fedbolic.cli.parser import command_line
from fedbolic.run.configuration import parse
from tests.house.test_readme import ROOT, blocks, commands

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(file.stem for file in FOLDER.glob("[0-9]*.md"))
OURS = ("fedbolic", "flatland", "hyperfed", "fedhull", "flynn")
EXTRAS = {"matplotlib": "plots", "cryptography": "secure", "flint": "secure"}

HEAD = """\
---
file_format: mystnb
kernelspec:
  name: python3
"""

RUN = """\
import sys
from pathlib import Path
from tests.house.test_notebooks import cells
names = {"__name__": "__main__"}
for line, code in cells(Path(sys.argv[1]).read_text()):
    exec(compile("\\n" * (line - 1) + code, sys.argv[1], "exec"), names)
"""


def read(name):
    return (FOLDER / f"{name}.md").read_text()


def cells(text):
    """Code cells of a text notebook, each with the number of its first line."""
    found = re.finditer(r"^```\{code-cell\} ipython3\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def imports(code):
    """Pairs of a module of ours and a name that code imports, also code that it writes to files."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            found |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(a.name, None) for a in node.names if a.name.split(".")[0] in OURS}
        elif isinstance(node, ast.Constant) and "\nfrom fedbolic" in str(node.value):
            found |= imports(node.value)
    return found


def exists(module, name):
    """True if a module has a name or a submodule of that name."""
    found = importlib.import_module(module)
    return name is None or hasattr(found, name) or find_spec(f"{module}.{name}") is not None


def without_blocks(text, kind):
    """A page without its fenced blocks whose first lines begin with a pattern."""
    return re.sub(rf"^```{kind}.*?^```$", "", text, flags=re.M | re.S)


def named(text):
    """Dotted names of ours that the sentences and the YAML of a page mention."""
    text = without_blocks(text, r"\{code-cell\}")
    return set(re.findall(rf"\b(?:{'|'.join(OURS)})(?:\.\w+)+", text))


def test_there_are_ten_notebooks():
    assert [name[:3] for name in NOTEBOOKS] == [f"{i:02}_" for i in range(1, 11)]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_a_kernel_a_title_and_code_that_compiles(name):
    text = read(name)
    assert text.startswith(HEAD)
    assert len(re.findall(r"^# .+$", without_blocks(text, ""), re.M)) == 1
    assert text.count("{code-cell}") == len(cells(text)) > 5
    for line, code in cells(text):
        compile(code, f"{name}:{line}", "exec")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_outputs_are_those_of_the_notebook(name):
    """``make docs`` stores them."""
    stored = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    code = [cell for cell in stored if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in code] == [c.rstrip() for _, c in cells(read(name))]
    text = without_blocks(read(name), r"\{code-cell\}").split("---\n", 2)[2]
    shown = ["".join(cell["source"]) for cell in stored if cell["cell_type"] == "markdown"]
    assert " ".join(shown).split() == text.split()
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    # not in figures, which may have any letters
    texts = [
        "".join([*o.get("text", ()), *o.get("data", {}).get("text/plain", ())]) for o in outputs
    ]
    unwanted = re.compile(r"Warning|/(home|root|tmp|Users)/")
    assert [text for text in texts if unwanted.search(text)] == []
    assert {o["output_type"] for o in outputs} <= {"stream", "display_data", "execute_result"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_a_notebook_imports_exists_and_is_public(name):
    found = {pair for _, code in cells(read(name)) for pair in imports(code)}
    assert found
    assert [pair for pair in sorted(found, key=str) if not exists(*pair)] == []
    assert not [pair for pair in found if "._" in ".".join(filter(None, pair))]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_a_notebook_mentions_exists(name):
    for path in named(read(name)):
        module, _, last = path.rpartition(".")
        assert exists(module, last), path


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_commands_of_a_notebook_parse(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    for _, block in blocks(read(name), "bash"):
        for words in commands(block):
            parse(command_line(), words)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path):
    for package, extra in EXTRAS.items():
        pytest.importorskip(package, reason=f"needs the extra {extra}")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(FOLDER / f"{name}.md")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_name_would_be_found():
    code = "from fedbolic.nn import Missing\nfile = '''\\nfrom fedbolic.data import Gone\\n'''"
    assert imports(code) == {("fedbolic.nn", "Missing"), ("fedbolic.data", "Gone")}
    assert not exists("fedbolic.nn", "Missing")
    assert exists("fedbolic", "nn")
    assert exists("flatland", "GCN")
    assert exists("fedbolic.nn", None)


def test_the_cells_of_a_notebook_are_found():
    text = "# A\n```{code-cell} ipython3\nx = 1\n```\n```bash\nls\n```\n`fedbolic.nn.Gone`\n"
    assert cells(text) == [(3, "x = 1\n")]
    assert named(text) == {"fedbolic.nn.Gone"}
