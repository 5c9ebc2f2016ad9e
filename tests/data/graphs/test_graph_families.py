"""TU files written by hand, and laws of generated graphs."""

import networkx as nx
import pytest
import torch
from torch_geometric.io import read_tu_data

from fedbolic.core.rng import Rng
from fedbolic.data import TreesAndRings, TUFamily, pick_graphs

TOY = {
    # a triangle with label -1 and two joined nodes with label 1; edges in both directions
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n1, 3\n3, 1\n4, 5\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "-1\n1\n",
    "node_labels": "5\n6\n5\n7\n5\n",
}


def write(folder, parts, name="TOY"):
    folder.mkdir(parents=True)
    for part, text in parts.items():
        (folder / f"{name}_{part}.txt").write_text(text)


@pytest.mark.parametrize("place", ["TOY/raw", "TOY", "tu/TOY"])
def test_files_are_read_from_the_folders_of_pyg_and_of_the_site(place, tmp_path):
    write(tmp_path / place, TOY)
    union = TUFamily("TOY").read(Rng(0), tmp_path)
    assert union.batch.tolist() == [0, 0, 0, 1, 1]
    assert union.labels.tolist() == [0, 0, 0, 1, 1]
    assert union.edges.tolist() == [[0, 0, 1, 1, 2, 2, 3, 4], [1, 2, 0, 2, 0, 1, 4, 3]]
    one_hot = [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert union.features.tolist() == one_hot


def test_graphs_without_features_have_the_width_0(tmp_path):
    write(tmp_path / "TOY", {name: text for name, text in TOY.items() if name != "node_labels"})
    union = TUFamily("TOY").read(Rng(0), tmp_path)
    assert union.features.shape == (5, 0)
    assert union.batch.tolist() == [0, 0, 0, 1, 1]


def test_a_missing_or_damaged_family_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"graphkerneldatasets/TOY\.zip"):
        TUFamily("TOY").read(Rng(0), tmp_path)
    monkeypatch.delenv("FEDBOLIC_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="FEDBOLIC_DATA is not set"):
        TUFamily("TOY").read(Rng(0), None)
    write(tmp_path / "TOY", {**TOY, "graph_indicator": "1\nx\n"})
    with pytest.raises(ValueError, match="is damaged"):
        TUFamily("TOY").read(Rng(0), tmp_path)


def test_a_family_without_labels_is_refused(tmp_path):
    write(tmp_path / "TOY", {name: text for name, text in TOY.items() if name != "graph_labels"})
    with pytest.raises(ValueError, match="no graph labels"):
        TUFamily("TOY").read(Rng(0), tmp_path)


def test_generated_graphs_are_trees_and_rings_of_the_given_sizes():
    family = TreesAndRings(num_graphs=12, least=4, most=9, rewired=0.0)
    union = family.read(Rng(3), None)
    for i in range(12):
        one = pick_graphs(union, torch.tensor([i]))
        graph = nx.empty_graph(len(one))
        graph.add_edges_from(one.edges.T.tolist())
        assert 4 <= len(one) <= 9
        assert set(one.labels.tolist()) == {i % 2}
        if i % 2:
            assert nx.is_biconnected(graph)
        else:
            assert nx.is_tree(graph)
    assert torch.equal(union.edges, family.read(Rng(3), None).edges)
    assert not torch.equal(union.edges.sum(), family.read(Rng(4), None).edges.sum())


def test_rewiring_moves_the_given_share_of_edges():
    union = TreesAndRings(num_graphs=400, least=40, most=40, rewired=0.5).read(Rng(0), None)
    path = torch.stack((union.edges[0] % 40, union.edges[1] % 40))
    rings = union.labels[union.edges[0]] == 1
    kept = ((path[1] - path[0]) % 40 == 1) & rings
    # 200 rings of 40 edges, of which half are kept; a random edge is one of a ring's rarely
    assert float(kept.sum()) / (200 * 40) == pytest.approx(0.5, abs=0.05)


def test_files_are_read_as_pyg_reads_them(tmp_path):
    """Labels of nodes with gaps, two columns of them, attributes, and repeated edges."""
    parts = TOY | {
        "A": TOY["A"] + "1, 2\n",
        "node_labels": "5, 0\n9, 1\n5, 0\n7, 3\n5, 0\n",
        "node_attributes": "".join(f"{i / 7}, -{i}e-3\n" for i in range(5)),
    }
    write(tmp_path / "TOY", parts)
    union = TUFamily("TOY").read(Rng(0), tmp_path)
    theirs, _, _ = read_tu_data(str(tmp_path / "TOY"), "TOY")
    assert torch.equal(union.features, theirs.x)
    assert torch.equal(union.labels, theirs.y[union.batch])
    starts = torch.tensor([0, 0, 0, 3, 3])
    local = union.edges - starts[union.edges[0]]
    assert torch.equal(local, theirs.edge_index)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("A", "1, 6\n"),
        ("graph_indicator", "1\n1\n1\n3\n3\n"),
        ("graph_indicator", "1\n1\n1\n2\n"),
        ("graph_labels", "1\n"),
        ("graph_labels", "1.5\n2\n"),
        ("node_labels", "1\n2\n3\n4\n9000\n"),
        ("node_attributes", "nan\n1\n1\n1\n1\n"),
        ("A", ""),
    ],
)
def test_numbers_that_do_not_fit_are_refused(part, text, tmp_path):
    write(tmp_path / "TOY", TOY | {part: text})
    with pytest.raises(ValueError, match="TOY is damaged"):
        TUFamily("TOY").read(Rng(0), tmp_path)
