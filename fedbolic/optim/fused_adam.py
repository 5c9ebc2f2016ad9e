"""Adam's step in flat space in one pass over memory: by the kernel for CUDA, or by torch's."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from fedbolic import kernels
from fedbolic.formulas.registrar import takes_kernels


class AdamNumbers(NamedTuple):
    """Numbers of Adam that do not change.

    Args:
        beta1: Decay rate of the mean gradient, in [0, 1).
        beta2: Decay rate of the mean squared gradient, in [0, 1).
        eps: Number added to the root in the denominator, above 0.
        weight_decay: Weight decay, 0 or more.
    """

    beta1: float
    beta2: float
    eps: float
    weight_decay: float


class AdamLists(NamedTuple):
    """Parameters and their moments, in one order.

    Args:
        points: Parameters.
        mean: Mean gradients.
        square: Mean squared gradients.
    """

    points: list[Tensor]
    mean: list[Tensor]
    square: list[Tensor]


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
    return bool(tensors) and full and (not mapped or _has_adam_kernel(given, gradients, lr))


def fused_adam(
    given: AdamLists,
    gradients: list[Tensor],
    step: Tensor,
    *,
    lr: float | Tensor,
    numbers: AdamNumbers,
    donate: bool,
) -> AdamLists:
    """Parameters and moments after a step.

    Torch's kernel takes a few launches for all tensors, but a tensor for each parameter of each
    client, because clients count their steps apart. Ours takes one for a parameter of all clients.

    Args:
        given: Parameters and moments, whose leading axes are those of ``step``.
        gradients: Gradients, in the same order.
        step: Numbers of steps, this one included.
        lr: Step size, 0 or more.
        numbers: Numbers of Adam.
        donate: Whether the results are written over ``given``, but under ``vmap``.
    """
    rows = list(zip(given.points, gradients, given.mean, given.square, strict=True))
    if any(is_functorch_wrapped_tensor(x) for row in rows for x in row):
        results = [_Step.apply(*row, step, lr, numbers) for row in rows]
    elif step.ndim and _has_adam_kernel(given, gradients, lr):
        results = [_updated(*row, step, lr, numbers, donate=donate) for row in rows]
    else:
        return _by_torch(given, gradients, step, lr, numbers, donate=donate)
    return AdamLists(*map(list, zip(*results, strict=True)))


def _has_adam_kernel(given: AdamLists, gradients: list[Tensor], lr: float | Tensor) -> bool:
    """True if the kernel takes the tensors; a number for ``lr`` needs no launch."""
    if not (takes_kernels() and isinstance(lr, float | int)):
        return False
    rows = zip(given.points, gradients, given.mean, given.square, strict=True)
    same_dtype = all(len({x.dtype for x in row}) == 1 for row in rows)
    derived = any(g.requires_grad for g in gradients)
    return same_dtype and not derived and all(map(kernels.run_on, (*given.points, *gradients)))


def _updated(
    x: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    step: Tensor,
    lr: float | Tensor,
    numbers: AdamNumbers,
    *,
    donate: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from fedbolic.kernels.adam import adam_update

    rate = float(lr)  # never a tensor here, whose value the host would wait for
    return adam_update(x, grad, mean, square, step, lr=rate, **numbers._asdict(), donate=donate)


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
        tensors = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(inputs[:5], in_dims[:5], strict=True)
        ]
        return _Step.apply(*tensors, *inputs[5:]), (0, 0, 0)


def _by_torch(
    given: AdamLists,
    gradients: list[Tensor],
    step: Tensor,
    lr: float | Tensor,
    numbers: AdamNumbers,
    *,
    donate: bool,
) -> AdamLists:
    gradients = [_lying_as(x, g) for x, g in zip(given.points, gradients, strict=True)]
    if not donate:
        given = AdamLists(*([x.clone() for x in tensors] for tensors in given))

    def rows(tensors: list[Tensor]) -> list[Tensor]:
        return [row for x in tensors for row in (x.unbind() if step.ndim else [x])]

    torch._fused_adam_(  # type: ignore[attr-defined]  # the public adam() counts per row
        *map(rows, (given.points, gradients, given.mean, given.square)),
        [],
        list(step.float().reshape(-1).unbind()) * len(given.points),
        lr=lr,
        **numbers._asdict(),
        amsgrad=False,
        maximize=False,
    )
    return given


def _lying_as(like: Tensor, x: Tensor) -> Tensor:
    """``x`` itself if it has the strides of ``like``, otherwise a copy with these strides.

    Torch's fused kernel ignores strides.
    """
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)
