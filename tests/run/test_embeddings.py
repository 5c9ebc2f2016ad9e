"""A run of a hierarchy keeps its embedding, and a report shows it without the run's code."""

import importlib
import sys
import xml.etree.ElementTree as ET

import pytest
import torch

import fedbolic as fb
from fedbolic.data import BalancedTree, CommonLevels, PartitionedHierarchy, Subtrees
from fedbolic.hierarchies import Embedding, HierarchyEmbedding, SlotLayout
from fedbolic.hierarchies.view import view_page
from fedbolic.methods import FedAvg
from fedbolic.report.html_report import page
from fedbolic.run import resume, run
from fedbolic.run.run_files import RunFiles

DATA = PartitionedHierarchy(BalancedTree(2, 4), Subtrees(2))
OWN = """
import pathlib
from fedbolic.hierarchies import HierarchyEmbedding
pathlib.Path(__file__).with_name("mark").write_text("imported")
class Own(HierarchyEmbedding): pass
"""


@pytest.mark.parametrize(
    "method",
    [HierarchyEmbedding(dim=2, rounds=1), HierarchyEmbedding(dim=3, rounds=1, bias="ancestor")],
    ids=["plane", "bias"],
)
def test_the_file_of_a_run_holds_what_is_loaded_from_its_checkpoint(method, tmp_path):
    folder = run(method, DATA, runs=tmp_path)
    kept, loaded = Embedding.load(RunFiles(folder).embedding), fb.load(folder)
    assert kept.names == loaded.names
    assert torch.equal(kept.parents, loaded.parents)
    tensors, expected = kept.places.tensors(), loaded.places.tensors()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "method",
    [HierarchyEmbedding(rounds=1, personal=True), SlotLayout(mode="kept_at_home")],
    ids=["personal", "kept_at_home"],
)
def test_places_that_stay_with_the_clients_are_in_no_file(method, tmp_path):
    data = PartitionedHierarchy(BalancedTree(2, 4), CommonLevels(2))
    folder = run(method, data, runs=tmp_path)
    assert not RunFiles(folder).embedding.exists()


def test_a_classifier_has_no_such_file(tmp_path):
    folder = run(FedAvg(rounds=1), runs=tmp_path)
    assert not list(folder.glob("*.npz"))


def test_a_file_that_is_missing_is_written_again_by_resume(tmp_path):
    folder = run(HierarchyEmbedding(dim=3, rounds=1), DATA, runs=tmp_path)
    file = RunFiles(folder).embedding
    before = file.read_bytes()
    file.unlink()
    assert not resume(folder)
    assert file.read_bytes() == before


def test_a_page_has_the_map_and_runs_no_code_of_the_run(tmp_path, monkeypatch):
    (tmp_path / "own_method.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_method")
    folder = run(own.Own(dim=2, rounds=1), DATA, runs=tmp_path / "runs")
    monkeypatch.delitem(sys.modules, "own_method")
    (tmp_path / "mark").unlink()
    assert "class_path: own_method.Own" in (folder / "config.yaml").read_text()
    (frame,) = ET.fromstring(page([tmp_path / "runs"])).iter("iframe")
    assert frame.get("sandbox") == "allow-scripts"
    expected = view_page(Embedding.load(folder / "embedding.npz"), title="run")
    assert frame.attrib["srcdoc"].split() == expected.split()  # XML has no line breaks there
    assert not (tmp_path / "mark").exists()


def test_names_are_no_markup_of_the_page_and_a_damaged_file_is_named(tmp_path):
    folder = run(HierarchyEmbedding(dim=2, rounds=1), DATA, runs=tmp_path)
    file = folder / "embedding.npz"
    kept = Embedding.load(file)
    names = ("</iframe><script>alert(1)</script>", '"onload="x', *kept.names[2:])
    Embedding(names, kept.places, kept.parents).save(file)
    nodes = [*ET.fromstring(page([tmp_path])).iter()]
    assert "script" not in {node.tag for node in nodes}
    assert {key for node in nodes for key in node.attrib if key.startswith("on")} == set()
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"embedding\.npz"):
        page([tmp_path])
