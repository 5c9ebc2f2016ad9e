"""Graphs: edges and triangles compared with networkx, subgraphs by hand."""

import pickle

import networkx
import pytest
import torch

from fedbolic.core.types import Meta
from fedbolic.data import Client, Graph, GraphSplit
from fedbolic.data.graphs.graph import simple_edges


def graph_of(nx_graph, width=3):
    n = nx_graph.number_of_nodes()
    pairs = torch.tensor(list(nx_graph.edges), dtype=torch.int64).reshape(-1, 2).T
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, width, generator=generator)
    return Graph(x, simple_edges(pairs, n), torch.arange(n) % 2)


@pytest.fixture(params=[0, 1, 2])
def random_graph(request):
    return networkx.gnp_random_graph(20, 0.3, seed=request.param)


def test_edges_are_undirected_once_sorted_and_without_loops():
    edges = simple_edges(torch.tensor([[3, 0, 1, 2, 0], [1, 1, 0, 2, 1]]), 4)
    assert edges.tolist() == [[0, 1, 1, 3], [1, 0, 3, 1]]


def test_degrees_and_triangles_are_those_of_networkx(random_graph):
    graph = graph_of(random_graph)
    assert graph.num_edges == random_graph.number_of_edges()
    assert graph.degrees.tolist() == [d for _, d in random_graph.degree]
    for i, j, t in zip(*graph.edges.tolist(), graph.triangles.tolist(), strict=True):
        assert t == len(list(networkx.common_neighbors(random_graph, i, j)))


def test_every_node_is_among_its_neighbours(random_graph):
    graph = graph_of(random_graph)
    expected = [j for i in random_graph for j in sorted([i, *random_graph[i]])]
    assert graph.neighbours.tolist() == expected


def test_an_induced_graph_is_that_of_networkx(random_graph):
    graph, nodes = graph_of(random_graph), [2, 3, 5, 7, 11, 13]
    part = graph.induced(torch.tensor(nodes))
    assert torch.equal(part.features, graph.features[nodes])
    assert torch.equal(part.labels, graph.labels[nodes])
    expected = {tuple(sorted(edge)) for edge in random_graph.subgraph(nodes).edges}
    named = {tuple(sorted((nodes[i], nodes[j]))) for i, j in part.edges.T.tolist()}
    assert named == expected


def test_graphs_without_edges_or_with_one_node_are_graphs():
    one = Graph(torch.ones(1, 2), torch.zeros(2, 0, dtype=torch.int64), torch.tensor([0]))
    assert (one.num_edges, one.degrees.tolist(), one.triangles.tolist()) == (0, [0], [])
    assert one.neighbours.tolist() == [0]
    assert len(one.induced(torch.tensor([0]))) == 1


def test_what_is_no_graph_is_refused():
    with pytest.raises(ValueError, match=r"2 rows of features and 3 labels"):
        Graph(torch.ones(2, 2), torch.zeros(2, 0, dtype=torch.int64), torch.arange(3))
    with pytest.raises(ValueError, match=r"an edge ends at 2, but nodes are 0 \.\. 1"):
        Graph(torch.ones(2, 2), torch.tensor([[0, 2], [2, 0]]), torch.arange(2))
    one_way, loop, twice, disordered = (
        [[0], [1]],
        [[0], [0]],
        [[0, 0, 1, 1], [1, 1, 0, 0]],
        [[1, 0], [0, 1]],
    )
    for edges in (one_way, loop, twice, disordered):
        with pytest.raises(ValueError, match="simple_edges"):
            Graph(torch.ones(2, 2), torch.tensor(edges), torch.arange(2))


def test_the_splits_of_a_client_share_one_graph_wherever_they_are_sent():
    graph = graph_of(networkx.path_graph(5))
    splits = [GraphSplit(graph, torch.tensor([i])) for i in range(3)]
    sent = [split.to("cpu", torch.float64) for split in splits]
    assert sent[0].graph is sent[1].graph is sent[2].graph
    assert sent[0].graph.features.dtype == torch.float64
    assert splits[0].to("cpu", torch.float16).graph is not sent[0].graph
    assert graph.to("cpu", graph.features.dtype) is graph


@pytest.mark.parametrize("sparse", [False, True])
def test_a_split_gives_the_rows_of_its_nodes_on_the_device_and_in_the_dtype_asked_for(sparse):
    graph = graph_of(networkx.path_graph(5))
    dense = graph.features
    if sparse:
        graph = Graph(dense.to_sparse().coalesce(), graph.edges, graph.labels)
    split = GraphSplit(graph, torch.tensor([4, 0, 2]))
    batch = split.at(torch.tensor([2, 0]))
    assert torch.equal(batch["x"], dense[[2, 4]])
    assert batch["node"].tolist() == [2, 4]
    assert batch["y"].tolist() == [0, 0]
    client = Client(0, split, split, split, Meta(2, (3,), 1)).to("cpu", torch.float64)
    assert client.no_inputs.dtype == torch.float64
    assert client.no_inputs.shape == (0, 3)
    assert client.size == 3
    assert graph.to("cpu", torch.float32) is graph  # no copy if none is needed


def test_a_graph_that_was_moved_is_pickled():
    graph = Graph(torch.eye(2), torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1]))
    moved = graph.to("cpu", torch.float64)
    copy = pickle.loads(pickle.dumps(graph))
    assert torch.equal(copy.features, graph.features)
    assert torch.equal(copy.to("cpu", torch.float64).features, moved.features)
