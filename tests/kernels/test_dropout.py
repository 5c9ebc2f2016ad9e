"""Kernel of dropout, interpreted on the CPU: ``make kernels``."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from fedbolic import kernels
from fedbolic.nn.layers import dropout
from fedbolic.nn.layers.dropout import Dropout
from tests.nn.layers.test_dropout import layer, mixed, splitmix64

pytestmark = pytest.mark.kernels


@pytest.fixture
def on(monkeypatch):
    """The kernel in place of the operators, for tensors of the CPU; counts its calls."""
    calls, apply = [], dropout._Masked.forward
    monkeypatch.setattr(kernels, "run_on", lambda x: True)

    def counted(x, *others):
        calls.append(x.shape)
        return apply(x, *others)

    monkeypatch.setattr(dropout._Masked, "forward", staticmethod(counted))
    return calls


def by_operators(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "run_on", lambda x: False)
        return call()


@pytest.mark.parametrize("seed", [0, 1, 7, 2**62 + 12345])
@pytest.mark.parametrize("p", [0.1, 0.5, 1 - 2**-33])
def test_an_element_is_dropped_where_the_generator_says_so(seed, p, on):
    numbers = splitmix64(mixed(seed), 32)
    coins = [half / 2**32 for number in numbers for half in (number % 2**32, number >> 32)]
    dropped = layer(seed, p)(torch.ones(3, 21)).flatten() == 0
    assert dropped.tolist() == [coin < p for coin in coins[: len(dropped)]]
    assert on


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (7, 3), (2100,), (0, 4)])
@pytest.mark.parametrize("p", [0.3, 0.7])
def test_outputs_and_gradients_have_the_bytes_of_the_operators(dtype, shape, p, on):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()

    def both():
        module = layer(11, p)
        first, second = module(x), module(x)
        return first, second, *torch.autograd.grad((first * second).sum(), x), module.dropout_seed

    wanted = by_operators(both)
    assert not on
    for a, b in zip(both(), wanted, strict=True):
        assert torch.equal(a, b)
    assert on


def test_gradcheck_and_gradgradcheck(on):
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: layer(3)(x), (x,))
    assert gradgradcheck(lambda x: layer(3)(x), (x,))
    assert on


def test_each_row_of_a_vector_of_seeds_has_its_own_mask(on):
    x = torch.ones(2, 40)
    both = layer([3, 4])(x)
    assert torch.equal(both, torch.stack([layer(seed)(x[0]) for seed in (3, 4)]))


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)])
def test_vmap_of_values_and_gradients_is_a_loop(dims, on):
    module, x = Dropout(0.4), torch.arange(1.0, 13).reshape(3, 4)
    seeds = torch.tensor(9) if dims[1] is None else torch.arange(3)

    def loss(x, seed):
        return functional_call(module, {"dropout_seed": seed}, (x,)).square().sum()

    got = vmap(grad(loss), in_dims=dims)(x, seeds)
    assert on
    xs = x.unbind() if dims[0] == 0 else [x] * len(seeds)
    each = seeds.unbind() if dims[1] == 0 else [seeds] * len(xs)
    wanted = by_operators(lambda: [grad(loss)(a, s) for a, s in zip(xs, each, strict=True)])
    assert torch.equal(got, torch.stack(wanted))


def test_a_pass_that_is_computed_again_drops_what_the_first_did(on):
    for mode in (False, True):
        x, module = torch.ones(4, 50, requires_grad=True), layer(3)
        out = checkpoint(lambda x, module=module: module(x.exp()).exp(), x, use_reentrant=mode)
        gradient = torch.autograd.grad(layer(3)(x.exp()).exp().sum(), x)[0]
        out.sum().backward()
        assert torch.equal(x.grad, gradient)
    assert on


def test_half_types_and_other_orders_of_memory_take_the_operators(on):
    x = torch.ones(4, 6)
    assert torch.equal(layer(3)(x.bfloat16()), by_operators(lambda: layer(3)(x)).bfloat16())
    turned = layer(3)(x.T)
    assert turned.stride() == x.T.stride()
    assert not on
    assert torch.equal(turned, layer(3)(x.T.contiguous()))
