"""Pairs of optimisers, ours and torch's, and what drives them, shared by their tests."""

import pytest
import torch
from torch import nn

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.optim.modules import RiemannianAdam, RiemannianSGD
from tests.manifolds.cases import normal, points

SGDS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
]
ADAMS = [{}, {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}]
TWINS = [
    *((RiemannianSGD, torch.optim.SGD, options) for options in SGDS),
    *((RiemannianAdam, torch.optim.Adam, options) for options in ADAMS),
]
OURS = [(kind, options) for kind, _, options in TWINS]
every_twin = pytest.mark.parametrize(("kind", "twin", "options"), TWINS)
every_method = pytest.mark.parametrize(("kind", "options"), OURS)
every_space = pytest.mark.parametrize("space", [Poincare(0.7), Lorentz(0.7), None], ids=str)

HEIGHT = 8


def parameters(seed=0, dtype=torch.float64):
    """Parameters of several shapes, one of them with other strides."""
    made = [
        normal(seed, 3, 4),
        normal(seed + 1, 4, 3).T,
        normal(seed + 2, 5),
        normal(seed + 3, 1)[0],
    ]
    return [nn.Parameter(x.to(dtype)) for x in made]


def set_gradients(given, seed):
    for i, p in enumerate(given):
        p.grad = normal(1000 * seed + i, p.numel(), dtype=p.dtype).view(p.shape)


def advance(optimizer, given, seeds):
    for seed in seeds:
        set_gradients(given, seed)
        optimizer.step()


def start(space, seed=0):
    """A table of points, or of vectors without a space."""
    if space is None:
        return normal(seed, HEIGHT, 3)
    return points(type(space), space.c, seed, HEIGHT, 3)


def sparse_gradient(table, index, values):
    """Give a table the gradient that an embedding gives, with repeated rows not yet summed."""
    table.grad = None
    rows = nn.functional.embedding(torch.tensor(index, dtype=torch.int64), table, sparse=True)
    (rows * values).sum().backward()
    assert table.grad.is_sparse


def close(ours, theirs, tolerance=1e-10):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
