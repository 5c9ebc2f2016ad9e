"""Convolution with an axis of clients: torch's groups, a matrix product of windows, the kernel."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import conv2d

from benchmarks.gpu.report import Report, Row
from benchmarks.gpu.workloads import Size
from benchmarks.timing import median_seconds, peak_mebibytes
from fedbolic.nn.functional.convolution import (
    im2col_convolution,
    kernel_convolution,
    takes_images,
)

PART = "convolution"
REPEATS = 5

Layer = tuple[int, int, int, int, int, bool]
"""Channels in and out, kernel size, stride, pixels, and whether the input needs a gradient."""

LAYERS: dict[str, Layer] = {
    "ConvNet 8x8, first": (1, 16, 5, 1, 8, False),
    "ConvNet 8x8, second": (16, 32, 5, 1, 4, True),
    "ConvNet 28x28, first": (1, 16, 5, 1, 28, False),
    "ConvNet 28x28, second": (16, 32, 5, 1, 14, True),
    "ResNet, CIFAR stem": (3, 64, 3, 1, 32, False),
    "ResNet, second stage": (64, 128, 3, 2, 32, True),
    "ResNet, second shortcut": (64, 128, 1, 2, 32, True),
}


def convolution(report: Report, device: torch.device, size: Size) -> None:
    """Measure a forward and backward pass of each layer with every algorithm."""
    num_clients = min(size.clients)
    for name, layer in LAYERS.items():
        if size.layers is None or name in size.layers:
            report.add(
                PART,
                f"{name} x {num_clients}",
                lambda layer=layer: layer_row(device, num_clients, size.batch, layer),
            )


def layer_row(device: torch.device, num_clients: int, batch: int, layer: Layer) -> Row:
    """Milliseconds and peak MiB of every algorithm, and times over that of groups.

    The kernel has a column where it would run: on a CUDA device with triton.
    """
    inputs, outputs, kernel, stride, pixels, needs_gradient = layer
    x = torch.randn(num_clients, batch, pixels, pixels, inputs, device=device)
    x = x.permute(0, 1, 4, 2, 3).requires_grad_(needs_gradient)  # channels last
    weight = torch.randn(num_clients, outputs, inputs, kernel, kernel, device=device)
    bias = torch.randn(num_clients, outputs, device=device)
    given = [x, weight.requires_grad_(), bias.requires_grad_()]
    trained = [value for value in given if value.requires_grad]

    def figures(alone: Callable[..., Tensor]) -> tuple[float, float]:
        def step() -> tuple[Tensor, ...]:
            y = vmap(lambda *of: alone(*of, stride=stride, padding=kernel // 2))(*given)
            return torch.autograd.grad(y, trained, y.detach())

        return median_seconds(step, device, REPEATS), peak_mebibytes(step, device.type)

    algorithms = {"groups": conv2d, "im2col": im2col_convolution}
    if takes_images(x, weight):
        algorithms["kernel"] = kernel_convolution
    found = {key: figures(alone) for key, alone in algorithms.items()}
    row: Row = {f"{key}_ms": 1e3 * seconds for key, (seconds, _) in found.items()}
    row |= {f"{key}_mib": mebibytes for key, (_, mebibytes) in found.items()}
    groups = found.pop("groups")[0]
    return row | {f"{key}_times": groups / seconds for key, (seconds, _) in found.items()}
