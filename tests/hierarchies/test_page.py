"""The page about hierarchies: its Python works on files as it describes them."""

import random

import pytest

from tests.house.test_readme import ROOT, blocks
from tests.house.test_yours import num_lines

CODE = [code for _, code in blocks((ROOT / "fedbolic/hierarchies/README.md").read_text(), "python")]


@pytest.fixture
def shops(tmp_path, monkeypatch):
    """A working directory with the folder of five holders."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shops").mkdir()
    order = random.Random(0)
    for shop in "abcde":
        kinds = ("laptops", "phones", "tablets")
        lines = [f"{shop} {kind} {i},{kind}" for kind in kinds for i in range(order.randint(1, 4))]
        lines += ["MacBook,laptops"] + [f"{kind},electronics" for kind in kinds]
        (tmp_path / f"shops/{shop}.csv").write_text("\n".join(lines))


def test_five_holders_reach_neighbours_in_six_lines(shops, capsys):
    (code,) = [code for code in CODE if "HolderFiles" in code]
    assert num_lines(code) <= 6
    code = code.replace("HierarchyEmbedding()", "HierarchyEmbedding(rounds=2)")  # seconds less
    exec(compile(code, "page", "exec"), {"__name__": "page"})
    found = eval(capsys.readouterr().out)
    assert len(found) == 5
    assert "MacBook" not in dict(found)


@pytest.mark.parametrize("code", [code for code in CODE if "HolderFiles" not in code])
def test_a_block_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "page", "exec"), {"__name__": "page"})
