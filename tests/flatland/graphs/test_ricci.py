"""Forman-Ricci curvature by hand and by brute force, and the estimators based on it."""

import networkx
import pytest
import torch

from fedbolic.data import Graph
from fedbolic.data.graphs.graph import simple_edges
from flatland import Constant, FormanAbs, FormanInverse, InverseDegree
from flatland.graphs.ricci import forman, forman_augmented, mean_ricci
from tests.flatland.cases import complete, graph_of, path, star

ESTIMATORS = [FormanInverse(), FormanAbs(), InverseDegree(), Constant(2.0)]


def edge_values(graph, values):
    return {(i, j): v for i, j, v in zip(*graph.edges.tolist(), values.tolist(), strict=True)}


def by_brute_force(graph):
    """Curvature by counting cells: 2 for the edge's ends, plus triangles, minus parallel edges.

    An edge is parallel to one that shares a node but no triangle with it (Forman's definition with
    unit weights: #faces + 2 - #parallel edges; faces are the triangles).
    """
    edges = {frozenset(pair) for pair in graph.edges.T.tolist()}
    found = {}
    for edge in edges:
        i, j = sorted(edge)
        triangles = [
            k for k in range(len(graph)) if {frozenset((i, k)), frozenset((j, k))} <= edges
        ]
        sides = {frozenset((end, k)) for end in (i, j) for k in triangles}
        parallel = [other for other in edges if len(other & edge) == 1 and other not in sides]
        found[i, j] = found[j, i] = len(triangles) + 2 - len(parallel)
    return found


@pytest.mark.parametrize(
    ("pairs", "n", "plain", "augmented"),
    [
        (complete(3), 3, {0}, {3}),  # 4 - 2 - 2, plus 3 for one triangle
        (complete(5), 5, {-4}, {5}),  # 4 - 4 - 4, plus 9 for three triangles
        (path(2), 2, {2}, {2}),
        (path(5), 5, {1, 0}, {1, 0}),  # a node at the end has degree 1
        (star(6), 6, {-2}, {-2}),  # 4 - 5 - 1
    ],
)
def test_forman_by_hand(pairs, n, plain, augmented):
    graph = graph_of(pairs, n)
    assert set(forman(graph).tolist()) == plain
    assert set(forman_augmented(graph).tolist()) == augmented


@pytest.mark.parametrize("seed", range(4))
def test_augmented_forman_counts_cells(seed):
    pairs = list(networkx.gnp_random_graph(12, 0.4, seed=seed).edges)
    graph = graph_of(pairs, 12)
    values = edge_values(graph, forman_augmented(graph))
    expected = by_brute_force(graph)
    assert values == expected
    assert mean_ricci(graph) == pytest.approx(sum(expected.values()) / len(expected))


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_formula_is_nodes_over_edges(seed):
    pairs = list(networkx.gnp_random_graph(15, 0.2, seed=seed).edges)
    graph = graph_of(pairs, 15)
    degree = graph.degrees.double()
    undirected = graph.edges[:, graph.edges[0] < graph.edges[1]]
    k = (1 / degree[undirected[0]] + 1 / degree[undirected[1]]).mean()
    assert 1 / InverseDegree().c(graph) == pytest.approx(float(k))


def test_estimators_on_a_star_by_hand():
    graph = graph_of(star(6), 6)  # Ric = -2
    assert FormanInverse().c(graph) == 2.0
    assert FormanAbs().c(graph) == 0.5
    assert InverseDegree().c(graph) == pytest.approx(5 / 6)
    assert Constant(3.0).c(graph) == 3.0


@pytest.mark.parametrize("pairs", [[], complete(6), path(2)])
def test_a_graph_that_is_not_negatively_curved_gets_a_nearly_flat_space(pairs):
    assert FormanInverse().c(graph_of(pairs, 6)) == 0.1


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("pairs", [[], star(400), complete(20), path(400)])
def test_curvatures_lie_inside_the_bounds(estimator, pairs):
    assert 1e-2 < estimator.c(graph_of(pairs, 400)) < 1e2


def test_isolated_nodes_and_self_loops_do_not_count():
    lonely = graph_of(star(6), 9)
    assert mean_ricci(lonely) == mean_ricci(graph_of(star(6), 6))
    assert InverseDegree().c(lonely) == pytest.approx(5 / 6)
    looped = simple_edges(torch.tensor([[0, 1, 1], [1, 1, 2]]), 3)
    assert set(forman(Graph(torch.eye(3), looped, torch.arange(3))).tolist()) == {1}


@pytest.mark.parametrize("value", [0.0, -1.0, 100.0, 0.01])
def test_a_constant_outside_the_bounds_is_refused(value):
    with pytest.raises(ValueError, match="value must"):
        Constant(value)
