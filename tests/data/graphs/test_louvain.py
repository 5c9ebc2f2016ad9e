"""Louvain partitions: modularity by networkx, sizes, seeds, and communities that are too large."""

import itertools

import networkx
import pytest
import torch
from networkx.algorithms.community import modularity

from fedbolic.core.rng import Rng
from fedbolic.data import IID, BlockModel, Graph, Graphs, Louvain
from fedbolic.data.graphs.graph import simple_edges
from tests.flatland.cases import complete, graph_of, path, star

GRAPHS = {
    "path": (path(11), 11),
    "complete": (complete(9), 9),
    "star and isolated nodes": (star(6), 10),
    "without edges": ([], 7),
    "two components": ([*path(5), (6, 7), (7, 8)], 9),
}


def blocks(seed=0):
    return BlockModel().read(Rng(seed), None, download=False)


def cliques(*sizes):
    """Complete graphs in a ring, with one edge from each to the next."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    inner = [(s + a, s + b) for s, n in zip(starts, sizes, strict=True) for a, b in complete(n)]
    ring = list(zip(starts, starts[1:] + starts[:1], strict=True))
    return graph_of([*inner, *ring], sum(sizes))


@pytest.mark.parametrize("num_clients", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_parts_cover_all_nodes_once_and_are_of_similar_size(name, num_clients):
    graph = graph_of(*GRAPHS[name])
    parts = Louvain(num_clients).parts(graph, Rng(0))
    assert len(parts) == num_clients
    assert sorted(torch.cat(parts).tolist()) == list(range(len(graph)))
    assert all((part.diff() > 0).all() for part in parts)
    sizes = [len(part) for part in parts]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= len(graph) // num_clients


def test_cliques_in_a_ring_are_found_and_merged_to_equal_sizes():
    sizes = (8, 4, 6, 8, 4, 6)
    parts = Louvain(3).parts(cliques(*sizes), Rng(0))
    ends = list(itertools.accumulate(sizes))
    whole = [set(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    for part in parts:
        held = set(part.tolist())
        assert len(held) == 12
        assert all(clique <= held or not clique & held for clique in whole)


def test_modularity_is_far_above_that_of_a_random_partition():
    graph = blocks()
    edges = networkx.Graph(graph.edges.T.tolist())
    edges.add_nodes_from(range(len(graph)))
    found = [
        modularity(edges, [set(part.tolist()) for part in parts])
        for parts in (Louvain(4).parts(graph, Rng(0)), IID(4).split(graph.labels, Rng(0)))
    ]
    assert found[0] > found[1] + 0.3


def test_a_community_that_is_too_large_is_cut_along_a_search():
    graph = graph_of(complete(9), 9)  # one community, whatever the seed
    assert sorted(part.tolist() for part in Louvain(3).parts(graph, Rng(0))) == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
    ]


def test_a_seed_of_its_own_fixes_the_parts_and_the_runs_seed_does_otherwise():
    graph = blocks()

    def parts(partition, seed):
        return [part.tolist() for part in partition.parts(graph, Rng(seed))]

    assert parts(Louvain(4, seed=3), 0) == parts(Louvain(4, seed=3), 1)
    assert parts(Louvain(4), 0) == parts(Louvain(4), 0)
    assert len({str(parts(Louvain(4), seed)) for seed in range(4)}) > 1


def test_a_larger_resolution_gives_smaller_pieces():
    graph = cliques(*[5] * 8)
    edges = networkx.Graph(graph.edges.T.tolist())
    counts = [
        len(list(Louvain(1, resolution=r)._pieces(edges, len(graph), seed=0))) for r in (0.2, 1.0)
    ]
    assert counts[0] < counts[1]


def test_a_federation_of_communities_is_loaded():
    data = Graphs(BlockModel(), Louvain(4)).load(Rng(0))
    kept = sum(client.train.graph.num_edges for client in data.clients)
    by_chance = sum(
        client.train.graph.num_edges for client in Graphs(BlockModel(), IID(4)).load(Rng(0)).clients
    )
    assert kept > 1.5 * by_chance


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_clients": 0}, "num_clients must be at least 1"),
        ({"resolution": 0.0}, "resolution must be a positive number"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Louvain(**wrong)


def test_more_clients_than_nodes_are_refused():
    edges = simple_edges(torch.tensor([[0, 1], [1, 2]]), 3)
    graph = Graph(torch.eye(3), edges, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="4 clients cannot share 3 nodes: ask for fewer"):
        Louvain(4).parts(graph, Rng(0))
