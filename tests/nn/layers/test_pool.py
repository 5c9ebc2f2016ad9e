"""Centroids of the nodes of each graph of a batch, compared with a loop over the graphs."""

import pytest
import torch
from torch_geometric.nn import global_mean_pool

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import CentroidPool
from tests.nn.cases import points

every_kind = pytest.mark.parametrize("kind", [Lorentz, Poincare])


def nodes(kind, c, n, dtype=torch.float64):
    v = torch.randn(n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return points(kind, c, v).to(dtype)


def alone(pool, x, weights, batch, size):
    """Centroids from one call per graph."""
    space, rows = pool.manifold, []
    for graph in range(size):
        own = batch == graph
        given = None if weights is None else weights[own]
        origin = space.origin(x.shape[1], dtype=x.dtype)
        rows.append(pool(x[own], given) if own.any() else origin)
    return torch.stack(rows)


@every_kind
@pytest.mark.parametrize("c", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ([0, 0, 0, 1, 1, 2], None),
        ([2, 0, 1, 0, 2, 2], None),  # unsorted
        ([0, 0, 3, 3, 3, 1], None),  # graph 2 has no nodes
        ([0, 1, 1, 1, 1, 1], 5),  # the last graphs have none either
        ([0, 0, 0, 0, 0, 0], 1),
    ],
)
def test_a_batch_is_pooled_as_its_graphs_one_by_one(kind, c, weighted, batch, size):
    x, batch = nodes(kind, c, len(batch)), torch.tensor(batch)
    weights = torch.linspace(0.1, 2.0, len(x), dtype=x.dtype) if weighted else None
    pool = CentroidPool(kind(c=c))
    found = pool(x, weights, batch=batch, size=size)
    expected = alone(pool, x, weights, batch, size or int(batch.max()) + 1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_in_flat_space_it_is_pyg_s_mean():
    x, batch = nodes(Poincare, 1.0, 9), torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2])
    found = CentroidPool(Poincare(c=0.0))(x, batch=batch)
    torch.testing.assert_close(found, global_mean_pool(x, batch))
    assert CentroidPool(Poincare())(x[:0], batch=batch[:0], size=2).tolist() == [[0.0] * 3] * 2


@every_kind
def test_gradients_are_those_of_the_graphs_one_by_one(kind):
    x, batch = nodes(kind, 1.0, 6).requires_grad_(), torch.tensor([1, 0, 0, 3, 1, 1])
    pool = CentroidPool(kind())
    weights = torch.linspace(0.1, 2.0, 6, dtype=x.dtype).requires_grad_()
    given = (x, weights)
    (found,) = [torch.autograd.grad(pool(x, weights, batch=batch).sin().sum(), given)]
    expected = torch.autograd.grad(alone(pool, x, weights, batch, 4).sin().sum(), given)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pool_keeps_the_type_of_its_points(kind, dtype):
    x = nodes(kind, 1.0, 6, dtype)
    assert CentroidPool(kind())(x, batch=torch.tensor([0, 0, 1, 1, 1, 1])).dtype == dtype
