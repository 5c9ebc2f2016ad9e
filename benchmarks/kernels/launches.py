"""Launches of both passes on a GPU, of the operators and of the kernels in their place.

No kernel runs. A launch is an operator of torch that writes a
tensor, as in ``benchmarks.geometry``, or a kernel; memory that is only allocated does not count.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.func import vmap
from typing_extensions import override

from benchmarks.geometry.operations import Row, rows
from benchmarks.gpu.convolution import LAYERS, layer_row
from benchmarks.table import head, line
from benchmarks.timing import Operators, seconds
from fedbolic import kernels
from fedbolic.core.types import Meta
from fedbolic.formulas import fused
from fedbolic.nn.functional.convolution import stacked_convolution
from fedbolic.nn.network.backbone import MLP, ConvNet
from fedbolic.nn.network.classifier import classifier
from fedbolic.nn.network.resnet import ResNet
from fedbolic.optim import Adam

MODELS = ("hyperboloid", "ball")

OPERATIONS = (
    *(f"{model} {name}" for model in MODELS for name in ("dist", "expmap0")),
    *(f"{model} {name}" for model in MODELS for name in ("logmap0", "expmap", "logmap")),
    *(f"{model} centroid" for model in MODELS),
    *("hyperboloid dist, learnt c", "MLR, hyperboloid", "MLR, ball", "Dropout"),
    *(f"HyperbolicBatchNorm, {model}" for model in MODELS),
)

CONVOLUTION = "StackableConv2d x 4"

REPEATS = 15

ALGORITHMS = ("groups", "im2col", "kernel")

FUSED_TENSORS = 36
"""Tensors of one launch of torch's fused Adam for CUDA; 252 where arguments may have 32 KB."""

ADAM = (("ConvNet", 1), ("ConvNet", 20), ("MLP", 100), ("ConvNet", 100), ("ResNet-18", 100))
"""Networks and numbers of clients whose steps of Adam are counted."""

MEASURED_LAYERS = ("ConvNet 28x28, second", "ResNet, second stage")
"""Layers whose peak memory is measured, with 4 clients of 32 images."""


class Launches(Operators):
    """Counts operators that write, and kernels, which it replaces and does not run."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """The launch of a kernel, as triton has it."""
        del grid
        return self._launch

    def _launch(self, *tensors: Any, **sizes: Any) -> None:
        del tensors, sizes
        self.count += 1

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "empty" in str(func):
            return func(*args, **(kwargs or {}))
        if "fused_adam" in str(func):
            self.count += math.ceil(len(args[0]) / FUSED_TENSORS) - 1
        return super().__torch_dispatch__(func, types, args, kwargs)


def launches(row: Row, *, kernel: bool) -> tuple[int, int]:
    """Launches of the forward and of the backward pass."""
    from fedbolic.kernels import (
        boosts,
        centroids,
        convolution,
        dropout,
        logits,
        maps,
        normals,
        radial,
    )
    from fedbolic.kernels import rows as of_rows

    function, given = row
    leaves = [x.detach().clone().requires_grad_() for x in given]
    forward, backward = Launches(), Launches()
    modules = boosts, centroids, dropout, logits, maps, normals, radial, of_rows, convolution
    on_device = mock.patch.object(kernels, "run_on", return_value=kernel)
    with on_device, mock.patch.object(fused, "_is_eager", return_value=False):
        with _counted_by(Launches(), modules):  # numbers that are computed once
            function(*leaves)
        with _counted_by(forward, modules):
            out = function(*leaves)
        cotangent = torch.ones_like(out)
        with _counted_by(backward, modules):
            torch.autograd.grad(out, leaves, cotangent, allow_unused=True)
    return forward.count, backward.count


@contextmanager
def _counted_by(counter: Launches, modules: Sequence[ModuleType]) -> Iterator[None]:
    """Context manager in which a counter stands for every kernel of some modules."""
    with ExitStack() as stack:
        for module in modules:
            for name in [name for name in vars(module) if name.endswith("_kernel")]:
                stack.enter_context(mock.patch.object(module, name, counter))
        stack.enter_context(counter)
        yield


def convolution_row() -> Row:
    """A layer of ``ConvNet`` with kernels of its own for each of 4 clients."""
    generator = torch.Generator().manual_seed(0)
    shapes = (4, 8, 16, 14, 14), (4, 32, 16, 5, 5), (4, 32)
    given = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    return vmap(partial(stacked_convolution, stride=1, padding=2)), given


def table() -> Iterator[str]:
    """The table, a line at a time."""
    yield head("launches, forward + backward", "operators", "kernels")
    every = rows() | {CONVOLUTION: convolution_row()}
    for name in (*OPERATIONS, CONVOLUTION):
        cells = [launches(every[name], kernel=kernel) for kernel in (False, True)]
        yield line(name, *(f"{first} + {second}" for first, second in cells))


def adam_launches() -> Iterator[str]:
    """The table of steps of Adam for stacked clients, a line at a time.

    Tensors have two numbers for each client, so that the time is that of the host. The kernel's
    lacks what triton needs for its launches, because no kernel runs.
    """
    from fedbolic.kernels import adam

    yield head("Adam: launches, ms of the host", "operators, vmap", "torch's fused", "kernel")
    networks = {"MLP": MLP(), "ConvNet": ConvNet(), "ResNet-18": ResNet()}
    for name, num_clients in ADAM:
        parameters, _ = classifier(networks[name], Meta(10, (3, 32, 32), 1)).init(0)
        values = {of: torch.zeros(num_clients, 2) for of in parameters}
        state = {**Adam().init(values), "step": torch.zeros(num_clients, dtype=torch.int64)}
        step, cells = partial(Adam().step, lr=0.1, donate=True), []
        for kernel, call in ((False, vmap(step)), (False, step), (True, step)):
            counter, case = Launches(), partial(call, values, values, state)
            with mock.patch.object(kernels, "run_on", return_value=kernel):
                with _counted_by(counter, [adam]):
                    case()
                with mock.patch.object(adam, "adam_kernel", Launches()):
                    taken = statistics.median(seconds(case, "cpu") for _ in range(REPEATS))
            cells.append(f"{counter.count}, {1e3 * taken:.2f}")
        yield line(f"{name}, {len(values)} parameters x {num_clients}", *cells)


def convolution_memory() -> Iterator[str]:
    """The table of peak memory of both passes of a layer, a line at a time."""
    from fedbolic.kernels import convolution

    yield head("peak MiB of both passes, 4 clients", *ALGORITHMS)
    for name in MEASURED_LAYERS:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(kernels, "run_on", return_value=True))
            for kernel in ("convolution_kernel", "weight_gradient_kernel"):
                stack.enter_context(mock.patch.object(convolution, kernel, Launches()))
            row = layer_row(torch.device("cpu"), 4, 32, LAYERS[name])
        cells = [f"{row[f'{of}_mib']:.1f}" for of in ALGORITHMS]
        yield line(name, *cells)
