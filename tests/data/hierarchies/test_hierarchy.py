"""Hierarchies: closure, depths and membership compared with networkx and brute force."""

from itertools import pairwise

import networkx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.data import Hierarchy, balanced_tree


@st.composite
def edge_lists(draw):
    """Number of nodes, and the edges of a directed acyclic graph on them in any order."""
    n = draw(st.integers(1, 9))
    rank = draw(st.permutations(range(n)))
    possible = [(rank[i], rank[j]) for i in range(n) for j in range(i)]
    edges = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    return n, edges


def hierarchy_of(n, edges):
    pairs = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    return Hierarchy(tuple(f"node {i}" for i in range(n)), pairs)


def digraph_of(n, edges):
    graph = networkx.DiGraph(edges)
    graph.add_nodes_from(range(n))
    return graph


@given(edge_lists())
def test_the_closure_is_that_of_networkx_in_ascending_order(case):
    closed = hierarchy_of(*case).closure()
    expected = networkx.transitive_closure_dag(digraph_of(*case)).edges
    assert closed.pairs.tolist() == sorted(map(list, expected))


@given(edge_lists())
def test_a_closure_is_its_own_closure(case):
    closed = hierarchy_of(*case).closure()
    assert torch.equal(closed.closure().pairs, closed.pairs)


@given(edge_lists())
def test_the_depth_is_the_length_of_the_longest_path_upwards(case):
    graph, hierarchy = digraph_of(*case), hierarchy_of(*case)
    above = [graph.subgraph({node, *networkx.descendants(graph, node)}) for node in range(case[0])]
    expected = [networkx.dag_longest_path_length(part) for part in above]
    assert hierarchy.depths.tolist() == expected
    assert hierarchy.closure().depths.tolist() == expected


@given(edge_lists())
def test_the_ancestors_of_a_node_are_listed_in_ascending_order(case):
    n, edges = case
    hierarchy = hierarchy_of(n, edges)
    lists = hierarchy.ancestors.tensor_split(hierarchy.offsets[1:-1])
    assert [part.tolist() for part in lists] == [
        sorted(v for u, v in edges if u == node) for node in range(n)
    ]
    assert int(hierarchy.offsets[-1]) == hierarchy.num_pairs == len(edges)


@given(edge_lists())
def test_membership_is_that_of_the_set_of_pairs(case):
    n, edges = case
    hierarchy, nodes = hierarchy_of(n, edges), torch.arange(n)
    contained = [[(u, v) in edges for v in range(n)] for u in range(n)]
    related = [[u == v or (u, v) in edges or (v, u) in edges for v in range(n)] for u in range(n)]
    assert hierarchy.contains(nodes[:, None], nodes).tolist() == contained
    assert hierarchy.related(nodes[:, None], nodes).tolist() == related


@given(edge_lists(), st.data())
def test_a_cycle_is_refused_with_its_members(case, data):
    n, edges = case
    graph = digraph_of(n, edges)
    back = [(v, u) for u in graph for v in networkx.descendants(graph, u)]
    if back:
        edges = [*edges, data.draw(st.sampled_from(back))]
        with pytest.raises(ValueError, match="a hierarchy has no cycles") as refusal:
            hierarchy_of(n, edges)
        chain = str(refusal.value).split("form ")[1].split(":")[0].split(" -> ")
        path = [int(name.removeprefix("node ")) for name in chain]
        assert path[0] == path[-1]
        assert len(set(path)) == len(path) - 1
        assert set(pairwise(path)) <= set(edges)


def test_a_cycle_between_other_nodes_is_named():
    edges = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 1], [2, 4]])
    with pytest.raises(ValueError, match=r"form b -> c -> d -> b: leave"):
        Hierarchy(("a", "b", "c", "d", "root"), edges)


def test_membership_is_the_same_under_vmap():
    tree, nodes = balanced_tree(2, 3), torch.arange(15)
    found = torch.vmap(tree.related, in_dims=(0, None))(nodes, nodes)
    assert torch.equal(found, tree.related(nodes[:, None], nodes))


@pytest.mark.parametrize("node", [7, -8])
def test_a_node_that_does_not_exist_is_related_to_none(node):
    tree = balanced_tree(2, 2)
    for u, v in ((node, 0), (0, node)):
        with pytest.raises(IndexError, match="out of bounds"):
            tree.related(torch.tensor([u]), torch.tensor([v]))


def test_pairs_keep_their_order_and_need_not_be_closed():
    edges = [[2, 3], [0, 1], [1, 2]]
    assert hierarchy_of(4, edges).pairs.tolist() == edges


@pytest.mark.parametrize(
    ("names", "pairs", "error"),
    [
        ((), [], r"at least one node"),
        (("a", "b", "a"), [[0, 1]], r"'a' comes 2 times"),
        (("a", "b"), [[0, 2]], r"names node 2, but nodes are 0 \.\. 1"),
        (("a", "b"), [[0, -1]], r"names node -1, but nodes are 0 \.\. 1"),
        (("a", "b"), [[0, 1], [1, 1]], r"relates 'b' to itself"),
        (("a", "b", "c"), [[1, 2], [0, 1], [1, 2]], r"the pair 'b', 'c' is repeated"),
    ],
)
def test_what_is_no_hierarchy_is_refused(names, pairs, error):
    with pytest.raises(ValueError, match=error):
        Hierarchy(names, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2))


def test_a_hierarchy_stays_where_it_is():
    tree = balanced_tree(2, 2)
    assert tree.to("cpu") is tree


@pytest.mark.gpu
def test_a_hierarchy_on_a_gpu_is_the_same():
    tree = balanced_tree(3, 3)
    sent, nodes = tree.to("cuda"), torch.arange(len(tree), device="cuda")
    found = sent.related(nodes[:, None], nodes)
    assert found.is_cuda
    assert torch.equal(found.cpu(), tree.related(nodes.cpu()[:, None], nodes.cpu()))
    assert torch.equal(sent.depths.cpu(), tree.depths)
    assert torch.equal(sent.closure().pairs.cpu(), tree.pairs)
