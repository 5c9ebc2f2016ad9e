"""Link splits: every edge in one part, negatives without an edge, nothing held out in the graph."""

import math

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit

from fedbolic.core.rng import Rng
from fedbolic.data import Graph, LabelledPairs, LinkSplit, split_links
from fedbolic.data.graphs.graph import simple_edges
from fedbolic.data.graphs.link_split import assemble_links, pair_ranks, ranked_pairs

seeds = st.integers(0, 2**32)


def graph_of(network):
    """The graph of a networkx graph whose nodes are 0, 1, ..."""
    n = network.number_of_nodes()
    edges = torch.tensor(list(network.edges), dtype=torch.int64).reshape(-1, 2).T
    features = torch.arange(float(n))[:, None]
    return Graph(features, simple_edges(edges, n), torch.zeros(n, dtype=torch.int64))


def network_of(seed, nodes=30, edges=60):
    return nx.gnm_random_graph(nodes, edges, seed=seed)


def unordered(pairs):
    return [frozenset(pair) for pair in pairs.T.tolist()]


def positive(examples):
    return unordered(examples.pairs[:, examples.labels == 1])


def negative(examples):
    return unordered(examples.pairs[:, examples.labels == 0])


@given(seeds)
def test_parts_are_disjoint_and_cover_all_edges(seed):
    network = network_of(seed)
    split = split_links(graph_of(network), Rng(seed), validation=0.1, test=0.2)
    parts = [unordered(split.train), positive(split.validation), positive(split.test)]
    assert list(map(len, parts)) == [42, 6, 12]
    listed = [pair for part in parts for pair in part]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(map(frozenset, network.edges))


@given(seeds)
def test_the_graph_has_the_training_edges_and_all_nodes(seed):
    whole = graph_of(network_of(seed))
    split = split_links(whole, Rng(seed))
    assert set(unordered(split.graph.edges)) == set(unordered(split.train))
    assert split.graph.num_edges == split.train.shape[1]
    assert torch.equal(split.graph.features, whole.features)


@given(seeds)
def test_no_negative_example_is_an_edge_and_none_is_repeated(seed):
    network = network_of(seed)
    split = split_links(graph_of(network), Rng(seed), validation=0.1, test=0.2)
    listed = negative(split.validation) + negative(split.test)
    assert len(listed) == len(set(listed)) == 18
    assert set(listed) <= set(map(frozenset, nx.complement(network).edges))


@given(seeds)
def test_negatives_are_all_non_edges_if_as_many_are_needed(seed):
    network = nx.complement(network_of(seed, nodes=12, edges=6))
    split = split_links(graph_of(network), Rng(seed), validation=0.05, test=0.05)
    listed = negative(split.validation) + negative(split.test)
    assert set(listed) == set(map(frozenset, nx.complement(network).edges))


def test_sizes_are_those_of_pyg():
    whole = graph_of(network_of(0, nodes=50, edges=97))
    split = split_links(whole, Rng(0))
    data = Data(x=whole.features, edge_index=whole.edges)
    with torch.random.fork_rng(devices=[]):
        parts = RandomLinkSplit(num_val=0.05, num_test=0.1, is_undirected=True)(data)
    assert split.graph.edges.shape == parts[0].edge_index.shape
    assert len(split.validation) == len(parts[1].edge_label)
    assert len(split.test) == len(parts[2].edge_label)


def test_a_split_depends_on_the_seed_alone():
    whole = graph_of(network_of(0))
    before = torch.get_rng_state()
    first, same, other = (split_links(whole, Rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.test.pairs, same.test.pairs)
    assert not torch.equal(first.test.pairs, other.test.pairs)


def test_training_negatives_are_uniform_over_pairs_without_a_training_edge():
    split = split_links(graph_of(network_of(0, nodes=12, edges=30)), Rng(0), validation=0.1)
    known = nx.Graph(split.train.T.tolist())
    known.add_nodes_from(range(12))
    drawn = split.negatives(20_000, generator=torch.Generator().manual_seed(0))
    assert (drawn[0] < drawn[1]).all()
    pairs, counts = drawn.unique(dim=1, return_counts=True)
    assert set(unordered(pairs)) == set(map(frozenset, nx.complement(known).edges))
    assert chisquare(counts.numpy()).pvalue > 1e-6


def test_no_negatives_may_be_drawn():
    split = split_links(graph_of(network_of(0)), Rng(0))
    assert split.negatives(0, generator=torch.Generator()).shape == (2, 0)


@given(st.integers(0, 2**60 - 1))
def test_a_pair_is_found_from_its_number(rank):
    """In exact integers, ``j`` is the largest with ``j (j - 1) / 2 <= k``."""
    high = (1 + math.isqrt(8 * rank + 1)) // 2
    pair = ranked_pairs(torch.tensor([rank]))
    assert pair.flatten().tolist() == [rank - high * (high - 1) // 2, high]
    assert pair_ranks(pair).item() == pair_ranks(pair.flip(0)).item() == rank


@pytest.mark.parametrize("high", [2**20, 2**30, 2**30 + 12345])
def test_numbers_next_to_a_triangular_number_are_exact(high):
    corner = high * (high - 1) // 2
    pairs = ranked_pairs(torch.tensor([corner - 1, corner, corner + 1]))
    assert pairs.T.tolist() == [[high - 2, high - 1], [0, high], [1, high]]


@pytest.mark.parametrize(
    ("shares", "error"),
    [
        ({"validation": 1.5}, r"validation must lie in \[0, 1\], got 1.5"),
        ({"test": -0.1}, r"test must lie in \[0, 1\], got -0.1"),
        ({"validation": 0.01}, "got 54 for training, 0 for validation and 6 for test out of 60"),
        ({"validation": 0.5, "test": 0.5}, "got 0 for training, 30 for validation"),
    ],
)
def test_shares_that_leave_a_part_empty_are_refused(shares, error):
    with pytest.raises(ValueError, match=error):
        split_links(graph_of(network_of(0)), Rng(0), **shares)


def test_a_graph_with_too_few_non_edges_is_refused():
    with pytest.raises(ValueError, match=r"3 negatives need .* the graph has 0"):
        split_links(graph_of(nx.complete_graph(7)), Rng(0))


def test_a_complete_training_graph_has_no_negatives():
    edges = torch.combinations(torch.arange(4)).T
    none = LabelledPairs(torch.empty(2, 0, dtype=torch.int64), torch.empty(0))
    split = LinkSplit(graph_of(nx.complete_graph(4)), edges, none, none)
    with pytest.raises(ValueError, match="every pair of nodes is a training edge"):
        split.negatives(1, generator=torch.Generator())


def test_an_edge_in_two_parts_is_refused():
    whole = graph_of(nx.path_graph(6))
    edges = torch.tensor([[0, 1, 0, 2, 3, 4], [1, 2, 1, 3, 4, 5]])
    negatives = torch.tensor([[0, 0], [2, 3]])
    with pytest.raises(ValueError, match="an edge of validation is a training edge"):
        assemble_links(whole, edges, negatives, sizes=(1, 1))


def test_a_graph_with_held_out_edges_is_refused():
    whole = graph_of(nx.path_graph(6))
    split = split_links(whole, Rng(0), validation=0.2, test=0.2)
    with pytest.raises(ValueError, match="leave out all others"):
        LinkSplit(whole, split.train, split.validation, split.test)
