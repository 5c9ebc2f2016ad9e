"""Layers made of hyperplanes, compared with mpmath, geoopt and their definitions."""

import itertools

import geoopt
import mpmath
import pytest
import torch

from fedbolic.formulas.sinh_ratio import asinh_ratio, sinh_ratio
from fedbolic.manifolds import Curvature, Lorentz, Poincare, to_lorentz, to_poincare
from fedbolic.nn import MLR, Linear, LorentzFC
from tests.nn.cases import points

mpmath.mp.dps = 60
CS = (1e-3, 0.1, 1.0, 4.0)


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def filled(layer, *, spread=1.0, seed=3):
    """The layer with random weights and offsets."""
    with torch.no_grad():
        layer.weight.copy_(normal(*layer.weight.shape, seed=seed))
        layer.bias.copy_(spread * normal(*layer.bias.shape, seed=seed + 1))
    return layer


def exact_logit(x, z, a, c):
    """The logit of Bdeir et al., computed from the stored floats in 60 digits."""
    x, z, a, c = (
        [mpmath.mpf(t) for t in x],
        [mpmath.mpf(t) for t in z],
        mpmath.mpf(a),
        mpmath.mpf(c),
    )
    r = mpmath.sqrt(c)
    size = mpmath.sqrt(sum(t * t for t in z))
    alpha = mpmath.cosh(r * a) * sum(s * t for s, t in zip(x[1:], z, strict=True))
    alpha -= mpmath.sinh(r * a) * size * x[0]
    beta = mpmath.sqrt((mpmath.cosh(r * a) * size) ** 2 - (mpmath.sinh(r * a) * size) ** 2)
    return beta / r * mpmath.asinh(r * alpha / beta), size / r


@pytest.mark.parametrize("c", CS)
@pytest.mark.parametrize("learnable", [True, False])
def test_g9_logits_are_right_to_1e_5_for_hyperplanes_up_to_20_radii_away(c, learnable):
    curvature = Curvature(c) if learnable else c
    head = MLR(Lorentz(c=curvature), 5, 21)
    with torch.no_grad():
        head.weight.copy_(normal(21, 5, seed=1))
        head.bias.copy_(torch.linspace(-20, 20, 21) / c**0.5)
    x = points(Lorentz, c, normal(8, 5) / c**0.5).float()
    logits = head(x)
    assert logits.isfinite().all()
    worst = 0.0
    for i, k in itertools.product(range(8), range(21)):
        now = head.c.item() if learnable else c
        truth, unit = exact_logit(x[i].tolist(), head.weight[k].tolist(), head.bias[k].item(), now)
        error = abs(mpmath.mpf(logits[i, k].item()) - truth) / max(abs(truth), unit)
        worst = max(worst, float(error))
    assert worst <= 1e-5


def test_logits_of_hyperplanes_beyond_any_float_are_finite_with_finite_gradients():
    head = filled(MLR(Lorentz(), 5, 6), spread=1e4)
    x = points(Lorentz, 1.0, 40 * normal(8, 5, dtype=torch.float32)).requires_grad_()
    logits = head(x)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    assert all(t.grad.isfinite().all() for t in (x, head.weight, head.bias))


@pytest.mark.parametrize("c", CS)
def test_ball_logits_are_twice_the_scaled_distances_of_geoopt(c):
    head = filled(MLR(Poincare(c=c), 4, 6).double(), spread=0.5 / c**0.5)
    x = points(Poincare, c, normal(10, 4) / c**0.5)
    ball = geoopt.PoincareBall(c=torch.tensor(c, dtype=torch.float64))
    size = head.weight.norm(dim=-1)
    p = ball.expmap0(head.weight / size.unsqueeze(-1) * head.bias.unsqueeze(-1) / 2)
    d = ball.dist2plane(x.unsqueeze(1), p, head.weight, signed=True)
    torch.testing.assert_close(head(x), 2 * size * d, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("c", CS)
def test_both_models_have_the_same_head(c):
    lorentz = filled(MLR(Lorentz(c=c), 4, 6).double())
    ball = MLR(Poincare(c=c), 4, 6).double()
    ball.load_state_dict({"weight": lorentz.weight / 2, "bias": lorentz.bias})
    x = points(Lorentz, c, normal(10, 4) / c**0.5)
    torch.testing.assert_close(ball(to_poincare(Lorentz(c), x)), lorentz(x))


@pytest.mark.parametrize("c", CS)
def test_a_ball_layer_gives_the_point_at_the_distances_of_its_definition(c):
    layer = filled(Linear(Poincare(c=c), 4, 3).double(), spread=0.5 / c**0.5)
    x = points(Poincare, c, 0.5 * normal(10, 4) / c**0.5)
    y = layer(x)
    ball = geoopt.PoincareBall(c=torch.tensor(c, dtype=torch.float64))
    for k in range(3):
        z, size = layer.weight[k], layer.weight[k].norm()
        p = ball.expmap0(z / size * layer.bias[k] / 2)
        v = 2 * size * ball.dist2plane(x, p, z, signed=True)
        axis = torch.eye(3, dtype=torch.float64)[k]
        there = ball.dist2plane(y, torch.zeros(3, dtype=torch.float64), axis, signed=True)
        torch.testing.assert_close(there, v, rtol=1e-5, atol=1e-6)


def exact_ball_layer(x, weight, bias, c):
    """v, w and y of Shimizu et al. (2021), as written there, in 60 digits."""
    c = mpmath.mpf(c)
    r = mpmath.sqrt(c)
    x = [mpmath.mpf(t) for t in x]
    lam = 2 / (1 - c * sum(t * t for t in x))
    w = []
    for row, a in zip(weight, bias, strict=True):
        z = [mpmath.mpf(t) for t in row]
        size = mpmath.sqrt(sum(t * t for t in z))
        inner = sum(s * t for s, t in zip(x, z, strict=True)) / size
        angle = r * mpmath.mpf(a)  # 2 sqrt(c) r_k
        sinh = lam * r * inner * mpmath.cosh(angle) - (lam - 1) * mpmath.sinh(angle)
        w.append(mpmath.sinh(2 * size * mpmath.asinh(sinh)) / r)
    length = 1 + mpmath.sqrt(1 + c * sum(t * t for t in w))
    return [float(t / length) for t in w]


@pytest.mark.parametrize("c", CS)
def test_a_ball_layer_is_the_formula_of_the_paper(c):
    layer = filled(Linear(Poincare(c=c), 4, 3), spread=0.5 / c**0.5)
    x = points(Poincare, c, 0.5 * normal(6, 4) / c**0.5).float()
    expected = [
        exact_ball_layer(row.tolist(), layer.weight.tolist(), layer.bias.tolist(), c) for row in x
    ]
    torch.testing.assert_close(layer(x), torch.tensor(expected), rtol=2e-5, atol=1e-6 / c**0.5)


def test_a_ball_layer_of_flat_space_is_affine_and_the_limit_of_curved_ones():
    layer = filled(Linear(Poincare(c=0.0), 4, 3).double())
    x = normal(6, 4)
    expected = 2 * x @ layer.weight.mT - layer.weight.norm(dim=-1) * layer.bias
    torch.testing.assert_close(layer(x), expected)
    near = Linear(Poincare(c=1e-9), 4, 3).double()
    near.load_state_dict(dict(layer.named_parameters()))  # of another curvature
    torch.testing.assert_close(near(x), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("c", CS)
def test_space_coordinates_of_a_lorentz_layer_are_scaled_sinhs_of_distances(c):
    layer = filled(LorentzFC(Lorentz(c=c), 4, 3).double(), spread=0.5 / c**0.5)
    x = points(Lorentz, c, normal(10, 4) / c**0.5)
    ball = geoopt.PoincareBall(c=torch.tensor(c, dtype=torch.float64))
    there = to_poincare(Lorentz(c), x)
    size = layer.weight.norm(dim=-1)
    p = ball.expmap0(layer.weight / size.unsqueeze(-1) * layer.bias.unsqueeze(-1) / 2)
    d = ball.dist2plane(there.unsqueeze(1), p, layer.weight, signed=True)
    s = size * torch.sinh(c**0.5 * d) / c**0.5
    torch.testing.assert_close(layer(x)[..., 1:], s, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(layer(x)[..., 0], (1 / c + s.square().sum(-1)).sqrt())


def test_the_radius_grows_with_offsets_where_a_linear_layer_takes_logarithms():
    layer, linear = LorentzFC(Lorentz(), 4, 3).double(), Linear(Lorentz(), 4, 3).double()
    radii = []
    for a in (5.0, 10.0, 20.0):
        with torch.no_grad():
            layer.bias.fill_(-a)
            linear.bias.fill_(a)
        x = Lorentz().origin(5, dtype=torch.float64)
        radii.append([Lorentz().dist0(f(x)).item() for f in (layer, linear)])
    first, second, third = radii
    assert third[0] - second[0] == pytest.approx(10, abs=1e-3)
    assert second[0] - first[0] == pytest.approx(5, abs=1e-3)
    assert third[1] - second[1] < 1


@pytest.mark.parametrize("c", CS)
def test_a_boost_is_a_layer_of_the_hyperboloid_and_keeps_distances(c):
    v = torch.tensor(0.8, dtype=torch.float64)  # rapidity
    boost = torch.eye(4, dtype=torch.float64)
    boost[:2, :2] = torch.stack(
        (torch.stack((v.cosh(), v.sinh())), torch.stack((v.sinh(), v.cosh())))
    )
    layer = Linear(Lorentz(c=c), 3, 3, bias=False).double()
    layer.load_state_dict({"weight": boost[1:]})
    x, y = (points(Lorentz, c, normal(10, 3, seed=s) / c**0.5) for s in (0, 1))
    torch.testing.assert_close(layer(x), x @ boost.mT)
    space = Lorentz(c)
    torch.testing.assert_close(space.dist(layer(x), layer(y)), space.dist(x, y))


@pytest.mark.parametrize("kind", [Lorentz, Poincare])
def test_the_start_takes_the_origin_to_itself_and_keeps_radii_in_the_mean(kind):
    torch.manual_seed(0)
    layers = (Linear, LorentzFC) if kind is Lorentz else (Linear,)
    for layer, (n, m) in itertools.product(layers, ((64, 64), (200, 50), (50, 200))):
        x = points(kind, 1.0, 0.1 * torch.nn.functional.normalize(normal(400, n))).float()
        y = layer(kind(), n, m)(x)
        assert kind().dist0(y).square().mean().sqrt().item() == pytest.approx(0.1, rel=0.15)
        origin = kind().origin(n + (kind is Lorentz))
        assert kind().dist0(layer(kind(), n, m)(origin)) == 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("c", [1e-8, 1e-4, 1e-2, 1.0, 50.0])
@pytest.mark.parametrize("t", [1e-6, 1e-3, 0.1, 0.3, 1.0, 30.0])
def test_arcs_and_chords_and_their_derivatives_are_right_to_rounding(t, c, sign):
    for function, exact in (
        (asinh_ratio, lambda t, c: mpmath.asinh(mpmath.sqrt(c) * t) / mpmath.sqrt(c)),
        (sinh_ratio, lambda t, c: mpmath.sinh(mpmath.sqrt(c) * t) / mpmath.sqrt(c)),
    ):
        if function is sinh_ratio and t * c**0.5 > 30:
            continue
        x = torch.tensor(sign * t, requires_grad=True)
        curvature = torch.tensor(c, requires_grad=True)
        y = function(x, curvature)
        slopes = torch.autograd.grad(y, (x, curvature))
        at = (mpmath.mpf(x.item()), mpmath.mpf(curvature.item()))
        assert y.item() == pytest.approx(float(exact(*at)), rel=3e-6)
        assert function(x, c).item() == pytest.approx(float(exact(*at)), rel=3e-6)
        for slope, order in zip(slopes, ((1, 0), (0, 1)), strict=True):
            truth = float(mpmath.diff(exact, at, order))
            assert slope.item() == pytest.approx(truth, rel=2e-5, abs=1e-37)


def test_a_point_on_a_hyperplane_has_a_slope():
    head = MLR(Lorentz(), 3, 2)
    x = Lorentz().origin(1, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(head(x)[0, 0], x)
    torch.testing.assert_close(gradient[0, 1:], head.weight[0])


def test_heads_of_lorentz_points_are_those_of_ball_points_of_any_rank():
    x = points(Poincare, 1.0, normal(2, 3, 5, 4))
    head = filled(MLR(Poincare(), 4, 6).double())
    torch.testing.assert_close(head(x)[1, 2, 4], head(x[1, 2, 4]))
    lorentz = filled(MLR(Lorentz(), 4, 6).double())
    there = to_lorentz(Poincare(), x)
    torch.testing.assert_close(lorentz(there)[1, 2, 4], lorentz(there[1, 2, 4]))
