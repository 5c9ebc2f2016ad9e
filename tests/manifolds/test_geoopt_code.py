"""Code that was written for geoopt runs on our spaces when only the line that makes one changes.

Layers, data sets, optimisers and samplers of geoopt, and networks as its examples write them. Each
takes a manifold of geoopt and its bridge; where nothing is drawn, results are equal.
"""

import geoopt
import pytest
import torch
from geoopt.datasets.stereographic import StereographicTreeDataset
from geoopt.layers.stereographic import Distance2StereographicHyperplanes
from geoopt.samplers import RHMC, RSGLD, SGRHMC
from torch import nn

from fedbolic.manifolds import Curvature, Lorentz, Poincare, Stereographic
from fedbolic.manifolds.geoopt import Bridge
from tests.manifolds.cases import normal, points

C = 0.7
BALLS = {
    "ball": (lambda: geoopt.PoincareBall(double(C)), lambda: Bridge(Poincare(C))),
    "stereographic": (lambda: geoopt.Stereographic(double(-C)), lambda: Bridge(Stereographic(C))),
    "sphere": (lambda: geoopt.SphereProjection(double(C)), lambda: Bridge(Stereographic(-C))),
}
every_ball = pytest.mark.parametrize("name", BALLS)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def close(got, expected, tolerance=1e-9):
    got, expected = (x.detach().as_subclass(torch.Tensor) for x in (got, expected))
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def inside(*shape, seed=0):
    return 0.4 * torch.tanh(normal(seed, *shape))


class MobiusLinear(nn.Module):
    """A layer as in geoopt's examples: a matrix, a bias on the ball and a function of tangents."""

    def __init__(self, ball, bias):
        super().__init__()
        self.ball, self.weight = ball, nn.Parameter(normal(9, 4, 3) / 4)
        self.bias = geoopt.ManifoldParameter(bias.clone(), manifold=ball)

    def forward(self, x):
        moved = self.ball.mobius_add(self.ball.mobius_matvec(self.weight, x), self.bias)
        return self.ball.expmap0(torch.tanh(self.ball.logmap0(moved)))


@every_ball
@pytest.mark.parametrize("ndim", [0, 2])
@pytest.mark.parametrize("squared", [True, False])
def test_the_layer_of_hyperplanes_gives_geoopts_distances(name, ndim, squared):
    layers = [
        Distance2StereographicHyperplanes(3, 5, ball=make().float(), ndim=ndim, squared=squared)
        for make in BALLS[name]
    ]
    with torch.no_grad():
        for layer in layers:
            layer.points.copy_(inside(5, 3, seed=1))
    x = inside(2, 3, *(4, 4)[:ndim], seed=2).float()
    close(layers[1](x), layers[0](x), 1e-5)


def test_the_layer_of_hyperplanes_starts_on_the_ball():
    layer = Distance2StereographicHyperplanes(3, 5, ball=Bridge(Poincare(C)))
    assert layer.ball.space.contains(layer.points).all()


@every_ball
@pytest.mark.parametrize("optimizer", ["RiemannianAdam", "RiemannianSGD"])
def test_a_layer_of_the_examples_learns_alike(name, optimizer):
    trained = []
    for make in BALLS[name]:
        layer, x, goal = MobiusLinear(make(), inside(4)), inside(6, 3, seed=1), inside(6, 4, seed=2)
        steps = getattr(geoopt.optim, optimizer)(layer.parameters(), lr=0.05)
        for _ in range(5):
            steps.zero_grad()
            layer.ball.dist2(layer(x), goal).sum().backward()
            steps.step()
        trained.append(layer(x))
    # geoopt's retraction is not its exponential map
    close(trained[1], trained[0], 0.05)


@pytest.mark.parametrize("optimizer", ["SparseRiemannianAdam", "SparseRiemannianSGD"])
def test_sparse_optimisers_move_the_rows_of_a_batch(optimizer):
    ball = Bridge(Poincare(C))
    table = nn.Embedding(5, 3, sparse=True, dtype=torch.float64)
    table.weight = geoopt.ManifoldParameter(inside(5, 3), manifold=ball)
    before = table.weight.detach().clone()
    steps = getattr(geoopt.optim, optimizer)(table.parameters(), lr=0.1)
    ball.dist0(table(torch.tensor([1, 3]))).sum().backward()
    steps.step()
    moved = (table.weight.detach() != before).any(-1)
    assert moved.tolist() == [False, True, False, True, False]


def test_the_line_search_goes_towards_a_point():
    goal, ball = inside(3, seed=1), Bridge(Poincare(C))
    x = geoopt.ManifoldParameter(inside(3), manifold=ball)
    steps = geoopt.optim.RiemannianLineSearch([x])

    def closure():
        steps.zero_grad()
        loss = 0.4 * ball.dist(x, goal) ** 2  # the first step is taken: geoopt fails to shorten one
        loss.backward()
        return loss

    before = ball.dist(x.detach(), goal)
    steps.step(closure)
    assert ball.dist(x.detach(), goal) < before / 2


@pytest.mark.parametrize("sampler", [RHMC, RSGLD, SGRHMC])
def test_samplers_stay_on_the_space(sampler):
    settings = {RHMC: {"n_steps": 2}, RSGLD: {}, SGRHMC: {"n_steps": 2}}[sampler]
    ball = Bridge(Poincare(C))
    x = geoopt.ManifoldParameter(inside(4, 3), manifold=ball)
    chain = sampler([x], epsilon=1e-2, **settings)
    for _ in range(3):
        chain.step(lambda: -(ball.dist0(x) ** 2).sum())
    assert ball.space.contains(x.detach()).all()
    assert not x.detach().equal(inside(4, 3))


def test_the_tree_of_geoopt_is_drawn_on_our_ball():
    data = StereographicTreeDataset(Bridge(Poincare(1.0)), 2, 3, numberOfsiblings=2)
    assert (data.num_classes, len(data)) == (15, 30)
    assert Poincare(1.0).contains(data.data).all()
    steps = Poincare(1.0).dist(data.origin_data[0], data.origin_data[1:3])
    torch.testing.assert_close(steps, torch.ones(2))


def test_a_product_of_geoopt_takes_bridges():
    ours = geoopt.ProductManifold((Bridge(Poincare(C)), 3), (Bridge(Lorentz(C)), 4))
    theirs = geoopt.ProductManifold(
        (geoopt.PoincareBall(double(C)), 3), (geoopt.Lorentz(double(1 / C)), 4)
    )
    x, y = (torch.cat((inside(5, 3, seed=s), points(Lorentz, C, s, 5, 3)), -1) for s in (0, 1))
    close(ours.dist(x, y), theirs.dist(x, y), 1e-7)
    close(ours.projx(x), x)


def test_a_scaled_manifold_of_geoopt_takes_a_bridge():
    scaled = geoopt.Scaled(Bridge(Poincare(C)), 2.0)
    theirs = geoopt.Scaled(geoopt.PoincareBall(double(C)), 2.0)
    x, y, u = (inside(5, 3, seed=s) for s in (0, 1, 2))
    close(scaled.dist(x, y), theirs.dist(x, y))
    close(scaled.dist0(x), theirs.dist0(x))
    close(scaled.expmap0(u), theirs.expmap0(u))


@every_ball
def test_the_numbers_of_a_manifold_are_geoopts(name):
    theirs, ours = (make() for make in BALLS[name])
    close(ours.k.double(), theirs.k, 1e-6)
    close(ours.radius.double(), theirs.radius, 1e-6)
    if name == "ball":
        close(ours.c.double(), theirs.c, 1e-6)
    hyperboloid = geoopt.Lorentz(double(1 / C))
    close(Bridge(Lorentz(C)).k.double(), hyperboloid.k, 1e-6)


def test_a_learnt_curvature_is_a_parameter_of_the_bridge():
    ball = Bridge(Poincare(c=Curvature(C)))
    (raw,) = ball.parameters()
    steps = torch.optim.SGD(ball.parameters(), lr=0.1)
    x, y = inside(3).float(), inside(3, seed=1).float()
    first = ball.dist(x, y)
    for _ in range(20):
        steps.zero_grad()
        (ball.dist(x, y) - first.detach() - 0.1).square().backward()
        steps.step()
    assert ball.dist(x, y) > first
    assert ball.k.item() == pytest.approx(-ball.c.item())
    assert raw.grad is not None


@every_ball
@pytest.mark.parametrize("dim", [0, 1, -3, -2])
def test_an_operation_takes_the_axis_of_coordinates(name, dim):
    theirs, ours = (make() for make in BALLS[name])
    x, y, z, u = (inside(4, 4, 5, seed=s) for s in range(4))
    r = normal(7, 5).sigmoid()
    for operation, given in {
        "dist": (x, y),
        "dist2": (x, y),
        "dist0": (x,),
        "expmap": (x, u),
        "expmap0": (u,),
        "logmap": (x, y),
        "logmap0": (x,),
        "transp": (x, y, u),
        "transp0": (x, u),
        "transp0back": (x, u),
        "transp_follow_expmap": (x, u, z),
        "egrad2rgrad": (x, u),
        "norm": (x, u),
        "projx": (x,),
        "proju": (x, u),
        "geodesic": (r, x, y),
        "geodesic_unit": (r, x, u),
        "lambda_x": (x,),
        "dist2plane": (x, y, u),
        "mobius_add": (x, y),
        "mobius_sub": (x, y),
        "mobius_coadd": (x, y),
        "mobius_cosub": (x, y),
        "mobius_scalar_mul": (r, x),
        "mobius_pointwise_mul": (u, x),
        "gyration": (x, y, z),
    }.items():
        expected = getattr(theirs, operation)(*given, dim=dim)
        close(getattr(ours, operation)(*given, dim=dim), expected, 1e-7)
    for operation, given in {"dist": (x, y), "norm": (x, u), "dist2plane": (x, y, u)}.items():
        expected = getattr(theirs, operation)(*given, dim=dim, keepdim=True)
        close(getattr(ours, operation)(*given, dim=dim, keepdim=True), expected, 1e-7)
    for project in (True, False):
        close(ours.expmap(x, u, dim=dim, project=project), theirs.expmap(x, u, dim=dim))
    plane = {"dim": dim, "signed": True, "scaled": True}
    close(ours.dist2plane(x, y, u, **plane), theirs.dist2plane(x, y, u, **plane), 1e-7)
    applied = theirs.mobius_fn_apply(torch.clamp, x, 0.1, max=0.2, dim=dim)
    close(ours.mobius_fn_apply(torch.clamp, x, 0.1, max=0.2, dim=dim), applied)
    chain = theirs.mobius_fn_apply_chain(x, torch.sin, torch.tanh, dim=dim)
    close(ours.mobius_fn_apply_chain(x, torch.sin, torch.tanh, dim=dim), chain)
    axes = [axis for axis in range(3) if axis != dim % 3]
    w = normal(9, *(x.shape[axis] for axis in axes)).abs()
    for reducedim in (None, axes[:1], axes):
        given = {"reducedim": reducedim, "dim": dim, "keepdim": True}
        close(ours.weighted_midpoint(x, w, **given), theirs.weighted_midpoint(x, w, **given), 1e-7)


@pytest.mark.parametrize("space", [Poincare(C), Stereographic(-C), Lorentz(C)], ids=str)
def test_a_wrapped_normal_has_its_mean_and_spread(space):
    bridge = Bridge(space)
    mean = space.expmap0(space.lift(inside(3)) if isinstance(space, Lorentz) else inside(3))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = bridge.wrapped_normal(4000, len(mean), mean=mean, std=0.3).as_subclass(torch.Tensor)
    assert space.contains(x).all()
    assert space.dist(x, mean).square().mean().item() == pytest.approx(3 * 0.09, rel=0.1)
    tangents = space.logmap(mean, x)
    assert space.norm(mean, tangents.mean(0)) < 0.02
