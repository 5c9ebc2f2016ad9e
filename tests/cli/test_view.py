"""The command `fedbolic view`: a taxonomy file, a run, an embedding, and what it refuses."""

from pathlib import Path

import pytest
import torch

from fedbolic.cli import views
from fedbolic.data import BalancedTree
from fedbolic.hierarchies import Embedding, TreeLayout
from fedbolic.knowledge import KnowledgeGraph, TripleScore

TREE = "lion\tcat\ntiger\tcat\ncat\tmammal\n"


@pytest.fixture
def taxonomy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cats.tsv").write_text(TREE)
    return tmp_path / "cats.tsv"


@pytest.mark.parametrize("way", ["sectors", "gaps"])
def test_a_taxonomy_becomes_a_page_named_after_it(fedbolic, taxonomy, way):
    code, out, _ = fedbolic("view", taxonomy, "--way", way)
    assert (code, out) == (0, "open cats.html in a browser\n")
    assert taxonomy.with_suffix(".html").read_text().startswith("<!DOCTYPE html>")


def test_a_page_is_never_replaced(fedbolic, taxonomy):
    taxonomy.with_suffix(".html").write_text("mine")
    code, _, error = fedbolic("view", taxonomy)
    assert (code, taxonomy.with_suffix(".html").read_text()) == (2, "mine")
    assert "cats.html exists" in error


def test_a_run_and_a_saved_embedding_become_pages(fedbolic, taxonomy, runs):
    words = ("--config", "hierarchies/quick", "--method.rounds", 1, "--runs", runs, "--name", "a")
    assert fedbolic("run", *words)[0] == 0
    assert fedbolic("view", runs / "a" / "seed0", "--to", "run.html")[0] == 0
    tree = BalancedTree(branching=2, depth=2).read(None, download=False)
    Embedding.of(tree, TreeLayout().place(tree)).save(taxonomy.with_suffix(".npz"))
    assert fedbolic("view", "cats.npz", "--to", "saved.html")[0] == 0
    assert (taxonomy.parent / "saved.html").exists()


def test_a_csv_is_an_embedding_by_its_header_and_a_taxonomy_otherwise(fedbolic, taxonomy):
    tree = BalancedTree(branching=2, depth=2).read(None, download=False)
    Embedding.of(tree, TreeLayout().place(tree)).to_csv("map.csv")
    Path("pairs.csv").write_text("child,parent\nlion,cat\n")
    for name in ("map", "pairs"):
        assert fedbolic("view", f"{name}.csv")[0] == 0
        assert Path(f"{name}.html").exists()
    Path("map.csv").write_text("name,parent,poincare_0\na,,0.5\n")
    code, _, error = fedbolic("view", "map.csv", "--to", "b.html")
    assert code == 2
    assert "do not say in which space" in error


@pytest.mark.parametrize("source", ["missing.tsv", "missing.npz", "cats.txt"])
def test_a_source_that_is_none_is_refused_in_a_line(fedbolic, taxonomy, source):
    (taxonomy.parent / "cats.txt").write_text(TREE)
    code, _, error = fedbolic("view", source)
    assert code == 2
    assert source in error
    assert "Traceback" not in error


def test_a_run_without_nodes_is_refused(fedbolic, taxonomy, runs, config):
    assert fedbolic("run", "--config", config, "--runs", runs, "--name", "b")[0] == 0
    code, _, error = fedbolic("view", runs / "b" / "seed0")
    assert code == 2
    assert "only hierarchies are shown" in error


def test_a_relation_of_a_knowledge_graph_becomes_a_page(fedbolic, taxonomy, runs):
    tables = {
        "entity": torch.eye(3, 2),
        "relation": torch.ones(2, 3),
        "curvature": torch.ones(2, 1),
    }
    tables = {name: table.double() for name, table in tables.items()}
    known = torch.tensor([[0, 0, 1], [1, 0, 2]])
    scorer = TripleScore("RotH", 2, "none")
    KnowledgeGraph(("cub", "lion", "cat"), ("is_a",), scorer, tables, known).save("cats.npz")
    assert views.related(Path("cats.npz"), "is_a").ancestors("cub") == ["lion", "cat"]
    assert fedbolic("view", "cats.npz", "--relation", "is_a")[0] == 0
    assert "</html>" in Path("cats.html").read_text()
    for source, relation, said in (
        ("cats.npz", "isa", "did you mean 'is_a'"),
        (taxonomy, "is_a", "no knowledge graph"),
    ):
        code, _, error = fedbolic("view", source, "--relation", relation, "--to", "b.html")
        assert code == 2
        assert said in " ".join(error.split())


def test_a_run_of_a_knowledge_graph_is_asked_for_a_relation(fedbolic, taxonomy, runs):
    words = ("--config", "knowledge/quick", "--method.rounds", 1, "--runs", runs, "--name", "c")
    assert fedbolic("run", *words)[0] == 0
    run = runs / "c" / "seed0"
    assert fedbolic("view", run, "--relation", "parent", "--to", "family.html")[0] == 0
    code, _, error = fedbolic("view", run, "--to", "b.html")
    assert code == 2
    assert "name a relation with --relation" in " ".join(error.split())
