"""The bridge to geoopt, and geoopt in float64 as an oracle."""

import geoopt
import pytest
import torch

from fedbolic.manifolds import Euclidean, Lorentz, Poincare
from fedbolic.manifolds.geoopt import Bridge
from fedbolic.optim import SGD, Adam
from tests.manifolds.cases import CURVED, KINDS, lifted, make, normal, points, spherical, tangents


@pytest.mark.parametrize("c", [0.1, 1.0, 3.0])
def test_the_ball_agrees_with_geoopt(c):
    ours, theirs = Poincare(c), geoopt.PoincareBall(torch.tensor(c, dtype=torch.float64))
    x, y = (points(Poincare, c, s, 50, 4, radius=0.7 / c**0.5) for s in (0, 1))
    u, v = (normal(s, 50, 4) / c**0.5 / 4 for s in (2, 3))
    for name, given in {
        "dist": (x, y),
        "dist0": (x,),
        "expmap": (x, u),
        "expmap0": (u,),
        "logmap": (x, y),
        "logmap0": (y,),
        "transp": (x, y, v),
        "transp0": (y, v),
        "egrad2rgrad": (x, u),
        "norm": (x, u),
        "mobius_add": (x, y),
    }.items():
        expected = getattr(theirs, name)(*given)
        torch.testing.assert_close(getattr(ours, name)(*given), expected, rtol=1e-9, atol=1e-9)
    inner = theirs.inner(x, u, v, keepdim=True).squeeze(-1)
    torch.testing.assert_close(ours.inner(x, u, v), inner, rtol=1e-12, atol=1e-12)
    w = normal(4, 50).abs()
    middle = theirs.weighted_midpoint(x, w)
    torch.testing.assert_close(ours.centroid(x, w), middle, rtol=1e-9, atol=1e-9)
    plane = theirs.dist2plane(x, y, v, signed=True)
    torch.testing.assert_close(ours.dist2plane(x, y, v), plane, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("c", [0.1, 1.0, 3.0])
def test_the_hyperboloid_agrees_with_geoopt(c):
    ours, theirs = Lorentz(c), geoopt.Lorentz(torch.tensor(1 / c, dtype=torch.float64))
    x, y = (points(Lorentz, c, s, 50, 4, radius=1 / c**0.5) for s in (0, 1))
    u, v = (tangents(Lorentz, c, s, x, 1 / c**0.5) for s in (2, 3))
    origin_u = lifted(Lorentz, normal(4, 50, 4)) / c**0.5
    for name, given in {
        "dist": (x, y),
        "dist0": (x,),
        "expmap": (x, u),
        "expmap0": (origin_u,),
        "logmap": (x, y),
        "logmap0": (y,),
        "transp": (x, y, v),
        "transp0": (y, origin_u),
        "inner": (x, u, v),
        "proju": (x, normal(5, 50, 5)),
    }.items():
        expected = getattr(theirs, name)(*given)
        torch.testing.assert_close(getattr(ours, name)(*given), expected, rtol=1e-7, atol=1e-7)
    g = normal(6, 50, 5)
    expected = theirs.egrad2rgrad(x, g.clone())  # it modifies its argument
    torch.testing.assert_close(ours.egrad2rgrad(x, g), expected, rtol=1e-7, atol=1e-7)


def towards(space, x, goal, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        space.dist(x, goal).square().sum().backward()
        optimizer.step()
    return space.dist(x.detach(), goal)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("name", ["RiemannianAdam", "RiemannianSGD"])
def test_g16_geoopt_s_optimisers_take_our_manifolds(kind, name):
    space = kind(c := 2.0)
    goal = points(kind, c, 1, 10, 3)
    x = geoopt.ManifoldParameter(points(kind, c, 0, 10, 3), manifold=Bridge(space))
    options = {"stabilize": 5} | ({"momentum": 0.5} if name == "RiemannianSGD" else {})
    optimizer = getattr(geoopt.optim, name)([x], lr=0.1, **options)
    assert towards(space, x, goal, optimizer, 150).max() < 1e-2
    assert space.contains(x.detach()).all()


@pytest.mark.parametrize("kind", CURVED)
def test_our_optimisers_make_the_steps_of_geoopt_s(kind):
    space, start, goal = kind(1.0), points(kind, 1.0, 0, 10, 3), points(kind, 1.0, 1, 10, 3)
    # RiemannianSGD without momentum: geoopt starts its buffer from the Euclidean gradient
    for name, method in {"RiemannianAdam": Adam, "RiemannianSGD": SGD}.items():
        method = method(weight_decay=0.01)
        theirs = geoopt.ManifoldParameter(start.clone(), manifold=Bridge(space))
        optimizer = getattr(geoopt.optim, name)([theirs], lr=0.05, weight_decay=0.01)
        ours, state = {"x": start}, method.init({"x": start})
        for _ in range(20):
            towards(space, theirs, goal, optimizer, 1)
            x = ours["x"].clone().requires_grad_()
            (g,) = torch.autograd.grad(space.dist(x, goal).square().sum(), x)
            ours, state = method.step(
                {"x": x.detach()}, {"x": g}, state, lr=0.05, spaces={"x": space}
            )
        torch.testing.assert_close(ours["x"], theirs.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bridge_is_a_geoopt_manifold(kind):
    bridge = Bridge(make(kind, 1.0))
    x, y = points(kind, 1.0, 0, 5, 3), points(kind, 1.0, 1, 5, 3)
    u = tangents(kind, 1.0, 2, x)
    assert bridge.check_point_on_manifold(x)
    assert bridge.check_vector_on_tangent(x, u)
    if kind not in (Euclidean, spherical):
        assert not bridge.check_point_on_manifold(torch.full_like(x, 2.0))
    assert bridge.dist(x, y, keepdim=True).shape == (5, 1)
    assert bridge.inner(x, u, keepdim=True).shape == (5, 1)
    assert bridge.norm(x, u).shape == (5,)
    assert bridge.origin(4, 3).manifold is bridge
    there, carried = bridge.expmap_transp(x, u, u)
    torch.testing.assert_close(carried, -bridge.logmap(there, x))
    torch.testing.assert_close(bridge.dist2(x, y), bridge.dist(x, y) ** 2)
    assert "manifold" in repr(bridge)
