"""Layouts of trees: brute force over small forests, laws over random ones, and hard shapes."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

from fedbolic.data import BalancedTree
from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.hierarchies import TreeLayout
from fedbolic.nn.loss.ranking import rank_and_map

WAYS = [("gaps", 2), ("sectors", 2), ("boxes", 2), ("boxes", 4)]
ways = pytest.mark.parametrize(("way", "dim"), WAYS)


def forest(parents):
    """The hierarchy of a list of parents; -1 at roots."""
    pairs = [(child, parent) for child, parent in enumerate(parents) if parent >= 0]
    names = tuple(str(node) for node in range(len(parents)))
    return Hierarchy(names, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2))


@st.composite
def forests(draw, most=40):
    """Parents of a random forest of at most so many nodes, which is bushy, deep or in pieces."""
    reach = draw(st.sampled_from([1, 3, 40]))
    parents = [-1]
    for node in range(1, draw(st.integers(1, most))):
        near = st.integers(max(0, node - reach), node - 1)
        parents.append(draw(near | st.just(-1) if draw(st.booleans()) else near))
    return parents


def score(places, hierarchy):
    """MAP of the pairs of a hierarchy."""
    return rank_and_map(
        lambda rows: places[rows].cdist(places), hierarchy.pairs, num_nodes=len(hierarchy)
    ).mean_average_precision


def orders(places, parents):
    """The other nodes by distance and the ancestors, the parent first, of every node."""
    for node, nearest in enumerate(places.cdist(places).argsort(1).tolist()):
        above, line = parents[node], []
        while above >= 0:
            line.append(above)
            above = parents[above]
        yield [v for v in nearest if v != node], line


@given(forests())
def test_by_gaps_ancestors_precede_all_other_nodes(parents):
    for layout in (TreeLayout(), TreeLayout(room=0.2)):
        for order, line in orders(layout.place(forest(parents)), parents):
            assert set(order[: len(line)]) == set(line)


@given(forests(12))
def test_by_gaps_parents_come_first_in_forests_that_64_bits_hold(parents):
    for layout in (TreeLayout(), TreeLayout(room=0.2)):
        for order, line in orders(layout.place(forest(parents)), parents):
            assert order[:1] == line[:1] or not line


@pytest.mark.parametrize("objective", ["closure", "parents", "both"])
@ways
@given(forests())
def test_every_node_has_a_place_of_its_own_whatever_the_forest(way, dim, objective, parents):
    hierarchy = forest(parents)
    places = TreeLayout(way, objective, dim=dim).place(hierarchy)
    assert (len(places), places.dim) == (len(parents), dim)
    distances = places.cdist(places)
    assert distances.isfinite().all()
    assert (distances.fill_diagonal_(math.inf) > 0).all()


@ways
@given(forests(), st.data())
def test_later_nodes_move_no_earlier_ones(way, dim, parents, data):
    batches = []
    for parent in parents:
        batches.append(data.draw(st.integers(batches[parent] if parent >= 0 else 0, 2)))
    batches = np.array(batches)
    layout = TreeLayout(way, dim=dim, room=0.2)
    try:
        places = layout.place(forest(parents), torch.tensor(batches))
    except ValueError as error:  # a long chain of later nodes, by name
        assume("too few bits" not in str(error))
        raise
    for last in sorted(set(batches.tolist()))[:-1]:
        kept = (batches <= last).nonzero()[0]
        number = {int(node): k for k, node in enumerate(kept)} | {-1: -1}
        before = layout.place(
            forest([number[parents[node]] for node in kept]), torch.tensor(batches[kept])
        )
        for name, tensor in places[torch.tensor(kept)].tensors().items():
            assert_close(tensor, before.tensors()[name], rtol=0, atol=0)


@ways
def test_a_tenth_of_leaves_added_later_costs_less_than_a_hundredth(way, dim):
    tree = BalancedTree(branching=4, depth=4).read(None, download=False)
    inner = set(tree.pairs[:, 1].tolist())
    leaves = [node for node in range(len(tree)) if node not in inner]
    batches = torch.zeros(len(tree), dtype=torch.int64)
    batches[leaves[::10]] = 1
    layout = TreeLayout(way, "closure", dim=dim, room=0.1)
    closure = tree.closure()
    assert score(layout.place(tree, batches), closure) > score(layout.place(tree), closure) - 0.01


@ways
def test_direct_edges_and_their_closure_are_laid_out_alike(way, dim):
    graph = nx.gn_graph(60, seed=1)
    hierarchy = Hierarchy(tuple(map(str, graph)), torch.tensor(list(graph.edges)))
    layout = TreeLayout(way, dim=dim)
    one, two = (layout.place(h).tensors() for h in (hierarchy, hierarchy.closure()))
    assert_close(one, two, rtol=0, atol=0)


def test_the_primary_parent_is_the_deepest_and_copies_stand_near_every_ancestor():
    edges = torch.tensor([[1, 0], [2, 1], [3, 0], [4, 3], [4, 2], [5, 4], [6, 0], [5, 6], [7, 6]])
    diamond = Hierarchy(tuple("abcdefgh"), edges)
    assert diamond.primary_parents.tolist() == [-1, 0, 1, 0, 2, 4, 0, 6]
    closure = diamond.closure()
    single = TreeLayout(objective="closure").place(diamond)
    for given_pairs in (diamond, closure):
        places, nodes = TreeLayout(objective="closure").place_copies(given_pairs)
        graph = nx.DiGraph(edges.tolist())
        paths = [len(list(nx.all_simple_paths(graph, v, 0))) if v else 1 for v in range(8)]
        assert nodes.bincount().tolist() == paths
        between = places.cdist(places)
        nearest = torch.full((8, 8), math.inf, dtype=torch.float64)
        for i, u in enumerate(nodes):
            for j, v in enumerate(nodes):
                nearest[u, v] = min(nearest[u, v], between[i, j])
        found = rank_and_map(lambda rows, d=nearest: d[rows], closure.pairs, num_nodes=8)
        assert found.mean_average_precision == 1 > score(single, closure)


@pytest.mark.parametrize(
    "parents",
    [
        [-1],
        [-1, -1],
        [-1, *range(1000)],
        [-1] + [0] * 3000,
        [-1, *(2 * (node // 2) for node in range(1000))],
    ],
    ids=["one", "two roots", "chain", "star", "caterpillar"],
)
@pytest.mark.parametrize(("way", "dim"), [("gaps", 2), ("sectors", 2)])
def test_hard_shapes_have_places_and_finite_distances(parents, way, dim):
    hierarchy = forest(parents)
    places = TreeLayout(way, "closure", dim=dim).place(hierarchy)
    rows = torch.tensor([len(parents) - 1, len(parents) // 2])
    distances = places[rows].cdist(places)
    assert distances.isfinite().all()
    assert ((distances == 0).sum(1) == 1).all()


def test_a_star_and_a_chain_keep_their_order():
    star = forest([-1] + [0] * 500)
    chain = forest([-1, *range(40)])
    for objective in ("closure", "both"):
        layout = TreeLayout(objective=objective)
        assert score(layout.place(star), star) == 1
        assert score(layout.place(chain), chain.closure()) == 1


def test_boxes_fit_into_the_ball_in_float32():
    tree = BalancedTree(branching=3, depth=5).read(None, download=False)
    places = TreeLayout("boxes", "closure", dim=5).place(tree)
    ball = places.to_poincare(torch.float32)
    assert ball.square().sum(1).max() < 1
    assert score(places, tree.closure()) > 0.9


def test_32_bits_hold_a_tree_that_64_bits_hold():
    tree = BalancedTree(branching=3, depth=5).read(None, download=False)
    narrow = TreeLayout(bits=32).place(tree)
    assert narrow.tensors()["turns"].dtype == torch.int32
    assert score(narrow, tree.closure()) > 0.99


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 3}, "gaps lie in the plane, not in 3 dimensions"),
        ({"room": 1.0}, "room must lie in"),
        ({"way": "boxes", "radius": 0.0}, "radius must be"),
        ({"dim": 1}, "dim must be at least 2"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TreeLayout(**options)


def test_batches_that_no_layout_can_keep_are_refused():
    chain = forest([-1, 0, 1])
    layout = TreeLayout(room=0.1)
    with pytest.raises(ValueError, match="'1' is in an earlier batch than its parent '0'"):
        layout.place(chain, torch.tensor([1, 0, 0]))
    with pytest.raises(ValueError, match="later batches need room"):
        TreeLayout().place(chain, torch.tensor([0, 0, 1]))
    with pytest.raises(ValueError, match="for each of 3 nodes"):
        layout.place(chain, torch.tensor([0, 1]))
