"""Launches of both passes on a GPU, of the operators and of the kernels in their place.

Called by ``benchmarks.kernels``; no kernel runs. A launch is an operator of torch that writes a
tensor, as in ``benchmarks.operators``, or a kernel; memory that is only allocated does not count.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from typing_extensions import override

from benchmarks.measure import Operators
from benchmarks.operators import Row, rows
from fedbolic import kernels

MODELS = ("hyperboloid", "ball")

OPERATIONS = (
    *(f"{model} {name}" for model in MODELS for name in ("dist", "expmap0")),
    *(f"{model} {name}" for model in MODELS for name in ("logmap0", "expmap", "logmap")),
    *(f"{model} centroid" for model in MODELS),
    *("hyperboloid dist, learnt c", "LorentzMLR", "PoincareMLR", "Dropout"),
    *(f"HyperbolicBatchNorm, {model}" for model in MODELS),
)


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
        return super().__torch_dispatch__(func, types, args, kwargs)


def launches(row: Row, *, kernel: bool) -> tuple[int, int]:
    """Launches of the forward and of the backward pass.

    Args:
        row: A function and its arguments, all of which take a gradient.
        kernel: True with kernels, False with operators alone.
    """
    from fedbolic.kernels import boosts, centroids, dropout, logits, maps, normals, radial
    from fedbolic.kernels import rows as of_rows

    function, given = row
    leaves = [x.detach().clone().requires_grad_() for x in given]
    forward, backward = Launches(), Launches()
    modules = boosts, centroids, dropout, logits, maps, normals, radial, of_rows
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


def table() -> Iterator[str]:
    """The table, a line at a time."""
    yield "| launches, forward + backward | operators | kernels |"
    yield "|---|---|---|"
    every = rows()
    for name in OPERATIONS:
        cells = [launches(every[name], kernel=kernel) for kernel in (False, True)]
        yield f"| {name} | {' | '.join(f'{first} + {second}' for first, second in cells)} |"
