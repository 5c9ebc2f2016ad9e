"""The benchmark of classes that form a tree: distances, labels, scaling, both kinds of tables."""

import csv
import math
import random
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from benchmarks.class_trees import __main__ as class_trees
from benchmarks.class_trees import retrieval as retrieval_rows
from benchmarks.class_trees import rows as class_tree_rows
from benchmarks.class_trees.rows import (
    SUPERCLASSES,
    CosineScaling,
    SoftLabels,
    cones,
    distances,
    rows,
    tree_distances,
)
from benchmarks.results import Results
from fedbolic.core.rng import Rng
from fedbolic.data import HierarchySet, taxonomy
from fedbolic.federated import LocalTraining
from fedbolic.nn.network.backbone import MLP
from tests.hierarchies.forests import RandomTree


def test_distances_are_shortest_paths_below_a_common_root():
    nodes = RandomTree(40).read(None, download=False)
    edges = [(i, int(p)) for i, p in enumerate(nodes.primary_parents) if p >= 0]
    graph = nx.Graph(edges)
    leaves = sorted(set(range(40)) - {p for _, p in edges})
    expected = [[nx.shortest_path_length(graph, a, b) for b in leaves] for a in leaves]
    assert distances(RandomTree(40)).tolist() == expected
    assert set(distances(SUPERCLASSES).flatten().tolist()) == {0.0, 2.0, 4.0}


@dataclass(frozen=True)
class AnyNouns(HierarchySet):
    """A random tree some of whose nodes are the synsets of the classes."""

    names: tuple[str, ...]

    def read(self, root, *, download):
        above = RandomTree(len(self.names)).read(None, download=False).primary_parents.tolist()
        return taxonomy({self.names[i]: self.names[p] for i, p in enumerate(above) if p >= 0})


def test_distances_below_synsets_count_the_nearest_common_nodes_of_classes():
    with Path(class_tree_rows.__file__).with_name("synsets.csv").open(newline="") as lines:
        synsets = {row["class"]: row["synset"] for row in csv.DictReader(lines)}
    assert tuple(synsets) == SUPERCLASSES.read(None, download=False).names[:100]
    assert len({*synsets.values()}) == 100
    other = [f"other {i}" for i in range(200)]
    nouns = AnyNouns(tuple(random.Random(0).sample([*synsets.values(), *other], 300)))
    found = class_tree_rows._below_synsets(nouns, None)
    assert found.names[:100] == tuple(synsets)
    whole = nouns.read(None, download=False)
    graph = nx.DiGraph([(whole.names[a], whole.names[d]) for d, a in whole.pairs.tolist()])
    above = [{s, *nx.ancestors(graph, s)} for s in synsets.values()]
    # of a pair's common nodes, the one with most nodes above it
    nearest = {
        max(a & b, key=lambda node: graph.in_degree(node)) for a, b in combinations(above, 2)
    }
    assert len(found) == 100 + len(nearest)
    for i, j in combinations(range(0, 100, 7), 2):
        expected = 2 + len(nearest & (above[i] ^ above[j]))
        assert tree_distances(found, torch.tensor([i, j]))[0, 1] == expected


@pytest.mark.parametrize(("tree", "length"), [(SUPERCLASSES, 0.6), (RandomTree(40), 0.1)])
def test_the_edges_of_cones_on_a_longest_path_sum_to_the_slope(tree, length):
    layout = cones(tree, length).layout
    nodes = tree.read(None, download=False)
    longest = int(nodes.depths.max()) + (tree == SUPERCLASSES)
    assert layout.length == length
    assert sum(length * layout.growth**k for k in range(longest)) == pytest.approx(2.9)


def test_every_row_has_four_tries_which_differ_in_nothing_else():
    of_superclasses = rows(SUPERCLASSES, (0.6, 1.2))
    assert {len(tries) for tries in of_superclasses.values()} == {4}
    for tries in of_superclasses.values():
        of = [*tries.values()]
        assert {(m.rounds, m.local, m.backbone) for m in of} == {
            (of[0].rounds, of[0].local, of[0].backbone)
        }
        assert len({*tries.values()}) == 4


def test_soft_labels_are_those_of_the_paper_and_sharp_ones_the_labels():
    logits, labels = torch.randn(5, 100, generator=Rng(0).generator()), torch.arange(5) * 7
    expected = cross_entropy(logits, labels, reduction="none")
    assert_close(SoftLabels().losses(logits, labels), expected)
    tree = SUPERCLASSES.read(None, download=False)
    for row, label in enumerate(labels.tolist()):
        weights = []
        for other in range(100):
            same = tree.primary_parents[other] == tree.primary_parents[label]
            weights.append(math.exp(-1.5 * (0 if other == label else 1 if same else 2)))
        targets = torch.tensor(weights) / sum(weights)
        loss = -(targets * logits[row].log_softmax(0)).sum()
        assert_close(SoftLabels(sharpness=1.5).losses(logits, labels)[row], loss)


def test_scaling_gives_the_cosines_where_there_is_room_and_comes_close_elsewhere():
    wanted = 1 - distances(SUPERCLASSES) / 4
    points = CosineScaling(SUPERCLASSES).prototypes(100, 100, 0.9)
    assert_close(points @ points.T / 0.81, wanted, rtol=0, atol=1e-4)
    narrow = CosineScaling(SUPERCLASSES).prototypes(100, 50, 0.9)
    apart = (narrow @ narrow.T / 0.81 - wanted).abs()
    assert float(apart.max()) < 0.5
    assert float(apart.mean()) < 0.1


@pytest.fixture
def root(tmp_path, monkeypatch):
    """400 images of a pattern for every class, as the files that the benchmark reads."""
    y, draws = np.arange(400) % 100, np.random.default_rng(0)
    patterns = draws.integers(0, 200, (100, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    x = (patterns[y] + draws.integers(0, 3, (400, 32, 32, 3))).astype(np.uint8)
    np.savez(tmp_path / class_trees.FILE, x_train=x, y_train=y, x_test=x[:200], y_test=y[:200])
    monkeypatch.setattr(class_trees, "NUM_VALIDATION", 100)
    return tmp_path


def test_both_settings_are_printed_and_a_second_run_trains_nothing(root, monkeypatch, capsys):
    local = LocalTraining(1, 64)
    methods = {
        "softmax": SoftLabels(MLP((8,), dim=100), 1, local),
        "hyperbolic distance, boxes": class_tree_rows.fixed(
            0.1, class_tree_rows.CrossEntropy(), class_tree_rows.boxes(SUPERCLASSES, 5.0)
        ),
    }
    tries = {name: {"only": method} for name, method in methods.items()}
    monkeypatch.setattr(class_trees, "SEEDS", range(2))
    data = class_trees.load(root)
    assert [len(of.clients) for of in data.values()] == [1, 20]
    assert [len(of.holdout.test) for of in data.values()] == [300, 300]
    above = SUPERCLASSES.read(None, download=False).primary_parents
    for client in data["by superclass"].clients:
        labels = client.train.at(torch.arange(len(client.train)))["y"]
        assert len(set(above[labels].tolist())) == 1
    printed = []
    for _ in range(2):
        for setting, of in data.items():
            results = Results(root / "found.csv", quiet=True)
            class_trees.table(setting, of, tries, distances(SUPERCLASSES), results)
        printed.append(capsys.readouterr().out)
        monkeypatch.setattr(class_trees, "measure", None)
    assert printed[0] == printed[1]
    found = [line.split(" | ")[0] for line in printed[0].splitlines() if line.startswith("| ")]
    row = ["| row", "| softmax", f"| {class_trees.EXPECTED}", "| hyperbolic distance, boxes"]
    assert found == 2 * row


@pytest.mark.parametrize("row", retrieval_rows.ROWS)
def test_names_of_images_are_found(root, monkeypatch, row):
    monkeypatch.setattr(retrieval_rows, "STEPS", {"images": 60, "categories": 60})
    data = class_trees.load(root)["centrally"]
    found = retrieval_rows.NamesOfImages(data, 100).measure(row, 0.01, 0)
    assert found["test recall at 1"] <= found["test recall at 5"] <= found["test recall at 10"]
    assert found["test recall at 1"] > 50  # by chance 1
    assert -1 <= found["outward"] <= 1


@pytest.mark.parametrize("row", retrieval_rows.ROWS)
def test_parents_of_categories_are_found_by_their_words(monkeypatch, row):
    monkeypatch.setattr(retrieval_rows, "STEPS", {"images": 1, "categories": 100})
    monkeypatch.setattr(retrieval_rows, "NUM_VALIDATION", 20)
    monkeypatch.setattr(retrieval_rows, "NUM_TEST", 20)
    kinds = (
        "dog",
        "cat",
        "bird",
        "fish",
        "horse",
        "goat",
        "sheep",
        "duck",
        "mouse",
        "snake",
        "bee",
    )
    things = ("food", "bed", "toy", "house", "bowl", "brush", "doctor", "name", "song", "hat")
    above = {f"all > {kind}s": "all" for kind in kinds}
    parents = {f"{node} > {node[6:-1]} {thing}": node for node in above for thing in things} | above
    found = retrieval_rows.ParentsOfCategories(taxonomy(parents)).measure(row, 0.01, 0)
    assert found["test recall at 1"] > 50  # by chance 9
    assert found["test tree distance"] < 2
