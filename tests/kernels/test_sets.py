"""Kernels of centroids, translations and batch norm, interpreted on the CPU: ``make kernels``."""

import math

import pytest
import torch
from torch.func import functional_call, grad, vmap

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import GyroBatchNorm, HyperbolicBatchNorm
from fedbolic.nn.functional.recentred import centred, recentred
from tests.kernels.errors import SETS, errors_of
from tests.kernels.switch import by_operators, check_derivatives, count_calls
from tests.manifolds.cases import CURVED, normal, points

pytestmark = pytest.mark.kernels

DTYPES = (torch.float32, torch.float64)
SIZES = [(1, 1), (300, 3), (7, 20), (3, 256)]

in_both_models = pytest.mark.parametrize("kind", CURVED)


@pytest.fixture
def on(monkeypatch):
    """The kernels of centroids in place of the operators, on the CPU; counts their calls."""
    return count_calls(monkeypatch, "centroids.set_centroid")


@pytest.fixture
def moved(monkeypatch):
    """The kernels of translations in place of the operators, on the CPU; counts their calls."""
    return count_calls(monkeypatch, "boosts.boost")


def agree(found, wanted, dtype):
    """Check results of a kernel against those of operators, by the largest number of each."""
    for a, b in zip(found, wanted, strict=True):
        size = b.abs().max().item() if b.numel() else 0
        torch.testing.assert_close(a, b, rtol=0, atol=400 * torch.finfo(dtype).eps * max(size, 1))


@in_both_models
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", [1e-3, 2.0, 9.0])
def test_errors_are_those_of_the_operators_but_for_rounding(kind, name, dtype, radius):
    # a rounding error at a radius r of the hyperboloid is that of a step of eps cosh(r)
    unit = torch.finfo(dtype).eps * math.cosh(radius)
    for today, now in zip(*errors_of(name, kind, radius, dtype), strict=True):
        assert now <= 2 * today + 8 * unit


@in_both_models
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "dim"), SIZES)
@pytest.mark.parametrize("weighted", [False, True])
def test_centroids_of_sets_of_any_size_are_those_of_the_operators(
    kind, dtype, n, dim, weighted, on
):
    c = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    x = points(kind, 0.7, 0, n, dim, radius=1 / dim**0.5).to(dtype).requires_grad_()
    w = (normal(1, n).abs() + 0.1).to(dtype).requires_grad_() if weighted else None
    given = (x, c) if w is None else (x, w, c)

    def both():
        made = kind(c).centroid(x, w)
        return made, *torch.autograd.grad(made, given, normal(2, *made.shape, dtype=dtype))

    wanted = by_operators(both)
    assert not on
    agree(both(), wanted, dtype)
    assert on


@in_both_models
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "dim"), SIZES)
@pytest.mark.parametrize("outward", [False, True])
def test_translations_of_sets_of_any_size_are_those_of_the_operators(
    kind, dtype, n, dim, outward, moved
):
    c = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    x = points(kind, 0.7, 0, n, dim, radius=1 / dim**0.5)
    x = (normal(0, n, dim) / dim**0.5 if outward else x).to(dtype).requires_grad_()
    mean = (normal(1, dim) / dim**0.5).to(dtype).requires_grad_()

    def both():
        made = recentred(kind(c), x, mean) if outward else centred(kind(c), x, mean)[1]
        cotangent = normal(2, *made.shape, dtype=dtype)
        return made, *torch.autograd.grad(made, (x, mean, c), cotangent)

    wanted = by_operators(both)
    assert not moved
    agree(both(), wanted, dtype)
    assert moved


@in_both_models
def test_the_centroid_of_one_point_many_times_is_the_point(kind, on):
    x = points(kind, 1.0, 0, 1, 5, dtype=torch.float32).expand(9, -1)
    torch.testing.assert_close(kind(1.0).centroid(x), x[0], rtol=1e-6, atol=1e-7)
    assert on


@in_both_models
def test_first_and_second_derivatives_of_centroids(kind, on):
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x = points(kind, 1.0, 0, 3, 2).requires_grad_()
    w = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    check_derivatives(lambda c, x, w: kind(c).centroid(x, w), (c, x, w))
    assert on


@in_both_models
@pytest.mark.parametrize("outward", [False, True])
def test_first_and_second_derivatives_of_translations(kind, outward, moved):
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x = (normal(0, 2, 2) if outward else points(kind, 1.0, 0, 2, 2)).requires_grad_()
    mean = normal(1, 2).requires_grad_()

    def call(c, x, mean):
        return recentred(kind(c), x, mean) if outward else centred(kind(c), x, mean)[1]

    check_derivatives(call, (c, x, mean))
    assert moved


@in_both_models
def test_sets_curvatures_and_weights_broadcast_in_any_layout(kind, on):
    c = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    x = points(kind, 2.0, 0, 2, 7, 3, radius=0.3).mT.contiguous().mT.requires_grad_()
    w = (normal(1, 7, 2).abs() + 0.1)[:, 0].requires_grad_()

    def both():
        made = kind(c).centroid(x, w)
        return made, *torch.autograd.grad(made.square().sum(), (x, w, c))

    agree(both(), by_operators(both), torch.float64)
    assert on
    no_sets = kind(1.0).centroid(x.detach()[:0])
    assert no_sets.shape == (0, x.shape[-1])


@in_both_models
@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 0), (0, 0, 0)])
def test_vmap_of_centroids_and_their_gradients_is_a_loop(kind, dims, on):
    given = points(kind, 0.7, 0, 4, 2), normal(1, 4).abs() + 0.1, torch.tensor(0.7).double()
    given = [
        t if d is None else torch.stack((t, t * 0.9)) for t, d in zip(given, dims, strict=True)
    ]

    def loss(x, w, c):
        return kind(c).centroid(x, w).square().sum()

    got = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=dims)(*given)
    assert on
    for k in range(2):
        own = [t if d is None else t[k] for t, d in zip(given, dims, strict=True)]
        wanted = by_operators(lambda own=own: grad(loss, argnums=(0, 1, 2))(*own))
        agree([t[k] for t in got], wanted, torch.float64)


@in_both_models
def test_points_beyond_the_manifold_are_clamped_as_the_operators_do(kind, on):
    x = normal(0, 5, 4).float() * torch.tensor([1.0, 10.0, 1e3, 1e10, 1e17]).unsqueeze(-1)
    found, wanted = (f(lambda: kind(0.5).centroid(x)) for f in (lambda g: g(), by_operators))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-30)
    assert on


@in_both_models
@pytest.mark.parametrize("layer", [HyperbolicBatchNorm, GyroBatchNorm])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norm_has_the_outputs_gradients_and_statistics_of_the_operators(
    kind, layer, affine, on, moved
):
    x = points(kind, 1.0, 0, 40, 3, radius=0.5).requires_grad_()

    def both():
        norm = layer(kind(), 3, affine=affine).double()
        if affine:
            norm.bias.data.copy_(normal(1, 3))
        first, given = norm(x), (x, *norm.parameters())
        cotangent = normal(2, *first.shape)
        by = torch.autograd.grad(first, given, cotangent)
        after = norm.eval()(x)
        return first, *by, after, norm.running_mean, norm.running_var

    wanted = by_operators(both)
    assert not moved
    agree(both(), wanted, torch.float64)
    assert len(moved) == 2 * 2
    assert len(on) == 2


def test_batch_norm_of_the_flat_ball_is_that_of_torch(moved):
    x = normal(0, 20, 3) + 1
    layer = HyperbolicBatchNorm(Poincare(c=0.0), 3).double()
    torch.testing.assert_close(layer(x), torch.nn.BatchNorm1d(3).double()(2 * x) / 2)
    assert moved


@in_both_models
def test_batch_norm_of_stacked_clients_is_a_loop(kind, moved):
    x = torch.stack([points(kind, 1.0, seed, 9, 3, radius=0.5) for seed in (0, 1)])
    layer = HyperbolicBatchNorm(kind(), 3).double()
    scales = torch.stack((torch.ones(3), torch.tensor([0.5, 1.0, 2.0]))).double()
    biases = normal(2, 2, 3)

    def loss(x, weight, bias):
        state = dict(layer.named_buffers()) | {"weight": weight, "bias": bias}
        # a copy, because statistics are written in place
        state = {name: value + 0 * x.sum() for name, value in state.items()}
        return functional_call(layer, state, (x,)).square().sum()

    got = vmap(grad(loss, argnums=(0, 1, 2)))(x, scales, biases)
    assert moved
    for k in range(2):
        own = x[k], scales[k], biases[k]
        agree(
            [t[k] for t in got], by_operators(lambda own=own: grad(loss, (0, 1, 2))(*own)), x.dtype
        )


@in_both_models
def test_half_types_are_computed_in_float32_and_forward_derivatives_by_operators(kind, on):
    x = points(kind, 1.0, 0, 5, 3).bfloat16()
    assert kind(1.0).centroid(x).dtype == torch.bfloat16
    calls = len(on)
    assert calls
    torch.func.jvp(lambda x: kind(1.0).centroid(x), (x.double(),), (normal(1, *x.shape),))
    assert len(on) == calls


def test_the_centroid_of_points_across_parts_of_a_set_is_that_of_the_operators(on):
    x = points(Lorentz, 1.0, 0, 3000, 4, dtype=torch.float32)
    found, wanted = (f(lambda: Lorentz().centroid(x)) for f in (lambda g: g(), by_operators))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert on
