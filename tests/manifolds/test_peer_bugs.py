"""One test for each fault measured in another library, which ours must not have."""

import copy
import math

import pytest
import torch
from mpmath import mp, mpf

from benchmarks.geometry import truth
from fedbolic.manifolds import Curvature, Lorentz, Poincare, to_lorentz, to_poincare
from fedbolic.optim import SGD
from tests.manifolds.cases import ALL, CURVED, IDS, arguments, call, lifted, normal, points


def exact_plane(space, x, p, a):
    """The signed distance to a hyperplane of the ball in 60 digits."""
    moved = space.add([-b for b in truth.exact(p)], truth.exact(x))
    a = truth.exact(a)
    sine = 2 * space.root * truth.dot(moved, a)
    sine /= (1 - space.c * truth.dot(moved, moved)) * truth.length(a)
    return mp.asinh(sine) / space.root


@pytest.mark.parametrize("radius_x", [0.5, 3.0, 6.2, 9.0])
def test_g8_the_distance_to_a_hyperplane_is_odd(radius_x):
    """geoopt's arsinh cancels on the negative side: -34.5 instead of -12, without a gradient."""
    space, p = Poincare(1.0), torch.zeros(100, 3)
    p[:, 0] = math.tanh(3.0 / 2)
    v = normal(0, 100, 3, dtype=torch.float32)
    x = space.expmap0(v / v.norm(dim=-1, keepdim=True) * radius_x / 2).requires_grad_()
    a = normal(1, 100, 3, dtype=torch.float32)
    there, back = space.dist2plane(x, p, a), space.dist2plane(x, p, -a)
    assert torch.equal(there, -back)
    true = [float(exact_plane(truth.Ball(1.0), *row)) for row in zip(x.tolist(), p, a, strict=True)]
    torch.testing.assert_close(there.detach(), torch.tensor(true), rtol=1e-4, atol=1e-4)
    (g,) = torch.autograd.grad(there.sum(), x)
    assert (g.norm(dim=-1) > 0).all()


@pytest.mark.parametrize("kind", CURVED)
def test_g8_the_hyperplane_is_odd_on_both_models(kind):
    for radius in (0.1, 2.0, 6.0):
        p, x = (points(kind, 1.0, s, 50, 3, dtype=torch.float32, radius=radius) for s in (0, 1))
        a = kind(1.0).proju(p, normal(2, *p.shape, dtype=torch.float32))
        there, back = (kind(1.0).dist2plane(x, p, w) for w in (a, -a))
        assert torch.equal(there, -back)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("size", [1e-4, 1e-6, 1e-8, 1e-15])
def test_small_arguments_keep_their_digits(kind, size):
    """geoopt's logarithmic artanh and arsinh are wrong by 2 % at 1e-6 and by 100 % at 1e-8."""
    v = torch.tensor([[size, 0.0]])
    space = kind(1.0)
    x = space.expmap0(lifted(kind, v))
    length = 2 * size if kind is Poincare else size
    torch.testing.assert_close(space.dist0(x), torch.tensor([length]), rtol=1e-6, atol=0)
    torch.testing.assert_close(space.logmap0(x), lifted(kind, v), rtol=1e-6, atol=0)
    origin = space.origin(*x.shape)
    torch.testing.assert_close(space.dist(origin, x), torch.tensor([length]), rtol=1e-6, atol=0)


def test_far_pairs_of_the_ball_in_float64_do_not_saturate():
    """geoopt clamps artanh at 1 - 1e-7 even in float64: 16.811 for two points at distance 18."""
    space = Poincare(1.0)
    x = space.expmap0(torch.tensor([4.5, 0.0], dtype=torch.float64))
    assert abs(space.dist(x, -x).item() - 18) < 1e-9


@pytest.mark.parametrize("kind", CURVED)
def test_distances_beyond_7_are_distances(kind):
    """hgcn clamps the squared distance at 50."""
    space = kind(1.0)
    for radius in (4.0, 6.0, 8.0):
        v = lifted(kind, torch.tensor([radius / (2 if kind is Poincare else 1), 0.0]))
        x, y = space.expmap0(v), space.expmap0(-v)
        assert abs(space.dist(x, y).item() - 2 * radius) < 1e-2


@pytest.mark.parametrize("kind", CURVED)
def test_no_distance_from_a_point_to_itself_and_no_nan_in_its_gradient(kind):
    """geoopt's hyperboloid gives up to 3e-2; geomstats' ball gives NaN."""
    x = points(kind, 1.0, 0, 100, 16, dtype=torch.float32, radius=1.2).requires_grad_()
    distance = kind(1.0).dist(x, x.detach())
    assert torch.equal(distance, torch.zeros(100))
    (g,) = torch.autograd.grad(distance.sum(), x)
    assert torch.equal(g, torch.zeros_like(x))


@pytest.mark.parametrize("kind", CURVED)
def test_the_logarithm_at_the_point_itself_has_the_identity_as_derivative(kind):
    """geoopt's ball gives 0, its hyperboloid 3e-4."""
    space = kind(1.0)
    x = points(kind, 1.0, 0, 3)
    slope = torch.func.jacrev(lambda y: space.logmap(x, y))(x)
    v = space.logmap(x, points(kind, 1.0, 1, 3))  # a tangent, as the hyperboloid requires
    torch.testing.assert_close(slope @ v, v, rtol=1e-9, atol=1e-9)


def test_a_point_on_the_rim_keeps_a_gradient():
    """geoopt's gradient is 0, hypll's is infinite."""
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    distance = Poincare(1.0).dist(x, torch.tensor([0.3, 0.4]))
    distance.backward()
    assert 15 < distance.item() < 18
    assert x.grad.isfinite().all()
    assert x.grad.norm() > 0


@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
def test_no_operation_writes_into_its_arguments(kind, name):
    """geoopt's egrad2rgrad overwrites the gradient, its ball the caller's curvature."""
    c = torch.tensor(0.7, dtype=torch.float64)
    given = arguments(kind, name, 0.7)
    before = [t.clone() for t in (c, *given)]
    call(kind, name, c, *given)
    assert all(torch.equal(b, a) for b, a in zip(before, (c, *given), strict=True))


@pytest.mark.parametrize("kind", CURVED)
def test_the_inner_product_of_a_batch_is_a_batch(kind):
    """geoopt's ball gives a matrix unless the last axis is kept."""
    x = points(kind, 1.0, 0, 7, 3)
    assert kind(1.0).inner(x, x, x).shape == (7,)


@pytest.mark.parametrize("c", [0.1, 4.0, 10.0])
def test_projections_to_the_hyperboloid_are_right_away_from_curvature_1(c):
    """vdKlis: projx sets x_0^2 - |x_s|^2 to c instead of 1 / c, and proju returns its input."""
    space, a = Lorentz(c), normal(0, 5, 4)
    x, u = space.projx(a), None
    square = x[..., 1:].square().sum(-1) - x[..., 0].square()
    torch.testing.assert_close(square, torch.full((5,), -1 / c, dtype=torch.float64))
    u = space.proju(x, a + 1)
    assert not torch.equal(u, a + 1)
    product = (x[..., 1:] * u[..., 1:]).sum(-1) - x[..., 0] * u[..., 0]
    torch.testing.assert_close(product, torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("c", [0.25, 4.0])
@pytest.mark.parametrize("shape", [(3,), (2, 5, 3)])
def test_the_models_differ_by_the_last_axis_and_the_curvature(c, shape):
    """geoopt uses the wrong axis of 1-D and 3-D tensors and ignores k; HyperCore does the same."""
    ball, lorentz, x = Poincare(c), Lorentz(c), points(Poincare, c, 0, *shape)
    there = to_lorentz(ball, x)
    torch.testing.assert_close(lorentz.dist0(there), ball.dist0(x))
    torch.testing.assert_close(to_poincare(lorentz, there), x)
    product = there[..., 1:].square().sum(-1) - there[..., 0].square()
    torch.testing.assert_close(product, torch.full_like(product, -1 / c), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", CURVED)
def test_expmap_takes_the_point_first(kind):
    """hgcn and HyperCore's mobius_add pass the arguments in the opposite order."""
    space, x = kind(1.0), points(kind, 1.0, 0, 3)
    torch.testing.assert_close(space.expmap(x, torch.zeros_like(x)), x)
    origin = space.origin(*x.shape, dtype=x.dtype)
    torch.testing.assert_close(space.expmap(origin, space.logmap0(x)), x)


def test_mobius_addition_is_not_commutative_and_has_the_right_order():
    """HyperCore's addition on the hyperboloid swaps its arguments."""
    x, y = points(Poincare, 1.0, 0, 3), points(Poincare, 1.0, 1, 3)
    true = [float(a) for a in truth.Ball(1.0).add(truth.exact(x), truth.exact(y))]
    torch.testing.assert_close(Poincare(1.0).mobius_add(x, y), torch.tensor(true).double())
    other = Poincare(1.0).mobius_add(y, x)
    assert not torch.allclose(Poincare(1.0).mobius_add(x, y), other)


@pytest.mark.parametrize("kind", CURVED)
def test_a_softplus_is_never_read_as_a_curvature(kind):
    """hypll's Curvature(1.0)() is 1.3133; geoopt's learnable c is infinite from 89 upwards."""
    assert kind(Curvature(1.0).c).c == 1.0
    assert kind(Curvature(100.0).c).c == 100.0
    assert abs(copy.deepcopy(Curvature(1.0)).double().c.item() - 1) < 1e-7


@pytest.mark.parametrize("kind", CURVED)
def test_momentum_begins_with_a_riemannian_gradient(kind):
    """geoopt's RiemannianSGD starts its buffer with the Euclidean gradient."""
    space, x = kind(1.0), {"x": points(kind, 1.0, 0, 3)}
    g = {"x": normal(1, *x["x"].shape)}
    heavy, light = SGD(momentum=0.9), SGD()
    first, _ = heavy.step(x, g, heavy.init(x), lr=0.1, spaces={"x": space})
    plain, _ = light.step(x, g, {}, lr=0.1, spaces={"x": space})
    torch.testing.assert_close(first["x"], plain["x"])


def test_the_hyperboloid_of_low_curvature_is_not_noise():
    """geoopt's float32 distances at c = 1e-3 between points 0.01 apart are never right."""
    space = Lorentz(1e-3)
    for seed in range(5):
        x, y = (normal(s, 4, dtype=torch.float32) for s in (seed, seed + 50))
        y = x + y * 0.005
        got = space.dist(*(space.projx(lifted(Lorentz, v)) for v in (x, y))).item()
        true = truth.Hyperboloid(1e-3).dist(truth.exact(x), truth.exact(y))
        assert abs(float((mpf(got) - true) / true)) < 1e-6
