"""Kernels of the distances of rows, interpreted on the CPU: ``make kernels``."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

from fedbolic.manifolds import Lorentz, Poincare
from tests.kernels.errors import RADII
from tests.kernels.pair_errors import pair_errors
from tests.kernels.switch import by_operators, count_calls
from tests.manifolds.cases import CURVED, normal, points

pytestmark = pytest.mark.kernels

DTYPES = (torch.float32, torch.float64)


@pytest.fixture
def on(monkeypatch):
    """The kernel in place of the operators, for tensors of the CPU; counts its calls."""
    return count_calls(monkeypatch, "rows.row_dist")


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", RADII)
def test_errors_are_those_of_the_operators_but_for_rounding(kind, dtype, radius):
    operators = pair_errors(kind, radius, dtype, kernel=None)
    found = pair_errors(kind, radius, dtype, kernel="dist")
    for today, now in zip(operators, found, strict=True):
        assert now <= 2 * today + 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "dim"), [(1, 1), (300, 3), (7, 20), (3, 256)])
def test_sets_of_any_size_have_the_distances_and_gradients_of_the_operators(
    kind, dtype, n, dim, on
):
    c = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    x, y = (points(kind, 0.7, seed, n, dim).to(dtype) for seed in (0, 1))
    x, y = (t / (dim**0.5 if kind is Poincare else 1) for t in (x, y))
    given = x.requires_grad_(), y.requires_grad_(), c

    def both():
        distances = kind(c).dist(x, y)
        return distances, *torch.autograd.grad(distances, given, normal(2, n, dtype=dtype))

    wanted = by_operators(both)
    assert not on
    eps = torch.finfo(dtype).eps
    for a, b in zip(both(), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e3 * eps, atol=1e3 * eps)
    assert on


@pytest.mark.parametrize("kind", CURVED)
def test_the_distance_of_a_point_to_itself_is_0_and_so_is_its_gradient(kind, on):
    x = (points(kind, 1.0, 0, 40, 8, dtype=torch.float32) * 3).requires_grad_()
    distances = kind(1.0).dist(x, x.detach().clone())
    assert not distances.any()
    assert not torch.autograd.grad(distances.sum(), x)[0].any()
    assert on


@pytest.mark.parametrize("kind", CURVED)
def test_points_beyond_the_manifold_are_clamped_as_the_operators_do(kind, on):
    x, y = normal(0, 6, 4, dtype=torch.float32), normal(1, 6, 4, dtype=torch.float32)
    x = x * torch.tensor([1.0, 10.0, 1e3, 1e10, 1e17, 1e18]).unsqueeze(-1)
    given = x.requires_grad_(), y.requires_grad_()

    def both():
        distances = kind(0.5).dist(x, y)
        return distances, *torch.autograd.grad(distances.sum(), given)

    for a, b in zip(both(), by_operators(both), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-30)
    assert on


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("value", [1.0, 0.002], ids=["direct", "series"])
def test_gradcheck_and_gradgradcheck_in_points_and_curvature(kind, value, on):
    c = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    x, y = points(kind, value, 0, 2, 3), points(kind, value, 1, 3)
    given = c, x.requires_grad_(), y.requires_grad_()
    assert gradcheck(lambda c, x, y: kind(c).dist(x, y), given)
    assert gradgradcheck(lambda c, x, y: kind(c).dist(x, y), given)
    assert on


def test_the_ball_of_curvature_0_is_flat(on):
    x, y = normal(0, 4, 3), normal(1, 4, 3)
    torch.testing.assert_close(Poincare(0.0).dist(x, y), 2 * (x - y).norm(dim=-1))
    assert on


@pytest.mark.parametrize("kind", CURVED)
def test_curvatures_and_points_broadcast(kind, on):
    c = torch.tensor([0.5, 2.0], dtype=torch.float64).reshape(2, 1).requires_grad_()
    x, y = points(kind, 0.5, 0, 2, 4, 3), points(kind, 0.5, 1, 3)

    def both():
        distances = kind(c).dist(x, y)
        return distances, *torch.autograd.grad(distances.square().sum(), c)

    for a, b in zip(both(), by_operators(both), strict=True):
        torch.testing.assert_close(a, b)
    assert on


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 0), (0, 0, 0)])
def test_vmap_of_values_and_gradients_is_a_loop(kind, dims, on):
    given = points(kind, 0.7, 0, 4, 3), points(kind, 0.7, 1, 3), torch.tensor(0.7)
    given = [
        t if d is None else torch.stack((t, t * 0.9)) for t, d in zip(given, dims, strict=True)
    ]

    def loss(x, y, c):
        return kind(c).dist(x, y).square().sum()

    got = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=dims)(*given)
    assert on
    for k in range(2):
        own = [t if d is None else t[k] for t, d in zip(given, dims, strict=True)]
        wanted = by_operators(lambda own=own: grad(loss, argnums=(0, 1, 2))(*own))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a[k], b)


@pytest.mark.parametrize("kind", CURVED)
def test_mixed_types_and_forward_derivatives_take_the_operators(kind, on):
    x, y = points(kind, 1.0, 0, 5, 3), points(kind, 1.0, 1, 5, 3)
    assert kind(1.0).dist(x, y.float()).dtype == torch.float64
    torch.func.jvp(lambda x: kind(1.0).dist(x, y), (x,), (normal(3, *x.shape),))
    assert not on


def test_half_types_are_computed_in_float32(on):
    x, y = (points(Lorentz, 1.0, seed, 5, 3).bfloat16() for seed in (0, 1))
    assert torch.equal(Lorentz(1.0).dist(x, y), Lorentz(1.0).dist(x.float(), y.float()).bfloat16())
    assert on


def test_no_points_have_no_distances(on):
    x = torch.zeros(0, 3, requires_grad=True)
    found = Lorentz(1.0).dist(x, torch.zeros(0, 3))
    assert found.shape == (0,)
    assert torch.autograd.grad(found.sum(), x)[0].shape == (0, 3)
