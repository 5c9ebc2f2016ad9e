"""One registrar of kernels: a formula, the kernels in its place, and its rules for derivatives.

An operation is declared once, at its formula; the device of its tensors decides what runs. The
value and the first derivatives are kernels, higher derivatives are those of the formula.
``torch.library.custom_op`` would be the usual registrar, but fails under ``vmap`` of a gradient.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fedbolic import kernels

FORMULAS: dict[tuple[str, frozenset[tuple[str, Any]]], Callable[..., Tensor]] = {}
"""The formula of every kernel, by its name and its constants."""


def takes_kernels() -> bool:
    """True unless torch's operators are needed: for a compiler, and for forward derivatives."""
    return not torch.compiler.is_compiling() and forward_ad._current_level < 0


def points(count: int = 1, **only: Any) -> Callable[..., bool]:
    """A condition: the first tensors are points of one width, in float32 or in float64.

    Args:
        count: Number of tensors that are points.
        **only: Values of settings, should a call have these.
    """

    def takes(*arguments: Any, **settings: Any) -> bool:
        if any(settings.get(name, value) != value for name, value in only.items()):
            return False
        given = [x for x in arguments if isinstance(x, Tensor)][:count]
        if not kernels.replace_operators(*given):
            return False
        full = given[0].dtype in (torch.float32, torch.float64)
        return full and len({(x.dtype, x.shape[-1]) for x in given}) == 1

    return takes


def replaced_by(other: Callable, takes: Callable[..., bool]) -> Callable[[Callable], Callable]:
    """Decorate a function by operators, in place of which another one runs on some devices.

    Args:
        other: A function by kernels, of the same arguments.
        takes: Whether the kernels take the arguments.
    """

    def decorated(function: Callable) -> Callable:
        @functools.wraps(function)
        def operation(*arguments: Any, **settings: Any) -> Any:
            by_kernel = takes_kernels() and takes(*arguments, **settings)
            return (other if by_kernel else function)(*arguments, **settings)

        return operation

    return decorated


def with_kernel(
    kernel: str,
    *,
    takes: Callable[..., bool] = lambda *_, **__: True,
    axes: int = 1,
    keeps: bool = False,
    implied: Collection[int] = (),
    **constants: Any,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Decorate a formula, in place of which kernels run on devices that have them.

    The formula takes tensors, whose leading axes broadcast, and settings by name. The operation is
    differentiable any number of times, for autograd and ``vmap``.

    Args:
        kernel: ``module.name`` of a function in :mod:`fedbolic.kernels` that gives the value or,
            with ``keeps``, the value and what its gradients read, in the broadcast shape. Next to
            it, ``name_gradients`` gives one gradient for each tensor in the broadcast shape, or in
            parts to sum. It takes the gradient of the value, the tensors, what was kept, and by
            name the settings and which gradients are ``needed``; the others may be ``None``.
        takes: Whether the kernels take the arguments; by default all, which a caller has chosen.
        axes: Fewest axes of a tensor; numbers and scalars, such as a curvature, are given them.
        keeps: True if the value takes ``kept``, which is true if gradients may follow.
        implied: Positions of tensors that are functions of others, whose gradients include theirs.
        **constants: Settings of the kernels alone.
    """

    def decorated(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
        FORMULAS[kernel, frozenset(constants.items())] = formula
        apply = _differentiable(formula, kernel, keeps, implied, constants)

        def launched(*tensors: Any, **settings: Any) -> Tensor:
            return apply(settings, *(_alike(x, tensors[0], axes) for x in tensors))

        return replaced_by(launched, takes)(formula)

    return decorated


def _alike(x: Tensor | float, first: Tensor, axes: int) -> Tensor:
    """A tensor in the dtype of the first one, with at least a number of axes."""
    x = x.to(first.dtype) if isinstance(x, Tensor) else first.new_full((), x)
    return x if x.ndim >= axes else x.reshape(*[1] * (axes - x.ndim), *x.shape)


def _launcher(name: str) -> Callable:
    """A function that launches kernels, imported when one runs: triton is not everywhere."""
    module, _, function = name.partition(".")
    return getattr(import_module(f"fedbolic.kernels.{module}"), function)


def _gradients(
    formula: Callable[..., Tensor], kernel: str, constants: dict[str, Any]
) -> type[torch.autograd.Function]:
    """The function of gradients by kernels, whose own backward pass calls the formula."""

    class Gradients(torch.autograd.Function):
        """Gradients of the tensors that need one."""

        @staticmethod
        def forward(call: tuple, *tensors: Tensor) -> tuple[Tensor, ...]:
            settings, needed = call
            made = _launcher(f"{kernel}_gradients")(
                *tensors, needed=needed, **constants, **settings
            )
            pairs = [(g, x) for g, x, n in zip(made, tensors[1:], needed, strict=False) if n]
            return tuple(g.sum_to_size(x.shape) for g, x in pairs if g is not None)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
            ctx.call, *tensors = inputs
            ctx.save_for_backward(*tensors)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
            settings, needed = ctx.call
            whole = functools.partial(formula, **settings)

            def gradients(grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
                made = torch.func.vjp(whole, *tensors)[1](grad)
                return tuple(g for g, need in zip(made, needed, strict=True) if need)

            given = ctx.saved_tensors[: 1 + len(needed)]
            made = torch.func.vjp(gradients, *given)[1](grad_outputs)
            # what was kept is a function of the arguments, which the formula computes again
            return None, *made, *[None] * (len(ctx.saved_tensors) - len(given))

        @staticmethod
        def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
            call, *tensors = inputs
            # every gradient has the axis, so every tensor needs it
            full = mapped(info, in_dims[1:], tensors)
            made = Gradients.apply(call, *_batch_first(full, (0,) * len(full)))
            given = [t for t, need in zip(full[1:], call[1], strict=False) if need]
            made = tuple(g.reshape(t.shape) for g, t in zip(made, given, strict=True))
            return made, (0,) * len(made)

    return Gradients


def _differentiable(
    formula: Callable[..., Tensor],
    kernel: str,
    keeps: bool,
    implied: Collection[int],
    constants: dict[str, Any],
) -> Callable[..., Tensor]:
    """The function by kernels, whose first argument is the settings of a call.

    A kernel cannot be differentiated, so each derivative is a separate function: ``Values`` calls
    ``Gradients`` in its backward pass, and that calls the formula in its. Both map a batch by one
    launch, with the mapped axis before all others, since their arguments broadcast.
    """
    Gradients = _gradients(formula, kernel, constants)

    class Values(torch.autograd.Function):
        """The value, and what its gradients read."""

        @staticmethod
        def forward(call: tuple, *tensors: Tensor) -> tuple[Tensor, ...]:
            settings, kept = call
            options = {"kept": kept} if keeps else {}
            made = _launcher(kernel)(*tensors, **constants, **settings, **options)
            return made if isinstance(made, tuple) else (made,)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
            (ctx.settings, _), *tensors = inputs
            ctx.save_for_backward(*tensors, *output[1:])

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
            needed = [x and i not in implied for i, x in enumerate(ctx.needs_input_grad[1:])]
            call = ctx.settings, needed
            made = iter(Gradients.apply(call, grad_outputs[0], *ctx.saved_tensors))
            return None, *(next(made) if need else None for need in needed)

        @staticmethod
        def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
            call, *tensors = inputs
            made = Values.apply(call, *_batch_first(tensors, in_dims[1:]))
            return made, (0,) * len(made)

    def differentiable(settings: dict[str, Any], *tensors: Tensor) -> Tensor:
        return Values.apply((settings, torch.is_grad_enabled()), *tensors)[0]

    return differentiable


def mapped(info: Any, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with the mapped axis first, also those that are not mapped: for rules of ``vmap``.

    Args:
        info: First argument of the rule.
        in_dims: Mapped axis of each tensor, or ``None``.
        tensors: The tensors.
    """
    return [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=True)
    ]


def _batch_first(tensors: Sequence[Tensor], in_dims: Sequence[int | None]) -> list[Tensor]:
    """Tensors with the mapped axis before all axes of all tensors."""
    moved = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=True)]
    most = max(t.ndim - (d is not None) for t, d in zip(moved, in_dims, strict=True))
    return [
        t if d is None else t.reshape(len(t), *[1] * (most + 1 - t.ndim), *t.shape[1:])
        for t, d in zip(moved, in_dims, strict=True)
    ]
