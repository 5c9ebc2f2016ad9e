"""Errors of convolutions with an axis of clients in float32, against torch's in float64."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias
from unittest import mock

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import conv2d

from fedbolic import kernels
from fedbolic.nn.functional.convolution import im2col_convolution
from fedbolic.operators.convolution_kernel import kernel_convolution

CLIENTS, IMAGES = 2, 4

LAYERS = {
    "16 to 32, 5 x 5, 14 x 14 pixels": (16, 32, 5, 1, 14),
    "16 to 24, 3 x 3, stride 2, 15 x 15 pixels": (16, 24, 3, 2, 15),
}
"""Channels in and out, kernel size, stride, pixels."""

Function: TypeAlias = Callable[..., Tensor]

FUNCTIONS: dict[str, Function] = {
    "conv2d": conv2d,
    "im2col": im2col_convolution,
    "kernel": kernel_convolution,
}


class ConvolutionErrors(NamedTuple):
    """Largest errors over the largest true numbers, of the result and of its gradients."""

    result: float
    by_images: float
    by_kernels: float
    by_bias: float


def convolution_errors(layer: tuple[int, ...], function: Function) -> ConvolutionErrors:
    """Errors of a function in float32.

    Args:
        layer: Channels in and out, kernel size, stride and pixels.
        function: Convolution of one client.
    """
    inputs, outputs, size, stride, pixels = layer
    generator = torch.Generator().manual_seed(0)
    shapes = (IMAGES, inputs, pixels, pixels), (outputs, inputs, size, size), (outputs,)
    given = [torch.randn(CLIENTS, *shape, generator=generator) for shape in shapes]
    found = _results(function, given, stride)
    true = _results(conv2d, [x.double() for x in given], stride)
    errors = [(a - b).abs().max() / b.abs().max() for a, b in zip(found, true, strict=True)]
    return ConvolutionErrors(*(error.item() for error in errors))


def _results(function: Function, given: list[Tensor], stride: int) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in given]
    alone = partial(function, stride=stride, padding=given[1].shape[-1] // 2)
    y = vmap(alone)(*leaves)
    towards = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return y, *torch.autograd.grad(y, leaves, towards)


def rows() -> Iterator[str]:
    """The table, a line at a time."""
    names = ", ".join(FUNCTIONS)
    head = [field.replace("_", " ") for field in ConvolutionErrors._fields]
    yield f"| convolution, float32 | {head[0]}: {names} | {' | '.join(head[1:])} |"
    yield "|---" * (1 + len(head)) + "|"
    with mock.patch.object(kernels, "run_on", return_value=True):
        for name, layer in LAYERS.items():
            every = [convolution_errors(layer, function) for function in FUNCTIONS.values()]
            cells = (", ".join(f"{e:.1e}" for e in of) for of in zip(*every, strict=True))
            yield f"| {name} | {' | '.join(cells)} |"
