"""Kernels of convolutions with an axis of clients, interpreted on the CPU: ``make kernels``."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap
from torch.nn.functional import conv2d

from fedbolic.nn.functional import convolution
from fedbolic.nn.functional.convolution import StackableConv2d, stacked_convolution
from tests.kernels.switch import count_calls
from tests.nn.functional.test_convolution import GEOMETRIES, drawn, one_by_one

pytestmark = pytest.mark.kernels

# more channels, positions and elements of windows than a tile has, and sizes that divide no tile
LARGE = (4, 33, 3, 2, 1, 13, 11)
LARGE_FLOAT32 = (8, 65, 3, 2, 1, 7, 8)


@pytest.fixture
def on(monkeypatch):
    """The kernel in place of the copied windows, for tensors of the CPU; its calls' settings."""
    monkeypatch.setattr(convolution, "prefers_im2col", lambda weight: True)
    return count_calls(monkeypatch, "convolution.client_convolution", "run_on")


def of_clients(given, geometry):
    """Convolutions of all clients at once."""
    stride, padding = geometry[3:5]

    def alone(x, weight, bias=None):
        return stacked_convolution(x, weight, bias, stride=stride, padding=padding)

    return vmap(alone)(*given)


def outputs_and_gradients(function, given, geometry, towards):
    y = function(given, geometry)
    return y, *torch.autograd.grad(y, given, towards.to(y.dtype))


def cast(tensors, dtype):
    return [x.detach().to(dtype).requires_grad_() for x in tensors]


def random_like(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("geometry", [*GEOMETRIES, LARGE], ids=str)
@pytest.mark.parametrize(("num_clients", "with_bias"), [(2, True), (1, False)])
def test_outputs_and_gradients_are_those_of_each_client_alone(geometry, num_clients, with_bias, on):
    given = drawn(geometry, num_clients, with_bias=with_bias)
    towards = random_like(one_by_one(given, geometry).shape)
    got = outputs_and_gradients(of_clients, given, geometry, towards)
    assert [tuple(settings.values()) for settings in on] == [(*geometry[3:5], "ieee")]
    wanted = outputs_and_gradients(one_by_one, given, geometry, towards)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_an_element_is_the_sum_over_its_window(on):
    (x, weight), stride, padding = drawn((2, 3, 3, 2, 1, 4, 3), 1, with_bias=False), 2, 1
    y = of_clients((x, weight), (2, 3, 3, stride, padding))[0].tolist()
    (images,), (kernels_,) = x.tolist(), weight.tolist()
    for n, o, i, j in itertools.product(range(3), range(3), range(2), range(2)):
        total = 0.0
        for c, u, v in itertools.product(range(2), range(3), range(3)):
            row, column = stride * i + u - padding, stride * j + v - padding
            if 0 <= row < 4 and 0 <= column < 3:
                total += images[n][c][row][column] * kernels_[o][c][u][v]
        assert y[n][o][i][j] == pytest.approx(total, abs=1e-14)
    assert on


@pytest.mark.parametrize("geometry", [LARGE_FLOAT32, (1, 4, 5, 1, 2, 8, 8)], ids=str)
def test_errors_in_float32_are_those_of_torch_but_for_rounding(geometry, on):
    exact = drawn(geometry, 2)
    given = cast(exact, torch.float32)
    exact = cast(given, torch.float64)
    towards = random_like(one_by_one(exact, geometry).shape).float()
    true = outputs_and_gradients(one_by_one, exact, geometry, towards)
    theirs = outputs_and_gradients(one_by_one, given, geometry, towards)
    ours = outputs_and_gradients(of_clients, given, geometry, towards)
    assert on
    for a, b, t in zip(ours, theirs, true, strict=True):
        now, today = (((x - t).abs().max() / t.abs().max()).item() for x in (a, b))
        assert now <= 2 * today + 2 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_types_are_summed_in_float32(dtype, autocast, on):
    geometry = (3, 4, 3, 2, 1, 7, 6)
    rounded = cast(drawn(geometry, 2), dtype)
    towards = random_like(one_by_one(rounded, geometry).shape).to(dtype)
    given = cast(rounded, torch.float32 if autocast else dtype)
    with torch.autocast("cpu", dtype, enabled=autocast):
        got = outputs_and_gradients(of_clients, given, geometry, towards)
    assert on
    assert got[0].dtype == dtype
    assert [g.dtype for g in got[1:]] == [x.dtype for x in given]
    true = outputs_and_gradients(one_by_one, cast(rounded, torch.float64), geometry, towards)
    for a, b in zip(got, true, strict=True):
        atol = torch.finfo(dtype).eps * b.abs().max().item()
        torch.testing.assert_close(a.double(), b, rtol=0, atol=atol)


def test_autocast_leaves_float64_as_it_is(on):
    geometry = (3, 4, 3, 2, 1, 7, 6)
    given = drawn(geometry, 2)
    with torch.autocast("cpu", torch.bfloat16):
        y = of_clients(given, geometry)
    torch.testing.assert_close(y, one_by_one(given, geometry), rtol=0, atol=1e-12)
    assert on


def test_products_may_be_rounded_where_torch_allows_it(on):
    given = cast(drawn(GEOMETRIES[1], 2), torch.float32)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        of_clients(given, GEOMETRIES[1])
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert [settings["precision"] for settings in on] == ["tf32"]


def test_gradcheck_and_gradgradcheck(on):
    geometry = (2, 1, 3, 2, 1, 2, 3)
    given = tuple(x.detach()[:, :2].requires_grad_() for x in drawn(geometry, 2))

    def convolved(*tensors):
        return of_clients(tensors, geometry)

    assert gradcheck(convolved, given, fast_mode=True)
    assert gradgradcheck(convolved, given, fast_mode=True)
    assert on


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)])
def test_vmap_of_values_and_gradients_is_a_loop(dims, on):
    geometry = (2, 3, 3, 2, 1, 5, 6)
    x, weight, bias = (t.detach() for t in drawn(geometry, 2))
    x = x if dims[0] == 0 else x[0]
    weight = weight if dims[1] == 0 else weight[0]

    def loss(x, weight, bias):
        y = stacked_convolution(x, weight, bias, stride=2, padding=1)
        return (y.square() + y).sum()

    got = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=(*dims, 0))(x, weight, bias)
    assert on
    for k in range(2):
        own = [t[k] if d == 0 else t for t, d in zip((x, weight, bias), (*dims, 0), strict=True)]
        own = [t.clone().requires_grad_() for t in own]
        y = conv2d(*own, stride=2, padding=1)
        wanted = torch.autograd.grad((y.square() + y).sum(), own)
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a[k], b, rtol=0, atol=1e-11)


def test_images_in_channels_last_layout_have_gradients_in_it(on):
    geometry = (3, 4, 3, 2, 1, 7, 6)
    x, weight, bias = drawn(geometry, 2)
    last = x.detach().permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3).requires_grad_()
    y = of_clients((last, weight, bias), geometry)
    torch.testing.assert_close(y, one_by_one((x, weight, bias), geometry), rtol=0, atol=1e-12)
    assert y.permute(0, 1, 3, 4, 2).is_contiguous()
    (by_last,) = torch.autograd.grad(y.sum(), last)  # a gradient without strides, too
    (by_x,) = torch.autograd.grad(one_by_one((x, weight, bias), geometry).sum(), x)
    torch.testing.assert_close(by_last, by_x, rtol=0, atol=1e-12)
    assert by_last.stride() == last.stride()
    assert on


def test_no_images_have_gradients_of_0(on):
    geometry = (3, 4, 3, 2, 1, 7, 6)
    x, weight, bias = drawn(geometry, 2)
    given = x[:, :0].detach().requires_grad_(), weight, bias
    y = of_clients(given, geometry)
    assert y.shape == (2, 0, 4, 4, 3)
    assert not any(g.any() for g in torch.autograd.grad(y.sum(), given))
    assert on


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # columns not stored
def test_what_is_not_finite_stays_in_its_windows(on):
    geometry = (1, 2, 3, 2, 1, 9, 9)
    x, weight, bias = drawn(geometry, 2)
    with torch.no_grad():
        x[0, 1, 0, 4, 4] = torch.inf
    y = of_clients((x, weight, bias), geometry)
    assert torch.equal(y.isfinite(), one_by_one((x, weight, bias), geometry).isfinite())
    towards = torch.zeros_like(y)
    towards[1, 2, 0, 2, 3] = torch.inf
    (by_x,) = torch.autograd.grad(y, x, towards)
    (wanted,) = torch.autograd.grad(one_by_one((x, weight, bias), geometry), x, towards)
    assert torch.equal(by_x.isfinite(), wanted.isfinite())
    assert on


def test_a_layer_with_kernels_of_each_client_takes_the_kernel(on):
    layer = StackableConv2d(2, 3, 3, 2, padding=1).double()
    x, weight, bias = drawn((2, 3, 3, 2, 1, 5, 6), 2)
    y = vmap(lambda x, w, b: functional_call(layer, {"weight": w, "bias": b}, (x,)))(
        x, weight, bias
    )
    torch.testing.assert_close(
        y, one_by_one((x, weight, bias), (2, 3, 3, 2, 1)), rtol=0, atol=1e-12
    )
    assert on


def test_forward_derivatives_take_the_operators(on):
    x, weight, bias = (t[0].detach() for t in drawn((2, 3, 3, 2, 1, 5, 6), 1))

    def call(x):
        return stacked_convolution(x, weight, bias, stride=2, padding=1)

    y, moved = torch.func.jvp(call, (x,), (x,))
    assert not on
    torch.testing.assert_close(moved, y - bias[:, None, None])
