"""Kernels of the logits of hyperplanes, interpreted on the CPU: ``make kernels``."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap

from fedbolic import kernels
from fedbolic.manifolds import Curvature, Poincare
from fedbolic.nn import MLR
from tests.kernels.errors import RADII
from tests.kernels.layer_errors import logit_errors
from tests.kernels.switch import count_calls
from tests.manifolds.cases import CURVED, normal, points

pytestmark = pytest.mark.kernels

DTYPES = (torch.float32, torch.float64)


@pytest.fixture
def on(monkeypatch):
    """The kernels in place of the operators, for tensors of the CPU; counts their calls."""
    return count_calls(monkeypatch, "logits.plane_logits", "run_on")


def head_of(kind, dim, classes, *, c=1.0, dtype=torch.float64):
    """A head with random hyperplanes."""
    head = MLR(kind(c), dim, classes).to(dtype)
    with torch.no_grad():
        head.weight.copy_(normal(5, classes, dim))
        head.bias.copy_(normal(6, classes) / 2)
    return head


def by_operators(head, *given):
    """Logits and gradients of the head with torch's operators."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "run_on", lambda x: False)
        return values_and_gradients(head, *given)


def values_and_gradients(head, x, g):
    x = x.detach().requires_grad_()
    logits = head(x)
    return logits, *torch.autograd.grad(logits, (x, *head.parameters()), g)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", RADII)
def test_errors_are_those_of_the_operators_but_for_rounding(kind, dtype, radius):
    operators = logit_errors(kind, radius, dtype, kernel=False)
    found = logit_errors(kind, radius, dtype, kernel=True)
    for today, now in zip(operators, found, strict=True):
        assert now <= 2 * today + 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m", "dim"), [(1, 1, 1), (70, 10, 3), (33, 70, 20), (3, 2, 300)])
def test_logits_and_gradients_of_any_size_are_those_of_the_operators(kind, dtype, n, m, dim, on):
    head = head_of(kind, dim, m, c=Curvature(0.7))
    x = points(kind, 0.7, 0, n, dim) / (dim**0.5 if kind is Poincare else 1)
    x, g = kind(0.7).projx(x), normal(2, n, m)
    wanted = by_operators(head, x, g)
    assert not on
    got = values_and_gradients(head.to(dtype), x.to(dtype), g.to(dtype))
    assert [settings["kept"] for settings in on] == [True]
    eps = torch.finfo(dtype).eps
    for a, b in zip(got, wanted, strict=True):
        size = 1 + b.abs().max().item()  # the derivative by the curvature is a sum that cancels
        torch.testing.assert_close(a.double(), b, rtol=0, atol=400 * eps * size)


@pytest.mark.parametrize("kind", CURVED)
def test_without_gradients_the_products_are_not_written(kind, on):
    head, x = head_of(kind, 3, 4), points(kind, 1.0, 0, 5, 3)
    with torch.no_grad():
        head(x)
    assert [settings["kept"] for settings in on] == [False]


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("c", [1.0, 0.002], ids=["direct", "series"])
def test_gradcheck_and_gradgradcheck(kind, c, on):
    head = head_of(kind, 2, 3, c=Curvature(c))
    names = [name for name, _ in head.named_parameters()]
    given = points(kind, c, 0, 4, 2), *(value.detach() for value in head.parameters())
    given = tuple(t.requires_grad_() for t in given)

    def logits(x, *values):
        return functional_call(head, dict(zip(names, values, strict=True)), (x,))

    assert gradcheck(logits, given)
    assert gradgradcheck(logits, given)
    assert on


def test_the_ball_of_curvature_0_is_flat(on):
    head, x = head_of(Poincare, 3, 4, c=0.0), normal(0, 5, 3)
    wanted = 4 * x @ head.weight.T - 2 * head.weight.norm(dim=-1) * head.bias
    torch.testing.assert_close(head(x), wanted)
    assert on


@pytest.mark.parametrize("kind", CURVED)
def test_logits_beyond_any_float_are_finite_with_finite_gradients(kind, on):
    head = head_of(kind, 3, 4, dtype=torch.float32)
    with torch.no_grad():
        head.bias.mul_(1e4)
    x = points(kind, 1.0, 0, 6, 3).float() * (30 if kind is Poincare else 1)
    found = values_and_gradients(head, kind(1.0).projx(x), torch.ones(6, 4))
    assert on
    assert all(t.isfinite().all() for t in found)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("shape", [(5,), (2, 3)], ids=["batch", "two axes"])
def test_vmap_of_values_and_gradients_is_a_loop(kind, dims, shape, on):
    head, of_x = head_of(kind, 3, 4, c=Curvature(0.7)), dims[0]
    parameters = {name: value.detach() for name, value in head.named_parameters()}
    x = points(kind, 0.7, 0, *shape, 3)
    x = torch.stack((x, x.flip(0))) if of_x == 0 else x
    if dims[1] == 0:
        parameters = {k: torch.stack((v, v * 0.9)) for k, v in parameters.items()}

    def loss(x, parameters):
        return functional_call(head, parameters, (x,)).square().sum()

    got = vmap(grad(loss, argnums=(0, 1)), in_dims=dims)(x, parameters)
    assert on
    for k in range(2):
        own = {n: v[k] if dims[1] == 0 else v for n, v in parameters.items()}
        wanted = grad(loss, argnums=(0, 1))(x[k] if of_x == 0 else x, own)
        torch.testing.assert_close(got[0][k], wanted[0])
        for name in own:
            torch.testing.assert_close(got[1][name][k], wanted[1][name])


@pytest.mark.parametrize("kind", CURVED)
def test_other_types_take_the_operators(kind, on):
    head, x = head_of(kind, 3, 4, dtype=torch.bfloat16), points(kind, 1.0, 0, 5, 3)
    assert head(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        head.float()(x.float())
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        head.float()(x.float())
    finally:
        torch.set_float32_matmul_precision(precision)
    assert not on


@pytest.mark.parametrize("kind", CURVED)
def test_forward_derivatives_take_the_operators(kind, on):
    head, x = head_of(kind, 3, 4), points(kind, 1.0, 0, 5, 3)
    along = normal(3, *x.shape)
    moved = torch.func.jvp(head, (x,), (along,))[1]
    assert not on
    g = normal(4, *moved.shape)
    pulled = torch.func.vjp(head, x)[1](g)[0]
    assert on
    torch.testing.assert_close((moved * g).sum(), (pulled * along).sum())


@pytest.mark.parametrize("kind", CURVED)
def test_no_points_have_no_logits(kind, on):
    head = head_of(kind, 3, 4)
    x = points(kind, 1.0, 0, 1, 3)[:0]
    found = values_and_gradients(head, x, torch.zeros(0, 4, dtype=torch.float64))
    assert found[0].shape == (0, 4)
    assert all(not t.any() for t in found[1:])
