"""Adam's step in flat space in one pass over memory: by the kernel for CUDA, or by torch's."""

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from fedbolic import kernels
from fedbolic.formulas.registrar import mapped, takes_kernels

AdamLists = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""Parameters, their mean gradients and their mean squared gradients, in one order."""


def can_fuse_adam(given: AdamLists, gradients: list[Tensor], lr: float | Tensor) -> bool:
    """True if :func:`fused_adam` takes the tensors: full precision, in order, no derivatives.

    Under ``vmap`` only our kernel takes them.
    """
    tensors = [x for of in given for x in of]
    full = all(
        x.dtype in (torch.float32, torch.float64) and x.is_contiguous() and not x.requires_grad
        for x in tensors
    )
    mapped = any(map(is_functorch_wrapped_tensor, (*tensors, *gradients)))
    if torch.compiler.is_compiling():  # operators join others in a kernel
        return False
    return bool(tensors) and full and (not mapped or _kernel_takes(given, gradients, lr))


def fused_adam(
    given: AdamLists,
    gradients: list[Tensor],
    step: Tensor,
    numbers: dict[str, Any],
    *,
    donate: bool,
) -> AdamLists:
    """Parameters and moments after a step.

    Torch's kernel takes a few launches for all tensors, but a tensor for each parameter of each
    client, because clients count their steps apart. Ours takes one for a parameter of all clients.

    Args:
        given: Parameters and moments, whose leading axes are those of ``step``.
        gradients: Gradients, in the same order.
        step: Numbers of steps, this one included.
        numbers: ``lr`` and the fields of :class:`~fedbolic.optim.functional.Adam`.
        donate: Whether the results are written over ``given``, but under ``vmap``.
    """
    points, *moments = given
    rows = list(zip(points, gradients, *moments, strict=True))
    if any(is_functorch_wrapped_tensor(x) for row in rows for x in row):
        results = [_Step.apply(*row, step, numbers) for row in rows]
    elif step.ndim and _kernel_takes(given, gradients, numbers["lr"]):
        results = [_updated(*row, step, numbers, donate=donate) for row in rows]
    else:
        return _by_torch(given, gradients, step, numbers, donate=donate)
    points, mean, square = map(list, zip(*results, strict=True))
    return points, mean, square


def _kernel_takes(given: AdamLists, gradients: list[Tensor], lr: float | Tensor) -> bool:
    """True if the kernel takes the tensors; a number for ``lr`` needs no launch."""
    if not (takes_kernels() and isinstance(lr, float | int)):
        return False
    same_dtype = all(
        len({x.dtype for x in row}) == 1 for row in zip(*given, gradients, strict=True)
    )
    derived = any(g.requires_grad for g in gradients)
    return same_dtype and not derived and all(map(kernels.run_on, (*given[0], *gradients)))


def _updated(*row: Any, donate: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Our kernel on a parameter, its gradient, moments and steps, and the numbers."""
    from fedbolic.kernels.adam import adam_update

    *tensors, numbers = row
    # lr is never a tensor here, whose value the host would wait for
    return adam_update(*tensors, **{**numbers, "lr": float(numbers["lr"])}, donate=donate)


class _Step(torch.autograd.Function):
    """A step of one parameter under ``vmap``; it has no derivative."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _updated(*inputs, donate=False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
        *tensors, numbers = inputs
        return _Step.apply(*mapped(info, in_dims[:-1], tensors), numbers), (0, 0, 0)


def _by_torch(
    given: AdamLists,
    gradients: list[Tensor],
    step: Tensor,
    numbers: dict[str, Any],
    *,
    donate: bool,
) -> AdamLists:
    # torch's kernel ignores strides
    gradients = [
        g if g.stride() == x.stride() else torch.empty_like(x).copy_(g)
        for x, g in zip(given[0], gradients, strict=True)
    ]
    points, mean, square = given if donate else ([x.clone() for x in of] for of in given)

    def rows(tensors: list[Tensor]) -> list[Tensor]:
        return [row for x in tensors for row in (x.unbind() if step.ndim else [x])]

    torch._fused_adam_(  # type: ignore[attr-defined]  # the public adam() counts per row
        *map(rows, (points, gradients, mean, square)),
        [],
        list(step.float().reshape(-1).unbind()) * len(points),
        **numbers,
        amsgrad=False,
        maximize=False,
    )
    return points, mean, square
