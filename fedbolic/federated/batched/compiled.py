"""Functions on fixed buffers that a compiler turns into few kernels."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config
from torch.fx.experimental.proxy_tensor import make_fx

from fedbolic.formulas.numerics import without_casts

OPTIONS: dict[str, Any] = {
    # independent operators become parts of one kernel
    "combo_kernels": True,
    "combo_kernel_allow_mixed_sizes": 2,
    # no timing decides on the order of a sum
    "deterministic": True,
}
"""Options of Inductor; a version of torch that lacks one goes without it."""


def compiled(function: Callable[..., object], tensors: Sequence[Tensor]) -> Callable[[], object]:
    """The function on these tensors by kernels of Inductor, which agree up to rounding.

    The function is traced with all its gradients and none of its operations is run. Tensors that it
    reads elsewhere are constants.

    Args:
        function: Function that writes to some of its arguments, and whose operations do not depend
            on values.
        tensors: Its arguments; the compiled function always reads and writes these.

    Raises:
        Exception: If the function cannot be traced, or there is no C++ compiler or no triton.

    Example:
        >>> x = torch.zeros(3)
        >>> twice = compiled(lambda x: x.add_(2), [x])
        >>> _ = twice(), twice()
        >>> x
        tensor([4., 4., 4.])
    """
    options = {name: value for name, value in OPTIONS.items() if hasattr(config, name)}
    by_inductor: Any = torch._inductor.compile
    # a cast is part of the traced function
    with without_casts(tensors[0].device):
        kernels = by_inductor(traced(function, tensors), [*tensors], options=options)
    return lambda: kernels(*tensors)


def traced(function: Callable[..., object], tensors: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operators of a function, its gradients' too, with those that a compiler has kernels for.

    Args:
        function: Function of these tensors.
        tensors: Tensors, which are not changed.
    """

    def unreturned(*given: Tensor) -> tuple[()]:
        function(*given)
        return ()

    scatter = {torch.ops.aten.scatter_add.default: _scatter_add}
    trace = make_fx(unreturned, scatter, tracing_mode="fake", _allow_non_fake_inputs=True)
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True  # as torch.export does; no kernel takes part
    try:
        return trace(*tensors)
    finally:
        torch.compiler._is_compiling_flag = before


def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``scatter_add`` of one number in each row, which joins other operators in a kernel."""
    if index.shape[dim] != 1:
        return NotImplemented
    axes = [1] * x.ndim
    axes[dim] = -1
    places = torch.arange(x.shape[dim], device=x.device).view(axes)
    return x + torch.where(places == index, source, 0)
