"""The table of layouts: the page has what the file of figures gives; small trees are measured."""

import pytest
import torch

from benchmarks.hierarchies.layouts import (
    LAYOUT_FIGURES,
    MILLION,
    PARTS,
    ROWS,
    NewLeaves,
    keys,
    later_leaves,
    layouts_table,
    measure,
    new_leaves_table,
)
from benchmarks.results import Results
from fedbolic.data import Hierarchy, balanced_tree
from fedbolic.manifolds import Euclidean, ManifoldPlaces
from tests.benchmarks.kept_tables import assert_kept

BRANCHES = [(0, 1), (0, 2), (1, 9), (2, 9), *((3 + i, 1 + i % 2) for i in range(6))]
DIAMOND = Hierarchy(tuple("0123456789"), torch.tensor(BRANCHES)).closure()
"""Node 0 has the parents 1 and 2, each of which has three more children."""


def test_the_figures_of_the_page_are_those_of_the_file():
    known = Results(LAYOUT_FIGURES, quiet=True).known
    assert set(known) == {*keys(), MILLION}
    assert_kept(layouts_table(known), "hierarchies/layouts.csv")
    assert_kept(new_leaves_table(known), "hierarchies/new-leaves.csv")


@pytest.mark.parametrize("row", ["gaps, both", "gaps, both, room"])
def test_a_balanced_tree_is_measured(row):
    found = measure(ROWS[row], balanced_tree(3, 4))
    parts = [found[f"{of} {part}"] for of in ("closure", "direct") for part in range(PARTS)]
    assert parts == [100] * 2 * PARTS
    assert found["bits"] == 128


def test_all_parents_are_near_only_with_copies():
    def worst(row):
        return min(v for name, v in measure(ROWS[row], DIAMOND).items() if "closure" in name)

    assert worst("gaps, closure, copies") == 100
    assert worst("gaps, closure") < 100


def test_a_tenth_of_the_leaves_comes_later():
    tree = balanced_tree(3, 6)
    later = later_leaves(tree).bool()
    assert not later[tree.pairs[:, 1]].any()
    assert 0.05 < later.sum() / 3**6 < 0.15


def test_a_new_leaf_is_scored_among_the_nodes_that_are_left():
    edges = torch.tensor([[1, 0], [2, 0], [3, 1], [4, 1], [5, 2]])
    tree = Hierarchy(tuple("abcdef"), edges).closure()
    new = NewLeaves(tree, torch.tensor([0, 0, 0, 1, 0, 0]))
    assert new.kept.tolist() == [0, 1, 2, 4, 5]
    line = torch.tensor([[0.0], [1.0], [-1.0], [2.0], [-2.0], [1.9]])
    places = ManifoldPlaces(Euclidean(), line)
    # nearest to 1.9 are the sibling, the parent and the root
    found = new.scores("rule", lambda leaf: places[torch.tensor([5])], places[torch.arange(5)])
    expected = {"ancestors": (1 / 2 + 2 / 3) / 2, "parent": 1 / 2, "siblings": 1.0}
    assert found == pytest.approx({f"rule: {name}": 100 * of for name, of in expected.items()})
