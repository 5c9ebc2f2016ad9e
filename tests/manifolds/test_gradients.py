"""Derivatives match finite differences and 60 digits, and are always finite (G4 to G6)."""

import pytest
import torch
from mpmath import mpf, workdps
from torch.autograd import gradcheck, gradgradcheck

from benchmarks.geometry import truth
from fedbolic.manifolds import Lorentz, Poincare
from tests.manifolds.cases import ALL, CURVED, IDS, arguments, call, lifted, normal


@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
@pytest.mark.parametrize("value", [1.0, 0.002], ids=["direct", "series"])
def test_g11_gradcheck_in_every_argument_and_the_curvature(kind, name, value):
    c = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    given = [t.requires_grad_() for t in arguments(kind, name, value, batch=(2,))]
    assert gradcheck(lambda c, *t: call(kind, name, c, *t), (c, *given), fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
@pytest.mark.parametrize("value", [1.0, 0.002], ids=["direct", "series"])
def test_g11_every_entry_of_the_jacobian_forward_and_backward(kind, name, value):
    c = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    given = [t.requires_grad_() for t in arguments(kind, name, value, batch=(2,))]
    assert gradcheck(lambda c, *t: call(kind, name, c, *t), (c, *given), check_forward_ad=True)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
def test_second_derivatives_by_gradgradcheck(kind, name):
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    given = [t.requires_grad_() for t in arguments(kind, name, 0.7, batch=(1,), dim=2)]
    assert gradgradcheck(lambda c, *t: call(kind, name, c, *t), (c, *given))


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("separation", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_g4_the_gradient_of_distance_has_length_1(kind, separation):
    space = kind(1.0)
    u = normal(0, 64, 4, dtype=torch.float32)
    x = space.expmap0(
        lifted(kind, u / u.norm(dim=-1, keepdim=True) / (2 if kind is Poincare else 1))
    )
    w = space.proju(x, lifted(kind, normal(1, 64, 4, dtype=torch.float32)))
    y = space.expmap(x, w / space.norm(x, w).unsqueeze(-1) * separation)
    x.requires_grad_()
    (g,) = torch.autograd.grad(space.dist(x, y).sum(), x)
    torch.testing.assert_close(
        space.norm(x, space.egrad2rgrad(x, g)), torch.ones(64), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize(("radius", "bound"), [(5.0, 1e-4), (9.0, 2e-3)])
def test_the_gradient_of_distance_between_near_points_has_length_1_far_from_the_origin(
    radius, bound
):
    space = Lorentz(1.0)
    u = normal(0, 64, 4, dtype=torch.float32)
    x = space.expmap0(lifted(Lorentz, u / u.norm(dim=-1, keepdim=True) * radius))
    w = space.transp0(x, lifted(Lorentz, normal(1, 64, 4, dtype=torch.float32)))
    y = space.expmap(x, w / space.norm(x, w).unsqueeze(-1) / 100)
    x.requires_grad_()
    (g,) = torch.autograd.grad(space.dist(x, y).sum(), x)
    torch.testing.assert_close(
        space.norm(x, space.egrad2rgrad(x, g)), torch.ones(64), rtol=0, atol=bound
    )


def slope(kind, c, x, y):
    """d dist / dc by a finite difference in 60 digits, one-sided from the right at c = 0."""
    c = mpf(c) or mpf(10) ** -30
    step = c * mpf(10) ** -15

    def dist(c):
        space = truth.Ball(c) if kind is Poincare else truth.Hyperboloid(c)
        return space.dist(truth.exact(x), truth.exact(y))

    with workdps(60):  # whatever precision another test has set
        return float((dist(c + step) - dist(c - step)) / (2 * step))


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize(
    "c", [0, 1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0]
)
def test_g6_the_slope_in_the_curvature_is_right_to_1e5_in_float32(kind, c):
    if kind is Lorentz and c == 0:
        pytest.skip("flat space has no hyperboloid")
    x, y = (normal(seed, 8, 4, dtype=torch.float32) for seed in (0, 1))
    x, y = (v / v.norm(dim=-1, keepdim=True) / 2 for v in (x, y))
    each = torch.full((8,), c, dtype=torch.float32, requires_grad=True)
    distance = kind(each).dist(lifted(kind, x), lifted(kind, y))
    (got,) = torch.autograd.grad(distance.sum(), each)
    c = each[0].item()
    true = [slope(kind, c, *pair) for pair in zip(x.tolist(), y.tolist(), strict=True)]
    torch.testing.assert_close(got, torch.tensor(true), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", CURVED)
def test_g6_distance_is_continuous_at_flat_space(kind):
    x, y = (normal(seed, 50, 4, dtype=torch.float32) / 4 for seed in (0, 1))
    flat = (x - y).norm(dim=-1) * (2 if kind is Poincare else 1)
    for c in (1e-6, 1e-7, 1e-8, 1e-12) + ((0.0,) if kind is Poincare else ()):
        for given in (c, torch.tensor(c)):
            got = kind(given).dist(lifted(kind, x), lifted(kind, y))
            torch.testing.assert_close(got, flat, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("c", [0.0, 1e-9, 0.5, 100.0])
@pytest.mark.parametrize("name", ["expmap0", "logmap0"])
def test_g5_the_maps_at_the_origin_have_the_identity_as_derivative(kind, name, c):
    if kind is Lorentz and c == 0:
        pytest.skip("flat space has no hyperboloid")
    jacobian = torch.func.jacrev(lambda v: call(kind, name, c, lifted(kind, v)))(torch.zeros(3))
    identity = torch.eye(3) if kind is Poincare else torch.cat((torch.zeros(1, 3), torch.eye(3)))
    torch.testing.assert_close(jacobian, identity, rtol=0, atol=0)
