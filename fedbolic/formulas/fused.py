"""Functions whose derivatives are given in closed form, so that a pass takes few operators.

On a GPU an operator is a kernel launch, and the geometry of small batches costs what its launches
cost. Autograd repeats every operator of a formula two or three times in the backward pass; the
derivative of a distance or of a map is often shorter than the formula itself.

A function of autograd also costs as much as several operators on a small tensor, and an operation
of a manifold is made of five or more: :func:`at_once` makes one of it, for tensors on the CPU.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.autograd import forward_ad

FULL = (torch.float32, torch.float64)

Operation = Callable[..., Tensor]
PairOperation = Callable[..., tuple[Tensor, Tensor]]

_NOTHING = nullcontext()

_OLD = torch.__version__ < "2.13"  # a version, compared as such

_VALUELESS = torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY
"""Modes of the dispatcher in which results have no values."""


class Formula(ABC):
    """A function of tensors and constants, and its derivative in closed form.

    A subclass is not built: :func:`fused` makes a differentiable function of it.
    """

    outputs: ClassVar[int] = 1
    """Number of leading parts that the function returns."""

    closed: ClassVar[bool] = False
    """True if all parts are outputs, through which second derivatives go, and not computed again.

    The gradient is then given ``None`` for an output that has none.
    """

    unread: ClassVar[bool] = False
    """True if the gradient does not read the output, which is then not kept for it."""

    @staticmethod
    @abstractmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        """The outputs, and intermediate values that the gradient reads.

        Second derivatives are those of :meth:`gradient` through these expressions.
        """

    @classmethod
    def value(cls, *inputs: Any) -> Tensor:
        """The first part, of tensors of one shape; a subclass may spare memory for the others."""
        return cls.parts(*inputs)[0]

    @staticmethod
    def first(parts: tuple) -> Tensor | None:
        """The first input where it is a view of the parts; it is then not kept for the gradient."""
        return None

    @staticmethod
    @abstractmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients with respect to the first inputs, in the broadcast shape; ``None`` for 0.

        Args:
            inputs: Arguments of :meth:`parts`.
            parts: Results of :meth:`parts`.
            *grad_outputs: Gradients with respect to the outputs.
        """


def fused(
    formula: type[Formula], values: Callable[..., tuple[Any, ...]] | None = None
) -> Callable[..., Any]:
    """The differentiable function of a formula, for autograd, ``vmap``, ``jvp`` and ``compile``.

    Args:
        formula: The formula; its function takes and returns tensors that broadcast.
        values: The parts to the bit, in less time, of eager tensors on the CPU without a graph. Its
            results may be its arguments.
    """
    values, recorded = values or formula.parts, _recorded(formula)

    class Traced(torch.autograd.Function):
        """Form for ``torch.compile``, which takes no forward derivative and saves only outputs."""

        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor, ...]:
            return _traceable(formula.parts(*inputs))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
            _keep(formula, ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
            return _gradients(formula, *_known(formula, ctx), grad_outputs)

    class Eager(Traced):
        """Form with a forward derivative."""

        @staticmethod
        def jvp(ctx: Any, *grad_inputs: Any) -> tuple[Tensor, ...]:
            return _directional(formula, *_known(formula, ctx), grad_inputs)

    def function(*inputs: Any) -> Any:
        has_graph = torch.is_grad_enabled() and any(_requires_grad(x) for x in inputs)
        if torch.compiler.is_compiling():  # it would pass a context to the variadic ``forward``
            made = Traced.apply(*inputs) if has_graph else formula.parts(*inputs)
        elif _is_transformed():
            made = Eager.apply(*inputs)
        elif has_graph:
            made = recorded.apply(*inputs)
        else:  # half the time of a call on small tensors is that of ``apply``
            made = _values(formula, values, inputs)
        return made[0] if formula.outputs == 1 else made[: formula.outputs]

    return function


def _traceable(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies where torch 2.11 compiles: a part that was changed in place has no gradient there."""
    copied = _OLD and torch.compiler.is_compiling()
    return tuple([part.clone() for part in parts]) if copied else parts


def _recorded(formula: type[Formula]) -> type[torch.autograd.Function]:
    class Recorded(torch.autograd.Function):
        """Form of a graph alone: a separate context binds arguments by a signature at each call."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
            made = formula.parts(*inputs)
            _keep(formula, ctx, inputs, made)
            return made

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
            return _gradients(formula, *_known(formula, ctx), grad_outputs)

    return Recorded


def _keep(formula: type[Formula], ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    """Save what derivatives read, for :func:`_known`."""
    inputs = inputs if formula.first(output) is None else inputs[1:]
    ctx.constants = [None if isinstance(x, Tensor) else x for x in inputs]
    # the same for both: of two lists, ``vmap`` would take the later one's mapped axes for each
    kept = (*(x for x in inputs if isinstance(x, Tensor)), *output[formula.unread :])
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)
    ctx.set_materialize_grads(False)


def is_exact(c: Tensor | float) -> bool:
    """True if a derivative must be right where its closed form cancels.

    The error of such a form does not show in gradients with respect to points. It shows in the
    derivative with respect to the curvature, and in second derivatives.
    """
    return isinstance(c, Tensor) or torch.is_grad_enabled()


def is_traced(*tensors: Any) -> bool:
    """True if values cannot be looked at.

    So it is in a compiler, under a transform such as ``vmap``, while ``make_fx`` or ``jit.trace``
    records, and where tensors are fake.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    for mode in _VALUELESS:  # loops take half the time of generators
        if torch._C._get_dispatch_mode(mode) is not None:
            return True
    return any(isinstance(x, Tensor) and _is_wrapped(x) for x in tensors)


def _is_wrapped(x: Tensor) -> bool:
    """True if a tensor has its own dispatcher, as fake ones have, or is one of a transform's."""
    return (
        torch._C._dispatch_keys(x).has(torch._C.DispatchKey.Python)
        or is_functorch_wrapped_tensor(x)
        or is_legacy_batchedtensor(x)
    )


def spare(x: Tensor, *others: Tensor) -> Tensor | None:
    """An intermediate result as the place of another, ``None`` where a graph may need it.

    Large results in new memory cost many times those in old memory, since the allocator returns
    memory to the system and each page of it is fetched again.

    Args:
        x: The intermediate result.
        others: Other arguments of the second result, if they may be mapped and ``x`` not.
    """
    kept = torch.is_grad_enabled() or forward_ad._current_level >= 0 or is_traced(x, *others)
    return None if kept or torch._C._are_functorch_transforms_active() else x


def is_nowhere(mask: Tensor) -> bool:
    """True if a mask is known to be False everywhere, without a wait for a GPU."""
    return mask.device.type == "cpu" and not is_traced(mask) and not mask.any()


def _requires_grad(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _is_transformed() -> bool:
    """True under a transform such as ``vmap``, or if a forward derivative may be asked for."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _values(
    formula: type[Formula], values: Callable[..., tuple[Any, ...]], inputs: tuple
) -> tuple[Any, ...]:
    """Parts without a graph: as in ``forward``, where some formulas choose another form."""
    first = inputs[0]
    quick = first.device.type == "cpu" and first.numel() > 0 and not is_traced(*inputs)
    with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
        return (values if quick else formula.parts)(*inputs)


def _known(formula: type[Formula], ctx: Any) -> tuple[tuple, tuple]:
    """Inputs and parts, the first of which is ``None`` if it is unread."""
    saved = iter(ctx.saved_tensors)
    inputs = [next(saved) if x is None else x for x in ctx.constants]
    parts: tuple[Any, ...] = (None, *saved) if formula.unread else tuple(saved)
    first = formula.first(parts)
    return tuple(inputs) if first is None else (first, *inputs), parts


def _gradients(
    formula: type[Formula], inputs: tuple, parts: tuple, grad_outputs: tuple
) -> tuple[Tensor | None, ...]:
    """Gradients in the shapes of the inputs; differentiable if autograd builds a graph."""
    grads = grad_outputs[: formula.outputs]
    if all(g is None for g in grads):
        return (None,) * len(inputs)
    if not formula.closed:
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            parts = formula.parts(*inputs)
        given = zip(grads, parts, strict=False)
        grads = [torch.zeros_like(part) if g is None else g for g, part in given]
    made = formula.gradient(inputs, parts, *grads)
    made = (*made, *[None] * (len(inputs) - len(made)))
    return tuple(
        None if g is None else g if g.shape == x.shape else g.sum_to_size(x.shape)
        for g, x in zip(made, inputs, strict=True)
    )


def _directional(
    formula: type[Formula], inputs: tuple, parts: tuple, tangents: tuple
) -> tuple[Tensor, ...]:
    """Derivatives in a direction, as the transpose of the gradient, which is linear."""
    moved = [i for i, t in enumerate(tangents) if t is not None]

    def transposed(*grad_outputs: Tensor) -> tuple[Tensor, ...]:
        made = _gradients(formula, inputs, parts, grad_outputs)
        given = ((made[i], inputs[i]) for i in moved)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in given)

    if formula.unread:
        parts = formula.parts(*inputs)  # for the shape of the output
    zeros = [torch.zeros_like(part) for part in parts]
    push = torch.func.vjp(transposed, *zeros[: formula.outputs])[1]
    return (*push(tuple(tangents[i] for i in moved)), *zeros[formula.outputs :])


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
            same_shape = all(x.shape == tensors[0].shape for x in tensors)
            recorded = torch.is_grad_enabled()
            if recorded and any(x.requires_grad for x in tensors):
                return (
                    function.apply(space, c, *tensors) if same_shape else operation(space, *tensors)
                )
            with torch.no_grad() if recorded else _NOTHING:
                return formula.value(*tensors, c) if same_shape else formula.parts(*tensors, c)[0]

        return chosen

    return decorated


def without_graph(values: PairOperation) -> Callable[[PairOperation], PairOperation]:
    """Decorate an operation with two results, in place of which a function runs where it can.

    It runs where :func:`at_once` does, for tensors of one shape of which no graph is recorded, and
    not for a subclass, which may have other operations than those that it combines.

    Args:
        values: The results to the bit, of the tensors and the curvature.
    """

    def decorated(operation: PairOperation) -> PairOperation:
        @functools.wraps(operation)
        def chosen(space: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            is_own = vars(type(space)).get(operation.__name__) is chosen
            same_shape = all(x.shape == tensors[0].shape for x in tensors)
            if (
                torch.is_grad_enabled()
                or not (is_own and same_shape)
                or not _is_eager(space.c, tensors)
            ):
                return operation(space, *tensors)
            return values(*tensors, space.c)

        return chosen

    return decorated


def _is_eager(c: Tensor | float, tensors: tuple[Tensor, ...]) -> bool:
    first = tensors[0]
    dtype, dim = first.dtype, first.shape[-1:]
    for x in tensors:
        if not x.is_cpu or x.dtype != dtype or x.shape[-1:] != dim:
            return False
    return (
        dtype in FULL
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
