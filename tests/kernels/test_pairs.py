"""Kernels of pairwise distances, interpreted on the CPU: ``make kernels``."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare
from tests.kernels.errors import RADII
from tests.kernels.pair_errors import pair_errors
from tests.kernels.switch import by_operators
from tests.manifolds.cases import CURVED, normal, points

pytestmark = pytest.mark.kernels

DTYPES = (torch.float32, torch.float64)


@pytest.fixture
def on(monkeypatch):
    """The kernels of pairs in place of the operators, for tensors of the CPU."""
    monkeypatch.setattr(kernels, "replace_operators", lambda *tensors: True)


def sets(kind, c=1.0, *, dtype=torch.float64, n=5, m=3, dim=3):
    """Two sets with one point in common."""
    x, y = points(kind, c, 0, n, dim, dtype=dtype), points(kind, c, 1, m, dim, dtype=dtype)
    y[0] = x[0]
    return x, y


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", RADII)
def test_errors_are_those_of_the_operators_but_for_rounding(kind, dtype, radius):
    operators = pair_errors(kind, radius, dtype, kernel=None)
    found = pair_errors(kind, radius, dtype, kernel="cdist")
    for today, now in zip(operators, found, strict=True):
        assert now <= 2 * today + 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m", "dim"), [(1, 1, 1), (33, 70, 3), (70, 33, 20), (3, 4, 256)])
def test_sets_of_any_size_have_the_distances_and_gradients_of_dist(kind, dtype, n, m, dim, on):
    space = kind(0.7)
    x, y = sets(kind, 0.7, dtype=dtype, n=n, m=m, dim=dim)
    x, y = (t / dim**0.5 if kind is Poincare else space.projx(t) for t in (x, y))
    given = [x.requires_grad_(), y.requires_grad_()]
    g = normal(2, n, m, dtype=dtype)
    wanted = by_operators(lambda: space.dist(x.unsqueeze(-2), y.unsqueeze(-3)))
    got = space.cdist(x, y)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got, wanted, rtol=64 * eps, atol=64 * eps)
    for a, b in zip(*(torch.autograd.grad(d, given, g) for d in (got, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e3 * eps, atol=1e3 * eps * (n + m))


@pytest.mark.parametrize("kind", CURVED)
def test_the_distance_of_a_point_to_itself_is_exactly_0(kind, on):
    x = points(kind, 1.0, 0, 40, 8, dtype=torch.float32) * 3
    assert torch.equal(kind(1.0).cdist(x, x).diagonal(), torch.zeros(40))


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("value", [1.0, 0.002], ids=["direct", "series"])
def test_gradcheck_in_both_sets_and_the_curvature(kind, value, on):
    c = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    x, y = points(kind, value, 0, 2, 4, 3), points(kind, value, 1, 3, 3)
    given = c, x.requires_grad_(), y.requires_grad_()
    assert gradcheck(lambda c, x, y: kind(c).cdist(x, y), given)


@pytest.mark.parametrize("kind", CURVED)
def test_gradgradcheck_in_both_sets_and_the_curvature(kind, on):
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x, y = points(kind, 0.7, 0, 2, 2), points(kind, 0.7, 1, 2, 2)
    given = c, x.requires_grad_(), y.requires_grad_()
    assert gradgradcheck(lambda c, x, y: kind(c).cdist(x, y), given)


def test_the_ball_of_curvature_0_is_flat(on):
    x, y = normal(0, 4, 3), normal(1, 5, 3)
    torch.testing.assert_close(Poincare(0.0).cdist(x, y), 2 * torch.cdist(x, y))


@pytest.mark.parametrize("kind", CURVED)
def test_curvatures_and_sets_broadcast(kind, on):
    c = torch.tensor([0.5, 2.0], dtype=torch.float64).reshape(2, 1, 1).requires_grad_()
    x, y = points(kind, 0.5, 0, 2, 4, 3), points(kind, 0.5, 1, 5, 3)
    got = kind(c).cdist(x, y)
    wanted = torch.stack([kind(k).cdist(p, y) for k, p in zip([0.5, 2.0], x, strict=True)])
    torch.testing.assert_close(got, wanted)
    by_c = torch.autograd.grad(got.sum(), c)[0]
    wanted = by_operators(lambda: kind(c).cdist(x, y, mode="broadcast"))
    wanted = torch.autograd.grad(wanted.sum(), c)[0]
    torch.testing.assert_close(by_c, wanted)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)])
def test_vmap_of_values_and_gradients_is_a_loop(kind, dims, on):
    x, y = sets(kind)
    x, y = (torch.stack([t, t.flip(0)]) if d == 0 else t for t, d in zip((x, y), dims, strict=True))

    def loss(x, y):
        return kind(1.0).cdist(x, y).square().sum()

    got = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=dims)(x, y)
    for k in range(2):
        each = torch.func.grad(loss, argnums=(0, 1))(
            *(t[k] if d == 0 else t for t, d in zip((x, y), dims, strict=True))
        )
        for a, b in zip(got, each, strict=True):
            torch.testing.assert_close(a[k], b)


@pytest.mark.parametrize("kind", CURVED)
def test_forward_derivatives_take_the_operators(kind, on):
    x, y = sets(kind)
    along = normal(3, *x.shape)
    moved = torch.func.jvp(lambda x: kind(1.0).cdist(x, y[1:]), (x,), (along,))[1]
    pulled = torch.func.vjp(lambda x: kind(1.0).cdist(x, y[1:]), x)[1]
    g = normal(4, *moved.shape)
    torch.testing.assert_close((moved * g).sum(), (pulled(g)[0] * along).sum())


def test_empty_sets_have_no_distances(on):
    x = torch.zeros(0, 3, requires_grad=True)
    found = Lorentz(1.0).cdist(x, torch.zeros(2, 3))
    assert found.shape == (0, 2)
    assert torch.autograd.grad(found.sum(), x)[0].shape == (0, 3)
