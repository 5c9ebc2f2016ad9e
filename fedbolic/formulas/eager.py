"""Whole operations as one function of autograd, for tensors on the CPU.

A function costs autograd as much as several operators on a small tensor, and an operation is made
of five functions or more.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fedbolic.formulas.fused import Formula, is_traced

FULL = (torch.float32, torch.float64)

Operation = Callable[..., Tensor]


def at_once(formula: type[Formula]) -> Callable[[Operation], Operation]:
    """Decorate an operation of a manifold, in place of which a formula runs where it can.

    It runs for a curvature that is a number, for tensors of one full precision on the CPU, outside
    transforms and compilers. Its value and its gradient are those of the operation to the bit;
    higher derivatives are the operation's.

    Args:
        formula: The operation in closed form, of the tensors and the number. Its first part is the
            value, and its gradient is called for tensors of one shape.
    """

    def decorated(operation: Operation) -> Operation:
        function = _function(formula, operation)

        @functools.wraps(operation)
        def chosen(space: Any, *tensors: Tensor) -> Tensor:
            c = space.c
            if not _is_eager(c, tensors):
                return operation(space, *tensors)
            if not torch.is_grad_enabled():
                return formula.parts(*tensors, c)[0]
            if any(x.requires_grad for x in tensors):
                if any(x.shape != tensors[0].shape for x in tensors):
                    return operation(space, *tensors)
                return function.apply(space, c, *tensors)
            with torch.no_grad():
                return formula.parts(*tensors, c)[0]

        return chosen

    return decorated


def _is_eager(c: Tensor | float, tensors: tuple[Tensor, ...]) -> bool:
    first = tensors[0]
    return (
        first.dtype in FULL
        and all(x.device.type == "cpu" and x.dtype == first.dtype for x in tensors)
        and all(x.shape[-1:] == first.shape[-1:] for x in tensors)
        and not isinstance(c, Tensor)
        and first.numel() > 0
        and not is_traced(*tensors)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _function(formula: type[Formula], operation: Operation) -> type[torch.autograd.Function]:
    class AtOnce(torch.autograd.Function):
        """An operation of a space, its curvature and tensors of one shape."""

        @staticmethod
        def forward(ctx: Any, space: Any, c: float, *tensors: Tensor) -> Tensor:
            value, *parts = formula.parts(*tensors, c)
            ctx.given = space, c, len(tensors)
            ctx.save_for_backward(*tensors, *parts)
            return value

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
            space, c, count = ctx.given
            saved = ctx.saved_tensors
            tensors, parts = saved[:count], saved[count:]
            if torch.is_grad_enabled():
                each = [x.view_as(x) for x in tensors]  # apart, should one be given twice
                needed = [x for x in each if x.requires_grad]
                again = operation(space, *each)
                found = iter(torch.autograd.grad(again, needed, grad_outputs, create_graph=True))
                return None, None, *(next(found) if x.requires_grad else None for x in each)
            made: tuple[Any, ...] = formula.gradient((*tensors, c), parts, *grad_outputs)
            # finite, as gradients that pass ``numerics.bounded``
            return None, None, *(g.nan_to_num_(nan=0.0) for g in made)

    return AtOnce
