"""The stereographic model against 60 digits, the embedded sphere, geoopt and the ball."""

import geoopt
import pytest
import torch
from mpmath import mp, mpf, workdps

from benchmarks.geometry import truth
from fedbolic.manifolds import Poincare, Stereographic, frechet_mean
from tests.manifolds.cases import OWN, ROLES, arguments, call, normal, points, spherical, tangents

NEAR_FLAT = [s * c for c in (1e-12, 1e-7, 1e-4, 1e-2, 0.1, 0.5) for s in (-1, 1)]


def close(got, expected, tolerance=1e-12):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [n for n in ROLES | OWN[Poincare] if n in ROLES | OWN[spherical]])
@pytest.mark.parametrize("c", [0.0, 1e-3, 1.0, 4.0])
def test_without_positive_curvature_it_is_the_ball(name, c):
    given = arguments(Poincare, name, max(c, 0.1))
    close(call(Stereographic, name, c, *given), call(Poincare, name, c, *given), 1e-11)


def on_sphere(x, c):
    """The point of the unit sphere in 60 digits, the axis first."""
    k, x = -mpf(c), truth.exact(x)
    t = k * truth.dot(x, x)
    return [(1 - t) / (1 + t), *(2 * mp.sqrt(k) * a / (1 + t) for a in x)]


def angle(x, y, c):
    return mp.acos(truth.dot(on_sphere(x, c), on_sphere(y, c))) / mp.sqrt(-mpf(c))


def real(x):
    return [float(mp.re(a)) for a in x]


@pytest.mark.parametrize("c", [-1e-6, -0.3, -1.0, -5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_distance_is_the_angle_between_points_of_the_sphere(c, dtype):
    x, y = (normal(s, 12, 3, dtype=dtype) * 2 for s in (0, 1))
    with workdps(60):
        true = [float(angle(*pair, c)) for pair in zip(x.tolist(), y.tolist(), strict=True)]
    expected = torch.tensor(true, dtype=dtype)
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(Stereographic(c).dist(x, y), expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("away", [0.0, 1e-7, 1e-5, 1e-3, 1e-1])
def test_the_distance_keeps_its_digits_near_antipodes(away):
    c = -0.7
    x = normal(0, 8, 3, dtype=torch.float32)
    y = x / (c * x.square().sum(-1, keepdim=True)) * (1 + away)  # the antipode of x, and beside it
    with workdps(60):
        true = [float(angle(*pair, c)) for pair in zip(x.tolist(), y.tolist(), strict=True)]
    got = Stereographic(c).dist(x, y)
    torch.testing.assert_close(got, torch.tensor(true, dtype=x.dtype), rtol=1e-6, atol=0)


@pytest.mark.parametrize("c", NEAR_FLAT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["dist", "expmap", "expmap0", "logmap", "logmap0", "mobius_add"])
def test_values_near_flat_space_are_those_of_60_digits(name, c, dtype):
    space = Stereographic(c)
    x, y, u = (normal(s, 4, 3, dtype=dtype) / 3 for s in (0, 1, 2))
    given = {"logmap0": (y,), "expmap0": (u,), "expmap": (x, u)}.get(name, (x, y))
    got = getattr(space, name)(*given)
    with workdps(60):  # the ball's formulas, whose roots are imaginary on a sphere
        ball = truth.Ball(c)
        formula = ball.add if name == "mobius_add" else getattr(ball, name)
        rows = zip(*(t.tolist() for t in given), strict=True)
        true = [formula(*map(truth.exact, row)) for row in rows]
        true = [real(v) if isinstance(v, list) else float(mp.re(v)) for v in true]
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        got, torch.tensor(true, dtype=dtype), rtol=tolerance, atol=tolerance / 4
    )


def slope(c, x, y, name):
    """The derivative with respect to ``c`` of the sum of a result, in 60 digits."""

    def value(c):
        ball = truth.Ball(c)
        if name == "dist":
            return mp.re(ball.dist(truth.exact(x), truth.exact(y)))
        return mp.re(sum(getattr(ball, name)(truth.exact(x))))

    step = mpf(10) ** -15
    c = mpf(c) or mpf(10) ** -30
    with workdps(60):
        return float((value(c + step) - value(c - step)) / (2 * step))


@pytest.mark.parametrize("c", [*NEAR_FLAT, 0.0, -1e-3, -0.05, -0.2, -1.0])
@pytest.mark.parametrize("name", ["dist", "expmap0", "logmap0"])
def test_the_slope_in_the_curvature_is_right_across_flat_space(name, c):
    x, y = (normal(seed, 8, 4, dtype=torch.float32) for seed in (0, 1))
    x, y = (v / v.norm(dim=-1, keepdim=True) / 2 for v in (x, y))
    each = torch.full((8,), c, dtype=torch.float32, requires_grad=True)
    given = (x, y) if name == "dist" else (x,)
    (got,) = torch.autograd.grad(getattr(Stereographic(each), name)(*given).sum(), each)
    c = each[0].item()
    true = [slope(c, *pair, name) for pair in zip(x.tolist(), y.tolist(), strict=True)]
    torch.testing.assert_close(got, torch.tensor(true), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ROLES | OWN[spherical])
def test_one_record_may_mix_all_signs(name):
    c = torch.tensor([-0.8, 0.0, 0.6], dtype=torch.float64)
    given = arguments(spherical, name, 0.8)
    each = [
        call(Stereographic, name, value, *(t[i] for t in given))
        for i, value in enumerate(c.tolist())
    ]
    shaped = c.reshape(3, 1, 1) if name.startswith("cdist") else c
    close(call(Stereographic, name, shaped, *given), torch.stack(each), 1e-12)


@pytest.mark.parametrize("c", [-0.1, -1.0, -3.0])
def test_the_sphere_agrees_with_geoopt(c):
    ours = Stereographic(c)
    theirs = geoopt.SphereProjection(torch.tensor(-c, dtype=torch.float64))
    x, y = (points(spherical, -c, s, 50, 4) for s in (0, 1))
    u, v = (normal(s, 50, 4) / 8 for s in (2, 3))
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
        close(getattr(ours, name)(*given), getattr(theirs, name)(*given), 1e-9)
    close(ours.inner(x, u, v), theirs.inner(x, u, v, keepdim=True).squeeze(-1))
    w = normal(4, 50).abs()
    close(ours.centroid(x, w), theirs.weighted_midpoint(x, w), 1e-9)
    close(ours.dist2plane(x, y, v), theirs.dist2plane(x, y, v, signed=True), 1e-8)


def test_a_great_circle_comes_back_and_passes_the_antipode():
    space, turn = Stereographic(-4.0), torch.pi / 2  # the circumference is pi
    x = points(spherical, 4.0, 0, 10, 3)
    u = tangents(spherical, 4.0, 1, x)
    u = u / space.norm(x, u).unsqueeze(-1)
    close(space.expmap(x, 2 * turn * u), x, 1e-9)
    opposite = space.expmap(x, turn * u)
    close(space.dist(x, opposite), torch.full((10,), turn, dtype=x.dtype), 1e-12)
    close(opposite, x / (-4 * x.square().sum(-1, keepdim=True)), 1e-7)
    close(space.logmap(x, space.expmap(x, 1.5 * turn * u)), -0.5 * turn * u, 1e-9)


def test_the_distance_to_a_great_circle_reaches_a_quarter_of_it():
    space = Stereographic(-1.0)
    pole = torch.tensor([0.0, 1.0])  # of the great circle along the first axis
    plane, normal_there = torch.zeros(2), torch.tensor([0.0, 3.0])
    for away in (0.0, 1e-4, 0.01):
        x = space.expmap(pole, torch.tensor([away, 0.0]))
        expected = torch.tensor(torch.pi / 2 - away)  # its metric there is the Euclidean one
        close(space.dist2plane(x, plane, normal_there), expected, 3e-7)
        close(space.dist2plane(-x, plane, normal_there), -expected, 3e-7)


@pytest.mark.parametrize("dim", [1, 3])
def test_the_centroid_is_the_normalised_mean_of_the_embedded_points(dim):
    c, x, w = -0.5, normal(0, 20, 5, dim) * 2, normal(1, 20, 5).abs()
    t = -c * x.square().sum(-1, keepdim=True)
    embedded = torch.cat(((1 - t) / (1 + t), 2 * (-c) ** 0.5 * x / (1 + t)), -1)
    mean = (w.unsqueeze(-1) * embedded).sum(-2)
    mean = mean / mean.norm(dim=-1, keepdim=True)
    expected = mean[..., 1:] / (1 + mean[..., :1]) / (-c) ** 0.5
    close(Stereographic(c).centroid(x, w), expected, 1e-9)


def test_the_mean_of_points_within_a_cap_is_where_the_logarithms_cancel():
    space = Stereographic(-1.0)
    x = torch.nn.functional.normalize(normal(0, 20, 6, 3), dim=-1) * 0.35
    x = space.mobius_add(normal(1, 20, 1, 3), x)
    m = frechet_mean(space, x)
    mean = space.logmap(m.unsqueeze(-2), x).mean(-2)
    close(space.norm(m, mean), torch.zeros(20, dtype=x.dtype), 1e-12)


def test_a_learnt_curvature_changes_its_sign():
    c = torch.zeros((), dtype=torch.float64, requires_grad=True)
    corner = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    goal = 2.2  # below the flat distance of 2.83, so the space must become a sphere
    optimiser = torch.optim.SGD([c], lr=0.05)
    for _ in range(200):
        optimiser.zero_grad()
        (Stereographic(c).dist(corner[1], corner[2]) - goal).square().backward()
        optimiser.step()
    assert c.item() < -0.1
    close(Stereographic(c).dist(corner[1], corner[2]).detach(), torch.tensor(goal).double(), 1e-6)


@pytest.mark.parametrize("c", [float("nan"), float("inf")])
def test_a_curvature_that_is_no_number_is_refused(c):
    with pytest.raises(ValueError, match="c must be finite"):
        Stereographic(c)
