"""Trees and taxonomies: structure by networkx and by hand, the random tree by its distribution."""

from collections import Counter

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedbolic.core.rng import Rng
from fedbolic.data import balanced_tree, random_tree, taxonomy


def parents_of(tree):
    """Parent of every node but the root: the ancestor that is one level higher."""
    (above,) = (tree.depths[tree.pairs[:, 0]] == tree.depths[tree.pairs[:, 1]] + 1).nonzero().T
    return dict(tree.pairs[above].tolist())


@pytest.mark.parametrize(("branching", "depth"), [(1, 4), (2, 0), (2, 4), (3, 3)])
def test_a_balanced_tree_is_that_of_networkx(branching, depth):
    tree, expected = balanced_tree(branching, depth), networkx.balanced_tree(branching, depth)
    down = networkx.bfs_tree(expected, 0)
    assert len(tree) == down.number_of_nodes()
    closure = networkx.transitive_closure_dag(down.reverse())
    assert tree.pairs.tolist() == sorted(map(list, closure.edges))
    levels = networkx.shortest_path_length(down, 0)
    assert tree.depths.tolist() == [levels[node] for node in range(len(tree))]


@given(st.integers(1, 30), st.integers(0, 2**32))
def test_a_random_tree_has_one_earlier_parent_at_every_node_but_the_root(num_nodes, seed):
    tree = random_tree(num_nodes, Rng(seed))
    parents = parents_of(tree)
    assert list(parents) == list(range(1, num_nodes))
    assert all(parent < node for node, parent in parents.items())
    # in a tree, a node has as many ancestors as its depth
    assert tree.offsets.diff().tolist() == tree.depths.tolist()


def test_all_recursive_trees_are_equally_likely():
    trees = [tuple(parents_of(random_tree(4, Rng(0).at(i))).values()) for i in range(600)]
    counts = Counter(trees)
    assert set(counts) == {(0, j, k) for j in range(2) for k in range(3)}
    assert chisquare(list(counts.values())).pvalue > 1e-6


def test_the_same_stream_gives_the_same_tree():
    first, again, other = (parents_of(random_tree(50, Rng(seed))) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_a_taxonomy_has_its_labels_first_and_relates_them_to_all_above():
    labels = taxonomy(
        {"oak": "tree", "trout": "fish", "maple": "tree", "fish": "animal", "tree": "plant"}
    )
    assert labels.names == ("oak", "trout", "maple", "fish", "tree", "animal", "plant")
    found = {(labels.names[u], labels.names[v]) for u, v in labels.pairs.tolist()}
    direct = {("fish", "animal"), ("tree", "plant"), ("oak", "tree"), ("maple", "tree")}
    assert found == {
        *direct,
        *{("trout", "fish"), ("oak", "plant"), ("maple", "plant"), ("trout", "animal")},
    }
    assert labels.depths.tolist() == [2, 2, 2, 1, 1, 0, 0]


def test_superclasses_of_classes_are_a_forest_of_two_levels():
    superclasses = taxonomy({f"class {i}": f"superclass {i % 20}" for i in range(100)})
    assert len(superclasses) == 120
    assert superclasses.pairs.tolist() == [[i, 100 + i % 20] for i in range(100)]


@pytest.mark.parametrize(
    ("parents", "error"),
    [
        ({"cat": "cat"}, "relates 'cat' to itself"),
        ({"cat": "pet", "pet": "cat"}, "form (cat -> pet -> cat|pet -> cat -> pet)"),
        ({}, "at least one node"),
    ],
)
def test_labels_without_order_are_no_taxonomy(parents, error):
    with pytest.raises(ValueError, match=error):
        taxonomy(parents)


def test_a_tree_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="branching must be at least 1, got 0"):
        balanced_tree(0, 3)
    with pytest.raises(ValueError, match="depth must be at least 0, got -1"):
        balanced_tree(2, -1)
    with pytest.raises(ValueError, match="num_nodes must be at least 1, got 0"):
        random_tree(0, Rng(0))
