"""The page for users of geoopt: complete, true about names, and the bridge against geoopt."""

import csv
import math
import re
from pathlib import Path

import geoopt
import pytest
import torch

from fedbolic import manifolds
from fedbolic.manifolds import Euclidean, Lorentz, Poincare, Product, Stereographic, gyro
from fedbolic.manifolds.geoopt import Bridge
from tests.manifolds.cases import lifted, normal, points, tangents

PAGE = Path(manifolds.__file__).with_name("GEOOPT.md")
with (PAGE.parents[2] / "docs/layers/geoopt.csv").open(newline="") as file:
    TABLE = [*csv.reader(file)][1:]
SPACES = [Poincare(0.7), Stereographic(0.7), Stereographic(-0.7)]


def public(kind):
    known = {*dir(torch.nn.Module)}
    return {name for name in dir(kind) if not name.startswith("_") and name not in known}


def listed(column):
    return {row[0].strip("`") for row in TABLE if row[column] == "yes"}


def test_every_public_name_of_geoopt_is_in_the_table():
    assert listed(1) == public(geoopt.PoincareBall)
    assert listed(2) == public(geoopt.Lorentz)


def test_the_bridge_has_what_the_table_says():
    has = {row[0].strip("`") for row in TABLE if row[4].startswith("yes")}
    assert has <= public(Bridge)


def test_every_counterpart_exists():
    for row in TABLE:
        for owner, name in re.findall(r"\b(space|gyro|Product)\.(\w+)", row[3]):
            of = {"space": Lorentz(), "gyro": gyro, "Product": Product}[owner]
            assert hasattr(of, name) or hasattr(Poincare(), name), (row[0], name)
        for name in re.findall(r"`([A-Za-z_]+)(?:\(|`)", row[3]):
            if name in ("to_lorentz", "to_poincare", "midpoint", "WrappedNormal"):
                assert hasattr(manifolds, name)


def theirs_of(space):
    c = torch.tensor(space.c, dtype=torch.float64)
    return geoopt.PoincareBall(c) if isinstance(space, Poincare) else geoopt.Stereographic(-c)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_the_bridge_agrees_with_geoopt_in_the_conformal_models(space):
    ours, theirs = Bridge(space), theirs_of(space)
    x, y, z = (space.expmap0(normal(s, 20, 3) / 4) for s in (0, 1, 2))
    u, r = normal(3, 20, 3) / 4, normal(4, 20, 1)
    for name, given in {
        "dist0": (x,),
        "expmap0": (u,),
        "logmap0": (x,),
        "transp0": (x, u),
        "transp0back": (x, u),
        "geodesic": (r.sigmoid(), x, y),
        "geodesic_unit": (r.sigmoid(), x, u),
        "lambda_x": (x,),
        "mobius_add": (x, y),
        "mobius_sub": (x, y),
        "mobius_coadd": (x, y),
        "mobius_cosub": (x, y),
        "mobius_scalar_mul": (r, x),
        "mobius_pointwise_mul": (u, x),
        "mobius_matvec": (normal(5, 4, 3), x),
        "gyration": (x, y, z),
        "antipode": (x,),
        "inv_sproj": (x,),
        "sproj": (theirs.inv_sproj(y),),
    }.items():
        close(getattr(ours, name)(*given), getattr(theirs, name)(*given))
    applied = theirs.mobius_fn_apply(torch.sin, x)
    close(ours.mobius_fn_apply(torch.sin, x), applied)
    for signed in (True, False):
        close(ours.dist2plane(x, y, u, signed=signed), theirs.dist2plane(x, y, u, signed=signed))
    close(ours.dist0(x, keepdim=True), theirs.dist0(x, keepdim=True))


@pytest.mark.parametrize("space", SPACES, ids=repr)
@pytest.mark.parametrize("reducedim", [None, [0], [1], [0, 1]])
@pytest.mark.parametrize("keepdim", [True, False])
def test_midpoints_reduce_the_axes_that_geoopt_reduces(space, reducedim, keepdim):
    x, w = space.expmap0(normal(0, 4, 5, 3) / 4), normal(1, 4, 5).abs()
    given = {"reducedim": reducedim, "keepdim": keepdim}
    expected = theirs_of(space).weighted_midpoint(x, w, **given)
    close(Bridge(space).weighted_midpoint(x, w, **given), expected)


@pytest.mark.parametrize("space", SPACES, ids=repr)
@pytest.mark.parametrize(
    "axes", [{}, {"reducedim": [0], "keepdim": True}, {"dim": 1, "keepdim": True}], ids=str
)
@pytest.mark.parametrize(
    "given", [{"lincomb": True}, {"posweight": True, "lincomb": True}], ids=str
)
def test_linear_combinations_and_weights_below_zero_are_geoopts(space, axes, given):
    x, w = space.expmap0(normal(0, 4, 5, 3) / 20), normal(1, 4, 5)
    x = x.movedim(-1, axes.get("dim", -1))
    below = "posweight" in given and space.c > 0  # for those of a sphere see the next test
    for weights in (None, w if below else w.abs()):
        expected = theirs_of(space).weighted_midpoint(x, weights, **axes, **given)
        close(Bridge(space).weighted_midpoint(x, weights, **axes, **given), expected)


@pytest.mark.parametrize("seed", range(4))
def test_a_weight_below_zero_on_a_sphere_is_one_in_the_surrounding_space(seed):
    ours, theirs = Bridge(SPACES[-1]), theirs_of(SPACES[-1])
    x, w = SPACES[-1].expmap0(normal(seed, 7, 3) / 4), normal(seed + 4, 7)
    mean = (w[:, None] * theirs.inv_sproj(x)).sum(0)
    expected = theirs.sproj(mean / mean.norm() / 0.7**0.5)
    close(ours.weighted_midpoint(x, w, posweight=True), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_antipodes_are_half_a_great_circle_away_for_every_curvature(dtype):
    c = torch.tensor([-0.3, -1.0, -4.0, 0.0, 2.0], dtype=dtype)
    space, size = Stereographic(c[:, None]), 10.0 ** torch.arange(-40, 3).to(dtype)
    x = size[:, None] * torch.nn.functional.normalize(normal(0, 1, 3), dim=-1).to(dtype)
    x = space.projx(torch.cat((x, torch.zeros_like(x[:1]))).expand(5, -1, -1))
    away = gyro.antipode(space, x)
    assert away.isfinite().all()
    torch.testing.assert_close(away[3:], -x[3:])
    expected = (math.pi * (-c[:3, None]) ** -0.5).expand(-1, x.shape[1])
    torch.testing.assert_close(space.dist(x, away)[:3], expected, rtol=1e-5, atol=0)


def test_flat_space_is_no_projection():
    with pytest.raises(ValueError, match="give c another value than 0"):
        Bridge(Stereographic(0.0)).sproj(torch.zeros(2, 3))


def test_the_bridge_agrees_with_geoopt_on_the_hyperboloid():
    ours = Bridge(Lorentz(0.5))
    theirs = geoopt.Lorentz(torch.tensor(2.0, dtype=torch.float64))  # the squared radius
    x = points(Lorentz, 0.5, 0, 20, 3)
    u, o = tangents(Lorentz, 0.5, 1, x), lifted(Lorentz, normal(2, 20, 3))
    close(ours.dist0(x), theirs.dist0(x))
    close(ours.expmap0(o), theirs.expmap0(o))
    close(ours.logmap0(x), theirs.logmap0(x))
    close(ours.transp0(x, o), theirs.transp0(x, o))
    close(ours.transp0back(x, u), theirs.transp0back(x, u))
    length = ours.norm(x, u, keepdim=True)
    t = normal(3, 20, 1).abs()
    radius = 2**0.5
    close(ours.geodesic_unit(t, x, u), theirs.expmap(x, t * u / length))
    close(ours.dist(x, ours.geodesic_unit(radius * t, x, u)), radius * t.squeeze(-1))


@pytest.mark.parametrize(
    "space",
    [*SPACES, Lorentz(0.7), Euclidean(), Product((Lorentz(1.0), Poincare(1.0)), (3, 2))],
    ids=repr,
)
def test_random_points_have_the_given_spread_in_units_of_length(space):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = Bridge(space).random_normal(4000, 5, std=0.3, dtype=torch.float64)
    assert space.contains(x).all()
    dims = {Lorentz: 4, Product: 4}.get(type(space), 5)
    mean_square = space.dist0(x.as_subclass(torch.Tensor)).square().mean().item()
    assert mean_square == pytest.approx(dims * 0.09, rel=0.1)  # its deviation is below 0.02


def test_moebius_operations_need_a_conformal_model():
    x = points(Lorentz, 1.0, 0, 2, 3)
    with pytest.raises(ValueError, match=r"need Poincare or Stereographic, got Lorentz"):
        Bridge(Lorentz()).mobius_add(x, x)
    with pytest.raises(ValueError, match="axis of coordinates"):
        Bridge(Lorentz()).weighted_midpoint(x, reducedim=[-1])


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_laws_of_gyrovectors(space):
    x, y, z = (space.expmap0(normal(s, 20, 3) / 4) for s in (0, 1, 2))
    turned = gyro.gyration(space, x, y, z)
    left = space.mobius_add(x, space.mobius_add(y, z))
    close(left, space.mobius_add(space.mobius_add(x, y), turned))
    close(turned.norm(dim=-1), z.norm(dim=-1))
    close(gyro.mobius_coadd(space, x, y), gyro.mobius_coadd(space, y, x))
    double = gyro.mobius_scalar_mul(space, torch.full((20,), 2.0).double(), x)
    close(double, space.mobius_add(x, x))


def test_the_example_of_the_page_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, PAGE.name, "exec"), {"__name__": "page"})
