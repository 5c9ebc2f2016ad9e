"""Launches of both passes on a GPU, of the operators and of the kernels in their place.

Called by ``benchmarks.kernels``; no kernel runs. A launch is an operator of torch that writes a
tensor, as in ``benchmarks.operators``, or a kernel; memory that is only allocated does not count.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.func import vmap
from typing_extensions import override

from benchmarks.measure import Operators
from benchmarks.operators import Row, rows
from fedbolic import kernels
from fedbolic.nn.backbone import MLP, ConvNet
from fedbolic.nn.classifier import classifier
from fedbolic.nn.convolution import stacked_convolution
from fedbolic.nn.resnet import ResNet
from fedbolic.optim import Adam
from fedbolic.types import Meta

OPERATIONS = (
    *(f"{model} {name}" for model in ("hyperboloid", "ball") for name in ("dist", "expmap0")),
    *(f"{model} logmap0" for model in ("hyperboloid", "ball")),
    *("hyperboloid dist, learnt c", "LorentzMLR", "PoincareMLR", "Dropout"),
)

CONVOLUTION = "StackableConv2d x 4"

FUSED_TENSORS = 36
"""Tensors of one launch of torch's fused Adam for CUDA; 252 where arguments may have 32 KB."""

CLIENTS = 100
"""Clients whose steps of Adam are counted."""


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
    """Launches of the forward and of the backward pass.

    Args:
        row: A function and its arguments, all of which take a gradient.
        kernel: True with kernels, False with operators alone.
    """
    from fedbolic.kernels import convolution, dropout, logits, normals, radial
    from fedbolic.kernels import rows as of_rows

    function, given = row
    leaves = [x.detach().clone().requires_grad_() for x in given]
    forward, backward = Launches(), Launches()
    modules = dropout, logits, normals, radial, of_rows, convolution
    with mock.patch.object(kernels, "run_on", return_value=kernel):
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
    yield "| launches, forward + backward | operators | kernels |"
    yield "|---|---|---|"
    every = rows() | {CONVOLUTION: convolution_row()}
    for name in (*OPERATIONS, CONVOLUTION):
        cells = [launches(every[name], kernel=kernel) for kernel in (False, True)]
        yield f"| {name} | {' | '.join(f'{first} + {second}' for first, second in cells)} |"


def adam_launches() -> Iterator[str]:
    """The table of steps of Adam for stacked clients, a line at a time."""
    from fedbolic.kernels import adam

    yield f"| launches of Adam, {CLIENTS} clients | operators, vmap | torch's fused | kernel |"
    yield "|---|---|---|---|"
    networks = {"MLP": MLP(), "ConvNet": ConvNet(), "ResNet-18": ResNet()}
    for name, network in networks.items():
        parameters, _ = classifier(network, Meta(10, (3, 32, 32), 1)).init(0)
        # the number of launches depends on that of the tensors alone
        values = {of: torch.zeros(CLIENTS, 2) for of in parameters}
        state = {**Adam().init(values), "step": torch.zeros(CLIENTS, dtype=torch.int64)}
        given, step = (values, values, state), partial(Adam().step, lr=0.1, donate=True)
        counts = []
        for kernel, call in ((False, vmap(step)), (False, step), (True, step)):
            counter = Launches()
            on = mock.patch.object(kernels, "run_on", return_value=kernel)
            with on, _counted_by(counter, [adam]):
                call(*given)
            counts.append(str(counter.count))
        yield f"| {name}, {len(values)} parameters | {' | '.join(counts)} |"
