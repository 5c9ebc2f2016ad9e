"""Busemann layers and gyro batch norm, compared with mpmath and with geoopt's gyrovectors."""

import geoopt
import mpmath
import pytest
import torch

from fedbolic.manifolds import Lorentz, Poincare, to_poincare
from fedbolic.nn import BusemannHead, BusemannLinear, GyroBatchNorm
from tests.nn.cases import points

KINDS = (Lorentz, Poincare)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_curvature = pytest.mark.parametrize("c", [1e-3, 0.1, 1.0, 4.0])


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def filled(kind, c, **settings):
    layer = BusemannLinear(kind(c=c), 4, 3, **settings).double()
    with torch.no_grad():
        for i, value in enumerate(layer.parameters()):
            value.copy_(0.5 * normal(*value.shape, seed=i + 1) / (1 if value.ndim > 1 else c**0.5))
    return layer


def exact_busemann(kind, x, z, c):
    """Busemann function of the ideal point in the direction of ``z``, as in both models' books."""
    c = mpmath.mpf(c)
    r = mpmath.sqrt(c)
    x, z = [mpmath.mpf(t) for t in x], [mpmath.mpf(t) for t in z]
    size = mpmath.sqrt(sum(t * t for t in z))
    p = [t / size for t in z]
    if kind is Lorentz:
        return mpmath.log(r * (x[0] - sum(a * b for a, b in zip(x[1:], p, strict=True)))) / r
    gap = sum((a - r * b) ** 2 for a, b in zip(p, x, strict=True))
    return mpmath.log(gap / (1 - c * sum(t * t for t in x))) / r


def exact_outputs(layer, x, c):
    """Outputs of the layer in 60 digits."""
    with mpmath.workdps(60):
        curvature = mpmath.mpf(c)
        r, s = mpmath.sqrt(curvature), []
        for z, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True):
            size = mpmath.sqrt(sum(mpmath.mpf(t) ** 2 for t in z))
            v = mpmath.mpf(b) - size * exact_busemann(layer.model, x, z, c)
            s.append(mpmath.sinh(r * v) / r)
        q = sum(t * t for t in s)
        if layer.model is Lorentz:
            return [float(t) for t in (mpmath.sqrt(1 / curvature + q), *s)]
        return [float(t / (1 + mpmath.sqrt(1 + curvature * q))) for t in s]


@every_kind
@every_curvature
def test_a_busemann_layer_is_its_definition_in_60_digits(kind, c):
    layer = filled(kind, c)
    x = points(kind, c, 0.7 * normal(8, 4) / c**0.5)
    expected = [exact_outputs(layer, row, c) for row in x.tolist()]
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(layer(x), expected, rtol=1e-11, atol=1e-11 / c**0.5)
    single = layer.float()
    x = x.float()
    expected = [exact_outputs(single, row, c) for row in x.tolist()]
    torch.testing.assert_close(
        single(x), torch.tensor(expected), rtol=3e-5, atol=3e-6 / c**0.5
    )  # fmt: skip


@every_kind
@every_curvature
def test_a_busemann_head_is_right_to_1e_5_of_a_radius_in_float32(kind, c):
    head = BusemannHead(kind(c=c), 4, 6)
    x = points(kind, c, normal(8, 4) / c**0.5).float()
    logits = head(x)
    for i, row in enumerate(x.tolist()):
        for k, z in enumerate(head.weight.tolist()):
            with mpmath.workdps(60):
                truth = float(exact_busemann(kind, row, z, c))
            size = head.weight[k].norm().item()
            error = (logits[i, k].item() - head.bias[k].item()) / size + truth
            assert abs(error) < 1e-5 / c**0.5


@every_kind
def test_an_output_lies_at_the_busemann_distances_from_the_coordinate_hyperplanes(kind):
    layer = filled(kind, 1.0, activation=torch.relu)
    x = points(kind, 1.0, normal(8, 4))
    size = layer.weight.norm(dim=-1)
    ray = layer.weight / size.unsqueeze(-1) * 15.0
    limit = torch.stack([kind().dist(x, far) - 15.0 for far in points(kind, 1.0, ray)], -1)
    y = layer(x) if kind is Poincare else to_poincare(Lorentz(), layer(x))
    ball = geoopt.PoincareBall(c=torch.tensor(1.0, dtype=torch.float64))
    for k, axis in enumerate(torch.eye(3, dtype=torch.float64)):
        d = ball.dist2plane(y, torch.zeros(3, dtype=torch.float64), axis, signed=True)
        expected = (layer.bias[k] - size[k] * limit[:, k]).relu()
        torch.testing.assert_close(d, expected, rtol=1e-6, atol=1e-6)


def test_a_gyro_bias_is_geoopts_mobius_addition_from_the_left():
    layer = filled(Poincare, 0.7, gyro_bias=True)
    x = points(Poincare, 0.7, normal(8, 4))
    ball = geoopt.PoincareBall(c=torch.tensor(0.7, dtype=torch.float64))
    offset = ball.expmap0(layer.gyro_bias.detach() / 2)  # the ball doubles lengths
    translated, layer.gyro_bias = layer(x), None
    torch.testing.assert_close(translated, ball.mobius_add(offset, layer(x)))


def test_a_busemann_layer_of_flat_space_is_affine():
    layer = filled(Poincare, 1.0)
    flat = BusemannLinear(Poincare(c=0.0), 4, 3).double()
    with torch.no_grad():
        flat.weight.copy_(layer.weight)
        flat.bias.copy_(layer.bias)
    x = normal(6, 4)
    torch.testing.assert_close(flat(x), x @ flat.weight.mT + flat.bias / 2)


@every_kind
def test_the_start_takes_the_origin_to_itself_and_keeps_radii_in_the_mean(kind):
    torch.manual_seed(0)
    layer = BusemannLinear(kind(), 64, 200)
    x = points(kind, 1.0, 0.1 * torch.nn.functional.normalize(normal(400, 64))).float()
    assert kind().dist0(layer(x)).square().mean().sqrt().item() == pytest.approx(0.1, rel=0.15)
    assert kind().dist0(layer(kind().origin(64 + (kind is Lorentz)))) < 1e-6


def gyro(x, mean, variance, scale, bias, c, eps):
    """Gyro batch norm of points of the ball by geoopt's gyrovector operations."""
    ball = geoopt.PoincareBall(c=torch.tensor(c, dtype=torch.float64))
    centred = ball.mobius_add(-mean, x)
    scaled = ball.mobius_scalar_mul(scale / (variance + eps).sqrt(), centred)
    return ball.mobius_add(ball.expmap0(bias / 2), scaled)


@every_kind
@pytest.mark.parametrize("c", [0.1, 1.0, 4.0])
def test_gyro_batch_norm_is_that_of_geoopts_gyrovectors(kind, c):
    layer = GyroBatchNorm(kind(c=c), 3).double()
    with torch.no_grad():
        layer.weight.fill_(0.6)
        layer.bias.copy_(torch.tensor([0.3, -0.2, 0.5]) / c**0.5)
    x = points(kind, c, (0.6 * normal(40, 3) + torch.tensor([1.0, -0.5, 0.3])) / c**0.5)
    there = x if kind is Poincare else to_poincare(Lorentz(c), x)
    ball = geoopt.PoincareBall(c=torch.tensor(c, dtype=torch.float64))
    mean = ball.weighted_midpoint(there)
    variance = ball.dist(there, mean).square().mean()
    expected = gyro(there, mean, variance, layer.weight, layer.bias, c, layer.eps)
    y = layer(x)
    y = y if kind is Poincare else to_poincare(Lorentz(c), y)
    torch.testing.assert_close(y, expected, rtol=1e-7, atol=1e-7)

    layer.eval()
    assert layer.running_var.item() == pytest.approx(0.9 + 0.1 * 40 / 39 * variance.item())
    time = (1 + c * layer.running_mean.square().sum()).sqrt()
    running = layer.running_mean / (1 + time)
    expected = gyro(there, running, layer.running_var, layer.weight, layer.bias, c, layer.eps)
    y = layer(x)
    y = y if kind is Poincare else to_poincare(Lorentz(c), y)
    torch.testing.assert_close(y, expected, rtol=1e-7, atol=1e-7)
