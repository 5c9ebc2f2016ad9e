"""Sparse gradients of the torch optimisers: only their rows move, each as if it were alone."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedbolic.manifolds import Poincare
from fedbolic.nn import HyperbolicEmbedding
from fedbolic.optim.modules import RiemannianAdam
from tests.manifolds.cases import CURVED, normal
from tests.optim.torch_twins import (
    HEIGHT,
    close,
    every_method,
    every_space,
    every_twin,
    sparse_gradient,
    start,
)

BATCHES = [[1, 5], [5, 5, 2], [1], [0, 1, 2, 3, 4, 5, 6, 7], [5, 2]]


@every_space
@every_method
def test_sparse_rows_first_move_as_dense_ones_and_the_others_keep_their_bits(kind, options, space):
    sparse, dense = (nn.Parameter(start(space)) for _ in range(2))
    index = [6, 2, 6]  # the gradients of a repeated row add up
    sparse_gradient(sparse, index, normal(1, 3, sparse.shape[1]))
    dense.grad = sparse.grad.to_dense()
    kind([sparse], lr=0.1, space=space, **options).step()
    kind([dense], lr=0.1, space=space, **options).step()
    close(sparse[[2, 6]], dense[[2, 6]], 1e-12)
    others = [0, 1, 3, 4, 5, 7]
    assert torch.equal(sparse[others], start(space)[others])
    assert not torch.equal(sparse[[2, 6]], start(space)[[2, 6]])


@every_space
@every_method
def test_a_row_moves_as_if_it_were_a_parameter_alone(kind, options, space):
    table = nn.Parameter(start(space))
    rows = [nn.Parameter(row.clone()) for row in start(space)]
    optimizer, alone = (kind(p, lr=0.1, space=space, **options) for p in ([table], rows))
    for seed, index in enumerate(BATCHES):
        sparse_gradient(table, index, normal(seed, len(index), table.shape[1]))
        dense = table.grad.to_dense()
        for i, row in enumerate(rows):
            row.grad = dense[i] if i in index else None
        optimizer.step()
        alone.step()
    close(table.detach(), torch.stack(rows).detach(), 1e-12)


@every_twin
def test_a_flat_row_moves_as_torch_moves_a_parameter_alone(kind, twin, options):
    table = nn.Parameter(start(None))
    rows = [nn.Parameter(row.clone()) for row in start(None)]
    optimizer, alone = kind([table], lr=0.1, **options), twin(rows, lr=0.1, **options)
    for seed, index in enumerate(BATCHES):
        sparse_gradient(table, index, normal(seed, len(index), 3))
        dense = table.grad.to_dense()
        for i, row in enumerate(rows):
            row.grad = dense[i] if i in index else None
        optimizer.step()
        alone.step()
    close(table.detach(), torch.stack(rows).detach())


def test_rows_of_every_batch_move_as_by_sparse_adam():
    """SparseAdam counts the steps of the table, which are then those of each of these rows.

    Its ``eps`` is not divided by the root of the bias, so it is negligible here.
    """
    ours, theirs = (nn.Parameter(start(None)) for _ in range(2))
    optimizer = RiemannianAdam([ours], lr=0.1, eps=1e-30)
    twin = torch.optim.SparseAdam([theirs], lr=0.1, eps=1e-30)
    for seed in range(10):
        for table in (ours, theirs):
            sparse_gradient(table, [1, 5, 1], normal(seed, 3, 3))
        optimizer.step()
        twin.step()
    close(ours.detach(), theirs.detach())


@every_space
def test_dense_gradients_may_come_before_and_after_sparse_ones(space):
    """A table whose every row has a gradient in every step, in either layout."""
    mixed, dense = (nn.Parameter(start(space)) for _ in range(2))
    optimizer, other = (RiemannianAdam([p], lr=0.1, space=space) for p in (mixed, dense))
    for seed, sparse in enumerate([False, True, True, False]):
        g = normal(seed, *mixed.shape)
        dense.grad = mixed.grad = g
        if sparse:
            sparse_gradient(mixed, list(range(HEIGHT)), g)
        optimizer.step()
        other.step()
    close(mixed.detach(), dense.detach())


def test_an_empty_batch_moves_nothing():
    table = nn.Parameter(start(None))
    sparse_gradient(table, [], torch.ones(0, 3).double())
    RiemannianAdam([table], lr=0.1).step()
    assert torch.equal(table, start(None))


class Largest(TorchDispatchMode):
    """Size of the largest tensor that an operator makes or changes, but for single rows."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        aliases = [r.alias_info for r in func._schema.returns]
        is_view = any(a and not a.is_write for a in aliases)
        if not is_view and func.overloadpacket is not torch.ops.aten.index_copy_:
            made = tree_leaves(out if aliases else args)  # operators on lists return nothing
            dense = [x for x in made if isinstance(x, torch.Tensor) and not x.is_sparse]
            self.most = max([self.most, *(x.numel() for x in dense)])
        return out


@every_space
@every_method
def test_the_cost_of_a_sparse_step_does_not_depend_on_the_height(kind, options, space):
    for height in (100, 10_000):
        table = nn.Parameter(start(space).float()[:1].repeat(height, 1))
        optimizer = kind([table], lr=0.1, space=space, **options)
        for index in ([0, 3], [1, 3]):  # the first step makes the state
            sparse_gradient(table, index, torch.ones(2, table.shape[1]))
            with Largest() as largest:
                optimizer.step()
        assert 0 < largest.most <= 2 * table.shape[1]


@every_method
@pytest.mark.parametrize("kind_of_space", CURVED)
def test_an_embedding_with_sparse_gradients_descends(kind, options, kind_of_space):
    layer = HyperbolicEmbedding(kind_of_space(), 100, 3, sparse=True)
    before = layer.weight.detach().clone()
    optimizer = kind(layer.parameters(), lr=0.1, **options)
    index = torch.tensor([[3, 7], [9, 3]])
    for _ in range(3):
        optimizer.zero_grad()
        u, v = layer(index)
        layer.manifold.dist(u, v).sum().backward()
        assert layer.weight.grad.is_sparse
        optimizer.step()
    moved = (layer.weight != before).any(-1).nonzero().flatten().tolist()
    assert moved == [3, 7, 9]


@pytest.mark.parametrize("kind_of_space", CURVED)
def test_a_sparse_embedding_has_the_gradient_of_a_dense_one(kind_of_space):
    layers = [HyperbolicEmbedding(kind_of_space(), 9, 3, sparse=s) for s in (False, True)]
    layers[1].load_state_dict(layers[0].state_dict())
    for layer in layers:
        layer.manifold.dist0(layer(torch.tensor([1, 4, 1]))).sum().backward()
    assert torch.equal(layers[0].weight.grad, layers[1].weight.grad.to_dense())
    assert ["sparse" in repr(layer) for layer in layers] == [False, True]


def test_a_sparse_gradient_that_is_not_of_rows_is_refused():
    x = nn.Parameter(torch.ones(3, 2))
    x.grad = torch.ones(3, 2).to_sparse()
    with pytest.raises(ValueError, match="must consist of rows"):
        RiemannianAdam([x]).step()


def test_one_curvature_per_row_takes_dense_gradients_only():
    c = torch.linspace(0.5, 2, HEIGHT, dtype=torch.float64)
    x = nn.Parameter(start(Poincare(0.5)))
    each = [nn.Parameter(row.clone()) for row in x.detach()]
    optimizer = RiemannianAdam([x], lr=0.1, space=Poincare(c))
    groups = [{"params": [p], "space": Poincare(float(k))} for p, k in zip(each, c, strict=True)]
    alone = RiemannianAdam(groups, lr=0.1)
    x.grad = normal(1, HEIGHT, 3)
    for p, g in zip(each, x.grad, strict=True):
        p.grad = g
    optimizer.step()
    alone.step()
    close(x.detach(), torch.stack(each).detach())
    optimizer.load_state_dict(optimizer.state_dict())
    sparse_gradient(x, [1], normal(2, 1, 3))
    with pytest.raises(ValueError, match="8 curvatures"):
        optimizer.step()


@pytest.mark.gpu
@every_space
@every_method
def test_the_gpu_takes_the_steps_of_the_cpu(kind, options, space):
    whole, table = (nn.Parameter(start(space)) for _ in range(2))
    others = [nn.Parameter(p.detach().cuda()) for p in (whole, table)]
    moved = []
    for given in ([whole, table], others):
        optimizer = kind(given, lr=0.1, space=space, **options)
        for seed in range(4):
            given[0].grad = normal(seed, *whole.shape).to(given[0].device)
            given[1].grad = None
            index = torch.tensor([seed, 5, 5], device=given[0].device)
            rows = nn.functional.embedding(index, given[1], sparse=True)
            (rows * normal(seed, *rows.shape).to(rows.device)).sum().backward()
            optimizer.step()
        moved.append([p.detach().cpu() for p in given])
    close(*moved)
