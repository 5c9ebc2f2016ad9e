"""Kernels of the maps at the origin, interpreted on the CPU: ``make kernels``."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

from fedbolic.manifolds import Lorentz, Poincare
from tests.kernels.errors import ORIGIN, RADII, errors_of
from tests.kernels.switch import by_operators, count_calls
from tests.manifolds.cases import CURVED, normal

pytestmark = pytest.mark.kernels

DTYPES = (torch.float32, torch.float64)


@pytest.fixture
def on(monkeypatch):
    """The kernel in place of the operators, for tensors of the CPU; counts its calls."""
    return count_calls(monkeypatch, "radial.radial_map")


def argument(kind, name, c, *shape, dtype=torch.float64):
    """Tangents at the origin or points, of a length of about a radius."""
    space = kind(c)
    u = normal(0, *shape) / shape[-1] ** 0.5 / c**0.5
    u = space.lift(u) if kind is Lorentz else u / 2
    return (u if name == "expmap0" else by_operators(lambda: space.expmap0(u))).to(dtype)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("name", ORIGIN)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", RADII)
def test_errors_are_those_of_the_operators_but_for_rounding(kind, name, dtype, radius):
    for today, now in zip(*errors_of(name, kind, radius, dtype), strict=True):
        assert now <= 2 * today + 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("name", ORIGIN)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "dim"), [(1, 1), (300, 3), (7, 20), (3, 256)])
def test_rows_of_any_size_have_the_values_and_gradients_of_the_operators(
    kind, name, dtype, n, dim, on
):
    c = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    x = argument(kind, name, 0.7, n, dim, dtype=dtype).requires_grad_()

    def both():
        made = getattr(kind(c), name)(x)
        return made, *torch.autograd.grad(made, (x, c), normal(2, *made.shape, dtype=dtype))

    wanted = by_operators(both)
    assert not on
    eps = torch.finfo(dtype).eps
    for a, b in zip(both(), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=400 * eps, atol=400 * eps * n)
    assert on


@pytest.mark.parametrize(
    ("kind", "name"), [(Lorentz, "expmap0"), (Lorentz, "logmap0"), (Poincare, "expmap0")]
)
@pytest.mark.parametrize("c", [1e-4, 1.0, 50.0])
def test_rows_of_any_length_are_clamped_as_the_operators_do(kind, name, c, on):
    lengths = torch.tensor([0.0, 1e-30, 1e-5, 1.0, 10.0, 43.0, 100.0, 1e4, 1e15])
    x = (normal(0, len(lengths), 4).float() * lengths.unsqueeze(-1)).requires_grad_()

    def both():
        made = getattr(kind(c), name)(x)
        return made, *torch.autograd.grad(made.sum(), x)

    (made, by_x), (wanted, slope) = both(), by_operators(both)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-30)
    torch.testing.assert_close(by_x, slope, rtol=1e-4, atol=1e-6)
    assert on


@pytest.mark.parametrize("length", [20.0, 1e3, 1e6])
def test_tangents_beyond_the_boundary_of_the_ball_turn_its_points_only(length, on):
    u = normal(0, 5, 4, dtype=torch.float32)
    u = (length * u / u.norm(dim=-1, keepdim=True)).requires_grad_()
    g = normal(1, 5, 4, dtype=torch.float32)
    (by_u,) = torch.autograd.grad(Poincare(1.0).expmap0(u), u, g)
    out = (u / length).detach()
    wanted = (g - (g * out).sum(-1, keepdim=True) * out) / length
    torch.testing.assert_close(by_u * length, wanted * length, rtol=1e-5, atol=1e-5)
    assert on


@pytest.mark.parametrize("c", [1e-4, 1.0, 50.0])
def test_points_outside_the_ball_are_as_far_as_its_boundary(c, on):
    x = normal(0, 5, 4).float() * torch.tensor([1e3, 1e5, 1e8, 1e12, 1e15]).unsqueeze(-1)
    tangents = Poincare(c).logmap0(x)
    radii = 2 * c**0.5 * tangents.norm(dim=-1)
    torch.testing.assert_close(radii, torch.full((5,), 15.9), rtol=0.02, atol=0)
    assert torch.cosine_similarity(tangents, x).min() > 0.999
    assert on


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("name", ORIGIN)
@pytest.mark.parametrize("value", [1.0, 0.002], ids=["direct", "series"])
def test_gradcheck_and_gradgradcheck_in_rows_and_curvature(kind, name, value, on):
    c = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    x = argument(kind, name, 1.0, 2, 2).requires_grad_()
    assert gradcheck(lambda c, x: getattr(kind(c), name)(x), (c, x))
    assert gradgradcheck(lambda c, x: getattr(kind(c), name)(x), (c, x))
    assert on


@pytest.mark.parametrize("name", ORIGIN)
def test_the_ball_of_curvature_0_is_flat(name, on):
    x = normal(0, 4, 3)
    torch.testing.assert_close(getattr(Poincare(0.0), name)(x), x)
    assert on


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("name", ORIGIN)
@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)])
def test_vmap_of_values_and_gradients_is_a_loop(kind, name, dims, on):
    given = [argument(kind, name, 0.7, 3, 2), torch.tensor(0.7, dtype=torch.float64)]
    for i, dim in enumerate(dims):
        given[i] = given[i] if dim is None else torch.stack((given[i], given[i] * 0.9))

    def loss(x, c):
        return getattr(kind(c), name)(x).square().sum()

    got = vmap(grad(loss, argnums=(0, 1)), in_dims=dims)(*given)
    assert on
    for k in range(2):
        own = [t if d is None else t[k] for t, d in zip(given, dims, strict=True)]
        wanted = by_operators(lambda own=own: grad(loss, argnums=(0, 1))(*own))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a[k], b)


def test_half_types_lie_on_the_manifold(on):
    u = Lorentz().lift(3 * normal(0, 5, 3)).bfloat16()
    assert Lorentz().contains(Lorentz().expmap0(u)).all()
    assert on
