"""Blocks with room for other graphs, compared with the graphs one by one."""

import pytest
import torch

from fedbolic.data import Graph
from flatland.graphs.blocks import GraphBlock, graph_block
from tests.flatland.cases import complete, graph_of, path, star

MATRICES = ("neighbours", "symmetric", "mean")


def graphs_of(*shapes, sparse=False):
    return tuple(graph_of(pairs, n, seed=n, sparse=sparse) for pairs, n in shapes)


def union(graph, sizes):
    """The graph, with its nodes shared out among several graphs; it has no edges between these."""
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return Graph(graph.features, graph.edges, graph.labels, batch=batch)


def touch(block):
    """Read all that a step may read, so that it is kept in the block."""
    for name in MATRICES:
        assert len(getattr(block, name).transposed.start)
    if isinstance(block.features, torch.Tensor):
        assert block.mixed("symmetric") is not None
    else:
        assert len(block.features.transposed.start)


def assert_is_that_of_each(block, graphs):
    """Every product is that of the graph alone, and gradients are; nothing comes from padding."""
    num_clients, n = block.shape
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(num_clients, 5, 3, generator=generator, dtype=torch.float64)
    x = torch.randn(num_clients, n, 3, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    seen = x.detach().clone()
    for i in range(num_clients):
        seen[i, len(graphs[i]) if i < len(graphs) else 0 :] = torch.nan
    assert block.num_nodes.tolist() == [len(g) for g in graphs] + [0] * (num_clients - len(graphs))
    for graph, numbers in zip(graphs, block.num_neighbours, strict=False):
        assert numbers[: len(graph)].equal(graph.degrees + 1)
        assert not numbers[len(graph) :].any()
    for name in MATRICES:
        found = block.gather(getattr(block, name), x)
        (back,) = torch.autograd.grad(found, x, seen)
        for i, graph in enumerate(graphs):
            alone, m = graph_block((graph,)), len(graph)
            own = x[i : i + 1, :m]
            expected = alone.gather(getattr(alone, name), own)
            torch.testing.assert_close(found[i, :m], expected[0])
            (grad,) = torch.autograd.grad(expected, own, own.detach())
            torch.testing.assert_close(back[i, :m], grad[0])
            assert not found[i, m:].any()
    mapped = block.map_features(weight)
    for i, graph in enumerate(graphs):
        features = graph.features.to_dense() if graph.features.is_sparse else graph.features
        torch.testing.assert_close(mapped[i, : len(graph)], features @ weight[i])
        torch.testing.assert_close(block.norms[i, : len(graph), 0], features.norm(dim=1))
        assert not mapped[i, len(graph) :].any()
    assert not mapped[len(graphs) :].any()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_block_takes_the_values_of_other_graphs(sparse):
    first = graphs_of((path(9), 9), (complete(6), 6), (star(6), 8), sparse=sparse)
    second = graphs_of((star(5), 7), ([], 2), sparse=sparse)
    block = GraphBlock.with_room(first, 4, None)
    touch(block)
    places = [x.data_ptr() for x in (block.norms, block.neighbours.transposed.value)]
    assert_is_that_of_each(block, first)
    for graphs in (second, first[::-1], second):
        assert block.fits(graphs)
        block.load(graphs)
        assert_is_that_of_each(block, graphs)
    assert places == [x.data_ptr() for x in (block.norms, block.neighbours.transposed.value)]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_copy_of_a_block_keeps_no_tensor_of_it(sparse):
    """A compiler would write small ones into its code, where other graphs never come."""
    first = graphs_of((path(9), 9), (star(6), 8), sparse=sparse)
    block, taken = GraphBlock.with_room(first, 2, None), []
    touch(block)
    copy = block.mapped(lambda x: taken.append(x) or x.clone())
    places = {x.data_ptr() for x in taken}
    assert block.mean.transposed.value.data_ptr() in places
    again = []
    copy.mapped(lambda x: again.append(x) or x)
    assert len(again) == len(taken)
    assert places.isdisjoint(x.data_ptr() for x in again)
    block.load(graphs_of(([], 2), sparse=sparse))
    assert_is_that_of_each(copy, first)


def test_a_block_of_several_graphs_a_client_takes_others():
    first = union(graph_of([], 6), (1, 2, 3)), union(graph_of(path(3), 5, seed=1), (3, 2))
    second = (union(graph_of([], 4), (1, 3)),)
    block = GraphBlock.with_room(first, 2, None)
    assert block.graph_sizes[:, :, 0].tolist() == [[1, 2, 3], [3, 2, 1]]
    block.load(second)
    assert block.graph_sizes[:, :, 0].tolist() == [[1, 3, 1], [1, 1, 1]]
    x = torch.arange(12, dtype=torch.float64).view(2, 6, 1)
    assert block.pool(x)[:, :, 0].tolist() == [[0, 1 + 2 + 3, 0], [0, 0, 0]]


def test_a_block_says_which_graphs_do_not_fit_and_a_larger_one_has_room_to_spare():
    small, wide, dense = graphs_of((path(8), 8), (path(9), 9), (complete(8), 8))
    block = GraphBlock.with_room((small,), 1, None)
    assert block.fits((small,))
    assert not block.fits((wide,))
    assert not block.fits((dense,))
    assert not block.fits((small, small))
    larger = GraphBlock.with_room((dense,), 2, block)
    assert larger.shape == (2, 9)
    assert larger.fits((small, wide))
    assert larger.fits((graph_of(complete(8), 9),))
