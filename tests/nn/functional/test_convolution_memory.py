"""Convolutions of few channels in every layout: values by definition, and nothing past a buffer.

The smallest case that writes past its buffer on a CPU with AVX2 and without AVX-512 (torch 2.13):

    x = torch.randn(16, 4, 8, 8).to(memory_format=torch.channels_last)
    weight = torch.randn(8, 4, 1, 1, requires_grad=True)
    for _ in range(100):
        torch.nn.functional.conv2d(x, weight, stride=2).sum().backward()
"""

import copy
import ctypes
import itertools
import os
import subprocess
import sys

import pytest
import torch

from fedbolic.nn.functional.convolution import StackableConv2d
from fedbolic.nn.layers.image_convolution import Window

LAYOUTS = (torch.contiguous_format, torch.channels_last)
CHECKER = "libc_malloc_debug.so.0"  # glibc's, which refuses to free what was written past
OVERRUN = """
import ctypes
python = ctypes.pythonapi
python.PyMem_RawMalloc.restype = ctypes.c_void_p
buffer = python.PyMem_RawMalloc(16)
ctypes.memset(buffer, 1, 17)
python.PyMem_RawFree(ctypes.c_void_p(buffer))
"""


def cases(sizes, strides, paddings, channels, sides):
    """Layers with images, in every layout of images and kernels."""
    for size, stride, padding, inputs, side, of_x, of_kernels in itertools.product(
        sizes, strides, paddings, channels, sides, LAYOUTS, LAYOUTS
    ):
        layer = StackableConv2d(inputs, 5, size, stride, padding=padding, bias=False)
        x = torch.randn(4, inputs, side, side + stride).to(memory_format=of_x).requires_grad_()
        yield layer.to(memory_format=of_kernels), x


def by_window(layer, x):
    """The same products by the layers of points, whose images have channels last."""
    window = Window(layer.kernel_size[0], layer.stride[0], layer.padding[0])
    rows = torch.nn.functional.pad(layer.weight.permute(0, 2, 3, 1).flatten(1), (1, 0))
    return window.convolve(x.permute(0, 2, 3, 1), rows[:, 1:]).permute(0, 3, 1, 2)


def by_definition(layer, x):
    """The sum over the pixels of a window, one shifted image a pixel."""
    size, stride, padding = layer.kernel_size[0], layer.stride[0], layer.padding[0]
    x = torch.nn.functional.pad(x, (padding,) * 4)
    height, width = ((side - size) // stride * stride + 1 for side in x.shape[2:])
    return sum(
        torch.einsum(
            "nihw,oi->nohw",
            x[:, :, i : i + height : stride, j : j + width : stride],
            layer.weight[:, :, i, j],
        )
        for i, j in itertools.product(range(size), repeat=2)
    )


def train():
    """Gradients of many convolutions of few channels, of 1x1 kernels above all."""
    torch.set_num_threads(1)
    few = cases((1, 2, 3), (1, 2, 3), (0, 1), (1, 3, 4, 8), (6,))
    # multiples of the strides, with which the defect was found
    small = cases((1,), (2, 3, 4), (0,), (2, 3, 4, 5, 6, 7, 9), (12,))
    for repeats, layers in ((1, few), (5, small)):
        for layer, x in layers:
            for convolve in (layer, lambda x, layer=layer: by_window(layer, x)):
                for _ in range(repeats):
                    convolve(x).sum().backward()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_outputs_and_gradients_are_those_of_the_definition(size):
    for layer, x in cases((size,), (1, 2, 3), (0, 1), (1, 3, 8), (6, 7)):
        exact, exact_x = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
        expected = by_definition(exact, exact_x)
        towards = torch.randn(expected.shape)
        gradients = torch.autograd.grad(expected, (exact_x, exact.weight), towards.double())
        for y in (layer(x), by_window(layer, x)):
            torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
            found = torch.autograd.grad(y, (x, layer.weight), towards)
            for ours, theirs in zip(found, gradients, strict=True):
                torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.processes
def test_nothing_is_written_past_a_buffer():
    try:
        ctypes.CDLL(CHECKER)
    except OSError:
        pytest.skip(f"needs {CHECKER} of glibc")
    checked = {**os.environ, "LD_PRELOAD": CHECKER, "MALLOC_CHECK_": "3"}

    def run(code):
        return subprocess.run([sys.executable, "-c", code], env=checked, capture_output=True)

    assert run(OVERRUN).returncode < 0  # the check is on
    done = run(f"from {__name__} import train; train()")
    assert done.returncode == 0, done.stderr.decode()[-2000:]
