"""Entailment cones against the printed formulas and the geometric definition in 60 digits."""

import math

import pytest
import torch
from mpmath import mp, mpf
from torch.autograd import gradcheck

from benchmarks.geometry import truth
from fedbolic.manifolds import (
    Lorentz,
    Poincare,
    entailment_loss,
    exterior_angle,
    half_aperture,
    to_lorentz,
)
from tests.manifolds.cases import CURVED, lifted, normal, points

CURVATURES = (1e-3, 0.7, 1.0, 25.0)
K = 0.1


def pairs(kind, c, radii, *, dtype=torch.float64):
    """Apexes ``radii`` from the origin, and points up to two radii away from these."""
    x = points(kind, c, 0, 12, 3, dtype=dtype)
    x = kind(c).logmap0(x)
    length = kind(c).norm(kind(c).origin(x.shape[-1], dtype=dtype), x).unsqueeze(-1)
    x = kind(c).expmap0(x * (radii / c**0.5) / length)
    v = normal(1, 12, 3, dtype=dtype) / c**0.5 / (2 if kind is Poincare else 1)
    return x, kind(c).expmap(x, kind(c).transp0(x, lifted(kind, v)))


def space_coordinates(kind, x):
    return [truth.exact(row) for row in (x[..., 1:] if kind is Lorentz else x).tolist()]


def printed_half_aperture(kind, c, x):
    norm, k = truth.length(x), mpf(K)
    sine = k * (1 - c * norm**2) / norm if kind is Poincare else 2 * k / norm
    return mp.asin(min(mpf(1), sine / mp.sqrt(c)))


def printed_angle(kind, c, x, y):
    """Eq. (28) of Ganea et al. for the ball of radius 1; Eq. (6) of Desai et al."""
    if kind is Lorentz:
        space = truth.Hyperboloid(c)
        product = c * space.product(x, y)
        above = space.time(y) + space.time(x) * product
        return mp.acos(above / (truth.length(x) * mp.sqrt(product**2 - 1)))
    x, y = ([mp.sqrt(c) * a for a in v] for v in (x, y))
    xx, yy, xy = truth.dot(x, x), truth.dot(y, y), truth.dot(x, y)
    apart = truth.length(truth.combine(mpf(1), x, mpf(-1), y))
    below = mp.sqrt(xx) * apart * mp.sqrt(1 + xx * yy - 2 * xy)
    return mp.acos((xy * (1 + xx) - xx * (1 + yy)) / below)


def geometric_angle(kind, c, x, y):
    """The angle between the logarithms of ``y`` and, reversed, of the origin."""
    space = (truth.Hyperboloid if kind is Lorentz else truth.Ball)(c)
    to_y, to_origin = space.logmap(x, y), space.logmap(x, [mpf(0)] * len(x))
    if kind is Lorentz:
        product = space.inner(x, to_y, to_origin)
        return mp.acos(-product / (space.norm(x, to_y) * space.norm(x, to_origin)))
    return mp.acos(-truth.dot(to_y, to_origin) / (truth.length(to_y) * truth.length(to_origin)))


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("radii", [0.05, 0.3, 1.0, 4.0])
def test_the_half_aperture_is_the_printed_formula(kind, c, radii):
    x, _ = pairs(kind, c, radii)
    true = [printed_half_aperture(kind, mpf(c), v) for v in space_coordinates(kind, x)]
    torch.testing.assert_close(
        half_aperture(kind(c), x, k=K), x.new_tensor(true), rtol=1e-11, atol=0
    )


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("radii", [1e-6, 0.3, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("oracle", [printed_angle, geometric_angle])
def test_the_exterior_angle_is_the_printed_and_the_geometric_one(kind, c, radii, oracle):
    x, y = pairs(kind, c, radii)
    given = zip(space_coordinates(kind, x), space_coordinates(kind, y), strict=True)
    true = x.new_tensor([oracle(kind, mpf(c), *pair) for pair in given])
    bound = 50 * torch.finfo(x.dtype).eps * math.cosh(radii)
    torch.testing.assert_close(exterior_angle(kind(c), x, y), true, rtol=0, atol=bound)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("apart", [1e-2, 1e-5, 1e-8, 1e-12])
def test_close_points_keep_their_angle_in_float32(kind, apart):
    x, _ = pairs(kind, 1.0, 0.5, dtype=torch.float32)
    y = x + apart * lifted(kind, normal(3, 12, 3, dtype=torch.float32))
    different = ((y - x)[..., -3:] != 0).any(-1)
    given = zip(space_coordinates(kind, x), space_coordinates(kind, y), strict=True)
    true = [
        printed_angle(kind, mpf(1), *pair) if ok else mpf(0)
        for pair, ok in zip(given, different.tolist(), strict=True)
    ]
    torch.testing.assert_close(
        exterior_angle(kind(1.0), x, y), x.new_tensor(true), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("kind", CURVED)
def test_lengths_whose_squares_underflow_keep_their_angle(kind):
    tiny = 1e-30
    x = lifted(kind, torch.tensor([[tiny, 0.0], [0.5, 0.0], [0.5, 0.0]]))
    y = lifted(kind, torch.tensor([[2 * tiny, tiny], [0.5, tiny], [0.5, -tiny]]))
    expected = torch.tensor([math.pi / 4, math.pi / 2, math.pi / 2])
    torch.testing.assert_close(exterior_angle(kind(1.0), x, y), expected)


@pytest.mark.parametrize("c", CURVATURES)
def test_the_models_agree_at_corresponding_points(c):
    ball = Poincare(c)
    for radii in (0.05, 0.5, 2.0, 6.0):
        x, y = pairs(Poincare, c, radii)
        others = Lorentz(c), to_lorentz(ball, x), to_lorentz(ball, y)
        for got, expected in (
            (half_aperture(ball, x), half_aperture(*others[:2])),
            (exterior_angle(ball, x, y), exterior_angle(*others)),
            (entailment_loss(ball, x, y), entailment_loss(*others)),
        ):
            torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", CURVED)
def test_units_of_length_do_not_matter(kind):
    x, y = pairs(kind, 1.0, 1.5)
    torch.testing.assert_close(
        entailment_loss(kind(4.0), x / 2, y / 2), entailment_loss(kind(1.0), x, y)
    )


def beyond(space, x, angle, length):
    """The point reached from ``x`` of a plane by a geodesic that leaves the ray by ``angle``."""
    u = space.logmap0(x)[..., -2:]
    u = length.unsqueeze(-1) * u / u.norm(dim=-1, keepdim=True)
    turned = torch.stack((-u[..., 1], u[..., 0]), -1)
    cos, sin = angle.cos().unsqueeze(-1), angle.sin().unsqueeze(-1)
    return space.expmap(x, space.transp0(x, lifted(type(space), cos * u + sin * turned)))


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("c", CURVATURES)
def test_a_geodesic_leaves_the_ray_by_the_exterior_angle(kind, c):
    space, x = kind(c), points(kind, c, 0, 200, 2, radius=c**-0.5)
    angle = torch.linspace(0, math.pi, 200, dtype=torch.float64)
    y = beyond(space, x, angle, normal(1, 200).abs() * c**-0.5)
    torch.testing.assert_close(exterior_angle(space, x, y), angle, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", CURVED)
def test_cones_are_nested(kind):
    """A point of the cone of a point of the cone of ``x`` lies in the cone of ``x``."""
    space, x = kind(1.0), points(kind, 1.0, 0, 500, 2)
    shares = normal(1, 2, 500).tanh()
    y = beyond(space, x, shares[0] * half_aperture(space, x), normal(2, 500).abs())
    z = beyond(space, y, shares[1] * half_aperture(space, y), normal(3, 500).abs())
    defined = space.dist0(x) > math.asinh(2 * K)
    for inner, outer in ((x, y), (y, z), (x, z)):
        assert (entailment_loss(space, inner, outer)[defined] < 1e-9).all()
    assert (entailment_loss(space, z, x)[defined] > 1).all()


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("c", CURVATURES)
def test_the_cone_is_a_half_space_from_the_boundary_of_the_ball_around_the_origin_on(kind, c):
    space = kind(c)
    radius = torch.tensor(math.asinh(2 * K) / c**0.5, dtype=torch.float64)
    r = radius * torch.tensor([0, 1e-3, 1 - 1e-9, 1 + 1e-9, 2], dtype=torch.float64).unsqueeze(-1)
    u = lifted(kind, torch.cat((r, 0 * r), -1) / (2 if kind is Poincare else 1))
    got = half_aperture(space, space.expmap0(u), k=K)
    assert torch.equal(got[:3], torch.full((3,), math.pi / 2, dtype=torch.float64))
    assert (got[3:] < math.pi / 2).all()


@pytest.mark.parametrize("kind", CURVED)
def test_angles_on_the_axis_are_hand_worked(kind):
    space = kind(1.0)
    u = torch.tensor([[0.5, 0.0], [1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    near, far, origin, behind = space.expmap0(lifted(kind, u))
    x = torch.stack((near, far, far, far, near, origin))
    y = torch.stack((far, near, origin, behind, near, far))
    expected = x.new_tensor([0, math.pi, math.pi, math.pi, 0, 0])
    torch.testing.assert_close(exterior_angle(space, x, y), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", CURVED)
def test_the_derivatives_are_those_of_finite_differences(kind):
    x, y = pairs(kind, 0.7, 1.5)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    given = (c, x.requires_grad_(), y.requires_grad_())
    assert gradcheck(lambda c, x, y: exterior_angle(kind(c), x, y), given, fast_mode=True)
    assert gradcheck(lambda c, x, y: entailment_loss(kind(c), x, y), given, fast_mode=True)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1e-12, 1.0, 100.0])
def test_every_pair_of_extremes_has_a_finite_loss_and_gradient(kind, dtype, value):
    v = normal(0, 3, dtype=dtype)
    v = v / v.norm()
    sizes = (0, 1e-30, 1e-18, 0.1 * value**-0.5, (1 - 1e-6) * value**-0.5, 1e9, 1e18)
    rows = [sign * size * v for size in sizes for sign in (1, -1)] + [normal(1, 3, dtype=dtype)]
    x, y = (lifted(kind, torch.stack(rows)) for _ in range(2))
    x, y = x.unsqueeze(1).requires_grad_(), y.unsqueeze(0).requires_grad_()
    c = torch.tensor(value, dtype=dtype, requires_grad=True)
    for out in (exterior_angle(kind(c), x, y), half_aperture(kind(c), x)):
        assert ((out >= 0) & (out <= math.pi + 1e-6)).all()
        grads = torch.autograd.grad(out.sum(), (c, x, y), allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in grads)


@pytest.mark.parametrize("kind", CURVED)
def test_gradients_are_0_where_the_angle_is_a_convention(kind):
    x = lifted(kind, torch.tensor([[0.0, 0.0], [0.3, 0.1]])).requires_grad_()
    y = lifted(kind, torch.tensor([[0.2, 0.3], [0.3, 0.1]])).requires_grad_()
    angle = exterior_angle(kind(1.0), x, y)
    assert torch.equal(angle, torch.zeros(2))
    for g in torch.autograd.grad(angle.sum(), (x, y)):
        assert torch.equal(g, torch.zeros_like(g))


@pytest.mark.parametrize("kind", CURVED)
def test_vmap_is_a_loop(kind):
    x, y = pairs(kind, 0.7, 1.5)
    mapped = torch.func.vmap(lambda x, y: entailment_loss(kind(0.7), x, y))(x, y)
    looped = [entailment_loss(kind(0.7), *pair) for pair in zip(x, y, strict=True)]
    torch.testing.assert_close(mapped, torch.stack(looped))


def test_flat_space_has_euclidean_angles_and_no_cones():
    x, y = normal(0, 8, 3), normal(1, 8, 3)
    cosine = torch.nn.functional.cosine_similarity(y - x, x, dim=-1)
    flat = Poincare(0.0)
    torch.testing.assert_close(exterior_angle(flat, x, y), cosine.acos())
    assert (half_aperture(flat, x) == math.pi / 2).all()


def test_half_types_are_computed_in_float32():
    x, y = (t.half() for t in pairs(Poincare, 1.0, 1.0, dtype=torch.float32))
    expected = entailment_loss(Poincare(1.0), x.float(), y.float())
    torch.testing.assert_close(
        entailment_loss(Poincare(1.0), x, y).float(), expected, rtol=1e-3, atol=2e-3
    )


@pytest.mark.parametrize("k", [0.0, -1.0, math.nan, math.inf])
def test_a_constant_that_is_not_positive_is_refused(k):
    with pytest.raises(ValueError, match="k must be a positive number"):
        half_aperture(Lorentz(), Lorentz().origin(3), k=k)
