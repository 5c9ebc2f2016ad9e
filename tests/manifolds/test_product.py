"""Products of manifolds: laws, factors one by one, and geoopt's product."""

import geoopt
import pytest
import torch
from torch.autograd import gradcheck
from torch.func import vmap

from fedbolic.manifolds import (
    Euclidean,
    Lorentz,
    Poincare,
    Product,
    Stereographic,
    frechet_mean,
    midpoint,
)
from fedbolic.optim import Adam
from tests.manifolds.cases import ROLES, normal

SIZES = (3, 2, 3, 1)
OPERATIONS = [name for name in ROLES if name != "dist2plane"]


def mixed(c):
    """The product of all kinds of spaces, with a sphere."""
    return Product((Lorentz(c), Poincare(c), Stereographic(-c), Euclidean()), SIZES)


def at_origin(seed, *batch, dtype=torch.float64):
    """Tangents at the origin, at most 0.5 long in the sphere."""
    v = normal(seed, *batch, sum(SIZES), dtype=dtype) / 3
    v[..., 0] = 0  # the time coordinate of the hyperboloid
    return v.clamp(-0.25, 0.25)


def given(name, c, *, batch=(3,), seed=0):
    """Ordinary arguments for an operation, by the roles of all manifold tests."""
    space = mixed(c)
    x = space.expmap0(at_origin(seed, *batch))
    made = {
        "x": x,
        "y": space.expmap0(at_origin(seed + 1, *batch)),
        "u": space.transp0(x, at_origin(seed + 2, *batch)),
        "v": space.transp0(x, at_origin(seed + 3, *batch)),
        "o": at_origin(seed + 4, *batch),
        "a": normal(seed + 5, *x.shape) / 2,
        "X": space.expmap0(at_origin(seed + 6, *batch, 4)),
        "Y": space.expmap0(at_origin(seed + 7, *batch, 2)),
        "w": normal(seed + 8, *batch, 4).abs() + 0.1,
    }
    return tuple(made[role] for role in ROLES[name])


def call(name, c, *tensors):
    functions = {"frechet_mean": frechet_mean, "midpoint": midpoint}
    if name in functions:
        return functions[name](mixed(c), *tensors)
    operation, *mode = name.split()
    return getattr(mixed(c), operation)(*tensors, **({"mode": mode[0]} if mode else {}))


def close(got, expected, tolerance=1e-9):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("c", [0.1, 1.0, 4.0])
def test_the_laws_of_a_manifold(c):
    space = mixed(c)
    x, y, z = (space.expmap0(at_origin(s, 20)) for s in (0, 1, 2))
    u, v = (space.transp0(x, at_origin(s, 20)) for s in (3, 4))
    origin = space.origin(*x.shape, dtype=x.dtype)
    assert space.contains(x).all()
    close(space.logmap(x, space.expmap(x, u)), u)
    close(space.expmap(x, space.logmap(x, y)), y)
    close(space.norm(x, space.logmap(x, y)), space.dist(x, y))
    close(space.norm(x, u).square(), space.inner(x, u))
    close(space.inner(y, space.transp(x, y, u), space.transp(x, y, v)), space.inner(x, u, v))
    close(space.transp(x, y, space.logmap(x, y)), -space.logmap(y, x))
    close(space.dist0(x), space.dist(origin, x))
    close(space.logmap0(x), space.logmap(origin, x))
    assert (space.dist(x, x) == 0).all()
    assert (space.dist(x, z) <= space.dist(x, y) + space.dist(y, z)).all()
    m = midpoint(space, x, y)
    close(space.dist(x, m), space.dist(x, y) / 2)
    both = torch.stack((x, y), -2)
    close(space.centroid(both), m)
    close(frechet_mean(space, both), m)


def test_every_result_is_that_of_the_factors():
    space = mixed(1.0)
    x, y, u = *given("dist", 1.0), given("expmap", 1.0)[1]
    parts = list(zip(space.factors, *map(space.split, (x, y, u)), strict=True))
    close(space.dist(x, y).square(), sum(f.dist(x, y).square() for f, x, y, _ in parts))
    close(space.inner(x, u), sum(f.inner(x, u) for f, x, _, u in parts))
    close(space.expmap(x, u), torch.cat([f.expmap(x, u) for f, x, _, u in parts], -1))
    close(space.transp(x, y, u), torch.cat([f.transp(x, y, u) for f, x, y, u in parts], -1))


def test_a_product_agrees_with_that_of_geoopt():
    ours = Product((Poincare(1.0), Stereographic(-0.5), Euclidean()), (3, 2, 2))
    theirs = geoopt.ProductManifold(
        (geoopt.PoincareBall(torch.tensor(1.0, dtype=torch.float64)), 3),
        (geoopt.SphereProjection(torch.tensor(0.5, dtype=torch.float64)), 2),
        (geoopt.Euclidean(ndim=1), 2),
    )
    v = [normal(s, 20, 7) / 4 for s in range(4)]
    x, y = ours.expmap0(v[0]), ours.expmap0(v[1])
    close(ours.dist(x, y), theirs.dist(x, y))
    close(ours.expmap(x, v[2]), theirs.expmap(x, v[2]))
    close(ours.logmap(x, y), theirs.logmap(x, y))
    close(ours.transp(x, y, v[2]), theirs.transp(x, y, v[2]))
    close(ours.inner(x, v[2], v[3]), theirs.inner(x, v[2], v[3]))
    close(ours.egrad2rgrad(x, v[3]), theirs.egrad2rgrad(x, v[3]))


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_those_of_finite_differences(name):
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    tensors = [t.requires_grad_() for t in given(name, 0.7, batch=(2,))]
    assert gradcheck(lambda c, *t: call(name, c, *t), (c, *tensors), fast_mode=True)


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_curvature_per_sample_by_vmap_broadcasting_and_a_loop(name):
    each = [given(name, c, seed=9 * i, batch=()) for i, c in enumerate((0.3, 1.0, 2.5))]
    together = [torch.stack(rows) for rows in zip(*each, strict=True)]
    c = torch.tensor((0.3, 1.0, 2.5), dtype=torch.float64)
    loop = torch.stack([call(name, c, *t) for c, t in zip(c, each, strict=True)])
    close(vmap(lambda c, *t: call(name, c, *t))(c, *together), loop, 1e-12)
    shaped = c.reshape(3, 1, 1) if name.startswith("cdist") else c
    close(call(name, shaped, *together), loop, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_points_and_half_types_stay_finite(dtype):
    space = mixed(1.0)
    rows = torch.stack([normal(0, sum(SIZES)).to(dtype) * scale for scale in (0, 1, 1e2, 5e3)])
    x = space.projx(rows).requires_grad_()
    y = space.expmap0(rows.flip(0))
    assert space.contains(x).all()
    assert space.contains(y).all()
    out = space.dist(x, y)
    assert out.dtype == dtype
    assert out.isfinite().all()
    (g,) = torch.autograd.grad(out.float().sum(), x)
    assert g.isfinite().all()


def test_adam_reaches_a_goal_on_a_product():
    space, method = mixed(1.0), Adam()
    x, goal = given("dist", 1.0)
    state = method.init({"x": x})
    for _ in range(300):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(space.dist(x, goal).square().sum(), x)
        moved, state = method.step({"x": x.detach()}, {"x": g}, state, lr=0.02, spaces={"x": space})
        x = moved["x"]
    assert space.dist(x, goal).max() < 1e-2


def test_what_does_not_fit_is_refused_with_the_way_round():
    with pytest.raises(ValueError, match="one or more factors"):
        Product((), ())
    with pytest.raises(ValueError, match="1 factors and the sizes"):
        Product((Lorentz(),), (3, 2))
    space = mixed(1.0)
    with pytest.raises(ValueError, match=r"9 coordinates .* 3 \+ 2 \+ 3 \+ 1, got shape \(4,\)"):
        space.dist0(torch.zeros(4))
    x = torch.zeros(9)
    with pytest.raises(ValueError, match="no totally geodesic hyperplane"):
        space.dist2plane(x, x, x)
