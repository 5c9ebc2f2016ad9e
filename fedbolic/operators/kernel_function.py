"""Differentiable functions of kernels, whose second derivatives are those of torch's operators."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override


class KernelFunction(ABC):
    """A function of tensors by a kernel, its gradients by kernels, and the same by operators.

    Leading axes of the tensors broadcast. A subclass is not built: :func:`by_kernel` makes a
    differentiable function of it.
    """

    @classmethod
    @abstractmethod
    def values(cls, settings: Any, tensors: Sequence[Tensor], *, kept: bool) -> tuple[Tensor, ...]:
        """The value and, if ``kept`` is true, tensors that its gradients read.

        All of them have the leading axes to which those of the arguments broadcast.
        """

    @classmethod
    @abstractmethod
    def gradients(
        cls,
        settings: Any,
        grad: Tensor,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needed: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:
        """Gradients with respect to all tensors, in the broadcast shape.

        Args:
            settings: Constants of the function.
            grad: Gradient with respect to the value, of its shape.
            tensors: Arguments of the function.
            kept: Tensors that the value was returned with.
            needed: For each tensor, True if its gradient is read; the others may be ``None``.
        """

    @staticmethod
    def implied(settings: Any) -> Collection[int]:
        """Positions of tensors that are functions of others, whose gradients include theirs."""
        del settings
        return ()

    @staticmethod
    @abstractmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        """The value by operators of torch."""


class CurvedKernel(KernelFunction):
    """A function whose kernels take settings by name, and whose last argument is the curvature."""

    @staticmethod
    @abstractmethod
    def kernels() -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor | None, ...]]]:
        """The functions that launch the kernels of the value and of its gradients.

        They are imported here, because triton is not installed everywhere.
        """

    @override
    @classmethod
    def values(cls, settings: Any, tensors: Sequence[Tensor], *, kept: bool) -> tuple[Tensor, ...]:
        del kept  # gradients read nothing but the arguments
        return (cls.kernels()[0](*tensors, **settings._asdict()),)

    @override
    @classmethod
    def gradients(
        cls,
        settings: Any,
        grad: Tensor,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needed: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:
        del kept
        return cls.kernels()[1](grad, *tensors, **settings._asdict(), curved=needed[-1])


class Way(NamedTuple):
    """Settings of maps and translations.

    Args:
        hyperboloid: True for the hyperboloid, False for the ball.
        outward: True away from the origin or a point, False for the inverse.
    """

    hyperboloid: bool
    outward: bool


def by_kernel(function: type[KernelFunction]) -> Callable[..., Tensor]:
    """The function of a kernel, differentiable any number of times, for autograd and ``vmap``.

    Args:
        function: The function; the first argument of the result is its settings.
    """

    class Gradients(torch.autograd.Function):
        """Gradients of the tensors that need one."""

        @staticmethod
        def forward(call: tuple, *tensors: Tensor) -> tuple[Tensor, ...]:
            settings, needed = call
            grad, given, kept = tensors[0], tensors[1 : 1 + len(needed)], tensors[1 + len(needed) :]
            made = function.gradients(settings, grad, given, kept, needed)
            pairs = [(g, x) for g, x, need in zip(made, given, needed, strict=True) if need]
            return tuple(g.sum_to_size(x.shape) for g, x in pairs if g is not None)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
            ctx.call, *tensors = inputs
            ctx.save_for_backward(*tensors)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
            settings, needed = ctx.call
            whole = partial(function.operators, settings)

            def gradients(grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
                made = torch.func.vjp(whole, *tensors)[1](grad)
                return tuple(g for g, need in zip(made, needed, strict=True) if need)

            given = ctx.saved_tensors[: 1 + len(needed)]
            made = torch.func.vjp(gradients, *given)[1](grad_outputs)
            return None, *made, *[None] * (len(ctx.saved_tensors) - len(given))

        @staticmethod
        def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
            call, *tensors = inputs
            # every gradient has the axis, so every tensor needs it
            full = [
                t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
                for t, dim in zip(tensors, in_dims[1:], strict=True)
            ]
            made = Gradients.apply(call, *_batch_first(full, (0,) * len(full)))
            needed = call[1]
            given = [t for t, need in zip(full[1 : 1 + len(needed)], needed, strict=True) if need]
            made = tuple(g.reshape(t.shape) for g, t in zip(made, given, strict=True))
            return made, (0,) * len(made)

    class Values(torch.autograd.Function):
        """The value, and what its gradients read."""

        @staticmethod
        def forward(call: tuple, *tensors: Tensor) -> tuple[Tensor, ...]:
            settings, kept = call
            return function.values(settings, tensors, kept=kept)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
            (ctx.settings, _), *tensors = inputs
            ctx.save_for_backward(*tensors, *output[1:])

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
            implied = function.implied(ctx.settings)
            needed = [x and i not in implied for i, x in enumerate(ctx.needs_input_grad[1:])]
            call = ctx.settings, needed
            made = iter(Gradients.apply(call, grad_outputs[0], *ctx.saved_tensors))
            return None, *(next(made) if need else None for need in needed)

        @staticmethod
        def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
            call, *tensors = inputs
            made = Values.apply(call, *_batch_first(tensors, in_dims[1:]))
            return made, (0,) * len(made)

    def differentiable(settings: Any, *tensors: Tensor) -> Tensor:
        return Values.apply((settings, torch.is_grad_enabled()), *tensors)[0]

    return differentiable


def _batch_first(tensors: Sequence[Tensor], in_dims: tuple) -> list[Tensor]:
    """Tensors with the mapped axis before all axes of all tensors."""
    moved = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=True)]
    most = max(t.ndim - (d is not None) for t, d in zip(moved, in_dims, strict=True))
    return [
        t if d is None else t.reshape(len(t), *[1] * (most + 1 - t.ndim), *t.shape[1:])
        for t, d in zip(moved, in_dims, strict=True)
    ]
