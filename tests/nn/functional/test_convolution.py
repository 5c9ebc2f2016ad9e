"""Convolutions with an axis of clients against torch's convolution of each client alone."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn.functional import conv2d

from fedbolic.methods import FedAvg
from fedbolic.nn.functional import convolution
from fedbolic.nn.functional.convolution import StackableConv2d, im2col_convolution
from fedbolic.nn.network.backbone import ConvNet
from fedbolic.nn.network.resnet import ResNet
from tests.federated.agreement import assert_engines_agree
from tests.subjects import subject

# channels in and out, size of a kernel, stride, padding, height and width
GEOMETRIES = [
    (1, 4, 5, 1, 2, 8, 8),
    (3, 2, 3, 1, 1, 5, 7),
    (3, 4, 3, 2, 1, 7, 6),
    (2, 3, 1, 2, 0, 5, 5),
    (2, 1, 7, 2, 3, 9, 8),
    (1, 1, 4, 1, 0, 4, 6),
    (2, 3, 4, 4, 0, 8, 9),
]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
NEAR = {"rtol": 0.0, "atol": 1e-12}


def drawn(geometry, num_clients, *, with_bias=True):
    """Images, kernels and biases of every client, in float64, with gradients."""
    inputs, outputs, size, _, _, height, width = geometry
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        x = torch.randn(num_clients, *shape, generator=generator, dtype=torch.float64)
        return x.requires_grad_()

    images, kernels = normal(3, inputs, height, width), normal(outputs, inputs, size, size)
    return [images, kernels, *([normal(outputs)] if with_bias else [])]


def one_by_one(given, geometry):
    """Torch's convolution, client by client."""
    stride, padding = geometry[3:5]
    clients = zip(*given, strict=True)
    return torch.stack([conv2d(*of, stride=stride, padding=padding) for of in clients])


def stacked(given, geometry):
    stride, padding = geometry[3:5]

    def alone(x, weight, bias=None):
        return im2col_convolution(x, weight, bias, stride=stride, padding=padding)

    return vmap(alone)(*given)


@every_geometry
@pytest.mark.parametrize("with_bias", [True, False])
def test_outputs_and_gradients_are_those_of_each_client_alone(geometry, with_bias):
    given = drawn(geometry, 4, with_bias=with_bias)
    ours, theirs = stacked(given, geometry), one_by_one(given, geometry)
    torch.testing.assert_close(ours, theirs, **NEAR)
    towards = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(2)).double()
    gradients = [torch.autograd.grad(y, given, towards) for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, **NEAR)


@every_geometry
def test_the_result_is_in_channels_last_layout(geometry):
    x, weight, bias = (of_client[0] for of_client in drawn(geometry, 1))
    y = im2col_convolution(x, weight, bias, stride=geometry[3], padding=geometry[4])
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_clients_become_batched_products_and_no_convolution():
    names = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function._schema.name)
            return function(*args, **(kwargs or {}))

    given = drawn(GEOMETRIES[1], 4)
    with Names():
        stacked(given, GEOMETRIES[1]).sum().backward()
    assert not any("convolution" in name for name in names)
    assert any(name in ("aten::bmm", "aten::baddbmm") for name in names)


@every_geometry
def test_the_layer_is_that_of_torch(geometry):
    inputs, outputs, size, stride, padding, height, width = geometry
    theirs = nn.Conv2d(inputs, outputs, size, stride, padding)
    ours = StackableConv2d(inputs, outputs, size, stride, padding=padding)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, inputs, height, width, generator=torch.Generator().manual_seed(3))
    assert torch.equal(ours(x), theirs(x))


def test_clients_with_one_kernel_keep_the_convolution(monkeypatch):
    monkeypatch.setattr(convolution, "stacked_convolution", None)
    layer = StackableConv2d(1, 2, 3)
    assert vmap(layer)(torch.zeros(4, 2, 1, 5, 5)).shape == (4, 2, 2, 3, 3)


@pytest.mark.parametrize("backbone", [ConvNet(), ResNet(blocks=(1, 1), width=8, stem="imagenet")])
def test_stacked_clients_train_as_each_alone(backbone, monkeypatch):
    _, data = subject("fedavg")
    called = []

    def counted(*args, **named):
        called.append(len(args))
        return im2col_convolution(*args, **named)

    monkeypatch.setattr(convolution, "stacked_convolution", counted)
    monkeypatch.setattr(convolution, "prefers_im2col", torch._C._functorch.is_batchedtensor)
    method = FedAvg(backbone, rounds=1, lr=0.1)
    assert_engines_agree(method, data.to("cpu", torch.float64))
    assert called
