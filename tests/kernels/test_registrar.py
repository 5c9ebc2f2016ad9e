"""The registrar of kernels, with operators in place of kernels, so that no triton is needed."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jvp, vmap

from fedbolic import kernels
from fedbolic.formulas import registrar
from fedbolic.formulas.registrar import points, with_kernel


@with_kernel("none.product", takes=points(2), keeps=True, scale=2.0)
def product(x, y, c, *, power):
    return 2 * c * (x**power * y).sum(-1, keepdim=True)


def launched(x, y, c, *, power, scale, kept):
    raised = x**power
    value = scale * c * (raised * y).sum(-1, keepdim=True)
    return (value, raised.expand(*value.shape[:-1], x.shape[-1])) if kept else (value,)


def gradients(grad, x, y, c, raised, *, power, scale, needed):
    by_x = scale * c * grad * power * x ** (power - 1) * y
    by_c = scale * grad * (raised * y).sum(-1, keepdim=True) if needed[2] else None
    return by_x, scale * c * grad * raised, by_c


@pytest.fixture
def on(monkeypatch):
    """The functions above as kernels for tensors of the CPU; the names of those called."""
    calls = []

    def noted(name):
        calls.append(name)
        return {"none.product": launched, "none.product_gradients": gradients}[name]

    monkeypatch.setattr(kernels, "run_on", lambda x: True)
    monkeypatch.setattr(registrar, "_launcher", noted)
    return calls


def given(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(n, 3, generator=generator, dtype=dtype) + 0.5 for n in (4, 1))
    return x.requires_grad_(), y.requires_grad_(), torch.tensor(0.7, dtype=dtype)


def test_tensors_of_the_cpu_take_the_formula():
    assert product(*given(), power=2).shape == (4, 1)  # there is no module of this name


def test_derivatives_of_any_order_are_those_of_the_formula(on):
    x, y, c = given()
    call = (x, y, c.requires_grad_())
    assert gradcheck(lambda *tensors: product(*tensors, power=3), call)
    assert gradgradcheck(lambda *tensors: product(*tensors, power=3), call)
    assert set(on) == {"none.product", "none.product_gradients"}


def test_a_number_is_a_tensor_for_the_kernel_and_has_no_gradient(on):
    x, y, c = given()
    product(x, y, 0.7, power=2).sum().backward()
    torch.testing.assert_close(product(x, y, 0.7, power=2), product(x, y, c, power=2))
    assert on.count("none.product_gradients") == 1


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 0), (1, 0, None)])
def test_vmap_of_a_gradient_is_one_launch_for_all(dims, on):
    def loss(x, y, c):
        return product(x, y, c, power=2).square().sum()

    rows = [t.detach() for t in given()]
    stacked = [
        t if d is None else torch.stack((t, 2 * t), d) for t, d in zip(rows, dims, strict=True)
    ]
    found = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=dims)(*stacked)
    assert on == ["none.product", "none.product_gradients"]
    for k in range(2):
        own = [t if d is None else t.select(d, k) for t, d in zip(stacked, dims, strict=True)]
        for a, b in zip(found, grad(loss, argnums=(0, 1, 2))(*own), strict=True):
            torch.testing.assert_close(a[k], b)


def test_forward_derivatives_and_mixed_types_take_the_formula(on):
    x, y, c = given()
    jvp(lambda x: product(x, y, c, power=2), (x.detach(),), (x.detach(),))
    product(x, y.float(), c, power=2)
    assert not on
