"""Kernels of the maps at points, interpreted on the CPU: ``make kernels``."""

import math

import pytest
import torch
from torch.func import grad, vmap

from fedbolic.manifolds import Poincare
from tests.kernels.errors import POINTS, errors_of
from tests.kernels.switch import by_operators, check_derivatives, count_calls
from tests.manifolds.cases import CURVED, normal, points, tangents

pytestmark = pytest.mark.kernels

DTYPES = (torch.float32, torch.float64)

every_map = pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in CURVED for name in POINTS]
)


@pytest.fixture
def on(monkeypatch):
    """The kernel in place of the operators, for tensors of the CPU; counts its calls."""
    return count_calls(monkeypatch, "maps.row_map")


def arguments(kind, name, c, *shape, dtype=torch.float64):
    """Points, and tangents of about a radius or other points."""
    size = shape[-1] ** 0.5
    x, y = (points(kind, c, seed, *shape, radius=1 / size) for seed in (0, 1))
    if name == "expmap":
        y = tangents(kind, c, 2, x, length=1 / size)
    return x.to(dtype), y.to(dtype)


@every_map
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", [1e-3, 2.0, 9.0])
def test_errors_are_those_of_the_operators_but_for_rounding(kind, name, dtype, radius):
    # rounding a tangent at a radius r of the hyperboloid changes its length by up to eps cosh(r)
    unit = torch.finfo(dtype).eps * math.cosh(radius)
    for today, now in zip(*errors_of(name, kind, radius, dtype), strict=True):
        assert now <= 2 * today + 8 * unit


@every_map
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "dim"), [(1, 1), (300, 3), (7, 20), (3, 256)])
def test_rows_of_any_size_have_the_values_and_gradients_of_the_operators(
    kind, name, dtype, n, dim, on
):
    c = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    given = *(t.requires_grad_() for t in arguments(kind, name, 0.7, n, dim, dtype=dtype)), c

    def both():
        made = getattr(kind(c), name)(*given[:2])
        return made, *torch.autograd.grad(made, given, normal(3, *made.shape, dtype=dtype))

    wanted = by_operators(both)
    assert not on
    eps = torch.finfo(dtype).eps
    for a, b in zip(both(), wanted, strict=True):
        size = b.abs().max().item()
        torch.testing.assert_close(a, b, rtol=1e3 * eps, atol=1e3 * eps * max(size, 1))
    assert on


@every_map
def test_no_step_stays_at_the_point_with_the_gradients_of_the_operators(kind, name, on):
    x = points(kind, 1.0, 0, 40, 8, dtype=torch.float32)
    x, y = x.requires_grad_(), (torch.zeros_like(x) if name == "expmap" else x.detach().clone())
    c = torch.ones((), requires_grad=True)
    y.requires_grad_()

    def both():
        made = getattr(kind(c), name)(x, y)
        return made, *torch.autograd.grad(made, (x, y, c), normal(1, *x.shape).float())

    (made, *by_kernel), (_, *wanted) = both(), by_operators(both)
    if name == "expmap":
        torch.testing.assert_close(made, x, rtol=1e-6, atol=1e-7)
    else:
        assert not made.any()
    for a, b in zip(by_kernel, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert on


@every_map
@pytest.mark.parametrize("c", [1e-4, 0.5, 50.0])
def test_rows_of_any_length_are_clamped_as_the_operators_do(kind, name, c, on):
    lengths = torch.tensor([0.0, 1e-20, 1.0, 100.0, 1e4, 1e8, 1e15]).unsqueeze(-1)
    x, y = normal(0, 7, 4).float() * lengths, normal(1, 7, 4).float() / c**0.5 / 4
    if name == "expmap":  # longer tangents than any step, at points nearer to the origin
        x, y = y, x
    given = x.requires_grad_(), y.requires_grad_()

    def both():
        made = getattr(kind(c), name)(*given)
        return made, *torch.autograd.grad(made.sum(), given)

    # past the boundary of the ball the operators' gradients by long tangents are rounding errors
    right = 4 if kind is Poincare and name == "expmap" else len(lengths)
    for i, (a, b) in enumerate(zip(both(), by_operators(both), strict=True)):
        sizes = b.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        rows = slice(right if i else None)
        torch.testing.assert_close((a / sizes)[rows], (b / sizes)[rows], rtol=0, atol=1e-4)
    assert on


@every_map
@pytest.mark.parametrize("value", [1.0, 0.002], ids=["direct", "series"])
def test_first_and_second_derivatives_in_rows_and_curvature(kind, name, value, on):
    c = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    x, y = arguments(kind, name, 1.0, 1, 2)
    given = c, x.requires_grad_(), y.requires_grad_()
    check_derivatives(lambda c, x, y: getattr(kind(c), name)(x, y), given)
    assert on


@pytest.mark.parametrize("name", POINTS)
def test_the_ball_of_curvature_0_is_flat(name, on):
    x, y = normal(0, 4, 3), normal(1, 4, 3)
    wanted = x + y if name == "expmap" else y - x
    torch.testing.assert_close(getattr(Poincare(0.0), name)(x, y), wanted)
    assert on


@every_map
def test_curvatures_and_rows_broadcast_in_any_layout(kind, name, on):
    c = torch.tensor([0.5, 2.0], dtype=torch.float64).reshape(2, 1).requires_grad_()
    x, _ = arguments(kind, name, 2.0, 2, 4, 3)
    y = arguments(kind, name, 2.0, 4, 3)[1]
    x = x.mT.contiguous().mT.requires_grad_()
    y = torch.stack((y, y), -1)[..., 0].requires_grad_()
    assert not x.is_contiguous()
    assert not y.is_contiguous()

    def both():
        made = getattr(kind(c), name)(x, y)
        return made, *torch.autograd.grad(made.square().sum(), (x, y, c))

    for a, b in zip(both(), by_operators(both), strict=True):
        torch.testing.assert_close(a, b)
    assert on


@every_map
@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 0), (0, 0, 0)])
def test_vmap_of_values_and_gradients_is_a_loop(kind, name, dims, on):
    given = *arguments(kind, name, 0.7, 3, 2), torch.tensor(0.7, dtype=torch.float64)
    given = [
        t if d is None else torch.stack((t, t * 0.9)) for t, d in zip(given, dims, strict=True)
    ]

    def loss(x, y, c):
        return getattr(kind(c), name)(x, y).square().sum()

    got = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=dims)(*given)
    assert on
    for k in range(2):
        own = [t if d is None else t[k] for t, d in zip(given, dims, strict=True)]
        wanted = by_operators(lambda own=own: grad(loss, argnums=(0, 1, 2))(*own))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a[k], b)


@every_map
def test_mixed_types_and_forward_derivatives_take_the_operators(kind, name, on):
    x, y = arguments(kind, name, 1.0, 5, 3)
    assert getattr(kind(1.0), name)(x, y.float()).dtype == torch.float64
    torch.func.jvp(lambda x: getattr(kind(1.0), name)(x, y), (x,), (normal(3, *x.shape),))
    assert not on


@every_map
def test_rows_of_another_length_are_refused_by_the_operators(kind, name, on):
    x, _ = arguments(kind, name, 1.0, 5, 3)
    with pytest.raises(RuntimeError, match="size"):
        getattr(kind(1.0), name)(x, x[..., :-1])
    assert not on


@every_map
def test_half_types_are_computed_in_float32(kind, name, on):
    x, y = (t.bfloat16() for t in arguments(kind, name, 1.0, 5, 3))
    made = getattr(kind(1.0), name)(x, y)
    assert made.dtype == torch.bfloat16
    wide = getattr(kind(1.0), name)(x.float(), y.float())
    torch.testing.assert_close(made.float(), wide, rtol=0.02, atol=0.02)
    assert on


@every_map
def test_no_rows_have_no_images(kind, name):
    x = torch.zeros(0, 3, requires_grad=True)
    found = getattr(kind(1.0), name)(x, torch.zeros(0, 3))
    assert found.shape == (0, 3)
    assert torch.autograd.grad(found.sum(), x)[0].shape == (0, 3)
