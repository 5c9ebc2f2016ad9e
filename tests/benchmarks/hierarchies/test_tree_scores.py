"""Scores of embedded trees against networkx, scipy and loops over all nodes."""

import itertools

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from benchmarks.hierarchies.tree_scores import (
    common_ancestor_score,
    distance_error,
    lowest_common_ancestors,
    tree_distances,
)
from fedbolic.core.rng import Rng
from fedbolic.data import Hierarchy, random_tree


def forest():
    """Two roots, 0 and 1, over a graph in which nodes have one or two parents."""
    generator = torch.Generator().manual_seed(2)
    edges = {(node, int(torch.randint(node, (), generator=generator))) for node in range(2, 40)}
    edges |= {(node, int(torch.randint(node, (), generator=generator))) for node in range(20, 30)}
    return Hierarchy(tuple(map(str, range(40))), torch.tensor(sorted(edges)))


GIVEN = {"forest": forest(), "tree": random_tree(30, Rng(1))}


def direct(hierarchy):
    graph = nx.DiGraph(hierarchy.pairs.tolist())
    return torch.tensor(sorted(nx.transitive_reduction(graph).edges))


@pytest.mark.parametrize("name", GIVEN)
def test_steps_are_those_of_networkx(name):
    hierarchy = GIVEN[name].closure()
    graph = nx.Graph(direct(hierarchy).tolist())
    graph.add_edges_from((root, "above") for root in np.flatnonzero(hierarchy.depths == 0))
    nodes = torch.tensor([7, 0, 3])
    found = tree_distances(hierarchy, direct(hierarchy), nodes)
    for row, node in zip(found.tolist(), nodes.tolist(), strict=True):
        expected = nx.single_source_shortest_path_length(graph, node)
        assert row == [expected[other] for other in range(len(hierarchy))]


def test_the_line_of_distances_is_the_best():
    generator = torch.Generator().manual_seed(0)
    t = torch.randint(1, 9, (200,), generator=generator)
    d = 3 + 2 * t + torch.randn(200, generator=generator)

    def mean_square(line):
        return float((((line[0] + line[1] * d - t) / t) ** 2).mean())

    best = minimize(mean_square, [0.0, 0.5], method="Nelder-Mead", options={"xatol": 1e-9})
    assert distance_error(d, t) == pytest.approx(best.fun**0.5, abs=1e-4)
    assert distance_error(torch.cat((d, d[:1] + 50)), torch.cat((t, t[:1] * 0))) == pytest.approx(
        distance_error(d, t)
    )


def ancestors(hierarchy):
    graph = nx.DiGraph(hierarchy.pairs.tolist())
    return {u: nx.descendants(graph, u) if u in graph else set() for u in range(len(hierarchy))}


@pytest.mark.parametrize("name", GIVEN)
def test_lowest_common_ancestors_are_the_deepest(name):
    hierarchy = GIVEN[name].closure()
    above, depths = ancestors(hierarchy), hierarchy.depths.tolist()
    pairs = [*itertools.combinations(range(len(hierarchy)), 2)]
    found = lowest_common_ancestors(hierarchy, torch.tensor(pairs)).tolist()
    for (u, v), node in zip(pairs, found, strict=True):
        common = above[u] & above[v]
        assert node == min(common, key=lambda w: (-depths[w], w), default=-1)


def test_the_rank_of_a_common_ancestor_is_that_of_a_loop():
    generator = torch.Generator().manual_seed(3)
    distances = torch.randint(6, (12, 12), generator=generator).double()  # with ties
    pairs = torch.tensor([[0, 5], [3, 4], [11, 2]])
    targets = torch.tensor([7, 1, 9])
    ranks = []
    for (u, v), target in zip(pairs.tolist(), targets.tolist(), strict=True):
        sums = {w: distances[u, w] + distances[v, w] for w in range(12) if w not in (u, v)}
        ranks.append(sum(bool(each <= sums[target]) for each in sums.values()))
    found = common_ancestor_score(lambda nodes: distances[nodes], pairs, targets)
    assert found == pytest.approx(sum(1 / rank for rank in ranks) / 3)
