"""Unions of graphs and examples that are whole graphs, against networkx and PyG."""

import networkx as nx
import pytest
import torch
from torch_geometric.nn import global_mean_pool

from fedbolic.core.rng import Rng
from fedbolic.data import Graph, WholeGraphs, pick_graphs, unite_graphs
from fedbolic.data.graphs.graph import simple_edges


def random_graphs(num=5, *, seed=0):
    """Random graphs of networkx and the same as ``Graph``, labelled by their numbers."""
    made = [nx.gnp_random_graph(3 + i, 0.5, seed=seed + i) for i in range(num)]
    graphs = []
    for i, one in enumerate(made):
        ends = torch.tensor(list(one.edges), dtype=torch.int64).reshape(-1, 2).T
        x = torch.rand(len(one), 4, generator=Rng(i).generator())
        graphs.append(Graph(x, simple_edges(ends, len(one)), torch.full((len(one),), i)))
    return made, graphs


def as_networkx(graph):
    found = nx.empty_graph(len(graph))
    found.add_edges_from(graph.edges.T.tolist())
    return found


def test_a_union_is_the_disjoint_union_of_networkx():
    made, graphs = random_graphs()
    union = unite_graphs(graphs)
    expected = nx.disjoint_union_all(made)
    assert nx.utils.graphs_equal(as_networkx(union), expected)
    assert union.batch.tolist() == [i for i, one in enumerate(made) for _ in one]


def test_picked_graphs_are_those_graphs_in_the_given_order():
    _, graphs = random_graphs()
    index = torch.tensor([3, 0, 4])
    found = pick_graphs(unite_graphs(graphs), index)
    expected = unite_graphs([graphs[i] for i in index])
    for name in ("features", "edges", "labels", "batch"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_examples_without_edges_are_mean_features_as_in_pyg():
    _, graphs = random_graphs()
    union = unite_graphs(graphs)
    split = WholeGraphs(union, torch.tensor([4, 1]))
    expected = global_mean_pool(union.features, union.batch)[[4, 1]]
    examples = split.all()
    torch.testing.assert_close(examples["x"], expected)
    assert examples["y"].tolist() == examples["node"].tolist() == [4, 1]
    assert split.at(torch.tensor([1]))["y"].tolist() == [1]
    assert split.part(torch.tensor([1])).labels.tolist() == [1]
    assert split.no_inputs.shape == (0, 4)


def test_a_copy_in_another_dtype_keeps_the_batch():
    _, graphs = random_graphs()
    split = WholeGraphs(unite_graphs(graphs), torch.arange(2)).to("cpu", torch.float64)
    assert split.graph.features.dtype == torch.float64
    assert len(split.all()["y"]) == 2


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([0, 0, 2], "ascending order from 0, without a gap"),
        ([1, 1, 1], "ascending order from 0"),
        ([0, 1, 0], "ascending order from 0"),
        ([0, 0], "ascending order from 0"),
        ([0, 1, 1], "an edge joins nodes of two graphs"),
    ],
)
def test_a_batch_that_numbers_no_disjoint_graphs_is_refused(batch, words):
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match=words):
        Graph(torch.eye(3), edges, torch.zeros(3, dtype=torch.long), batch=torch.tensor(batch))


def test_examples_of_one_graph_are_refused_as_whole_graphs():
    edges = torch.empty(2, 0, dtype=torch.long)
    graph = Graph(torch.eye(3), edges, torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="unite them"):
        WholeGraphs(graph, torch.arange(1))


def test_features_of_other_widths_are_refused():
    edges = torch.empty(2, 0, dtype=torch.long)
    graphs = [Graph(torch.eye(n), edges, torch.zeros(n, dtype=torch.long)) for n in (2, 3)]
    with pytest.raises(ValueError, match=r"widths \[2, 3\]"):
        unite_graphs(graphs)
