"""Dropout by the kernel for CUDA, which stores no mask: its gradient draws the coins again."""

from typing import Any

import torch
from torch import Tensor

from fedbolic import kernels
from fedbolic.formulas.registrar import takes_kernels


def has_dropout_kernel(x: Tensor) -> bool:
    """True if elements are dropped by a kernel, also under ``vmap``.

    The kernel reads elements in the order of their indices; torch's operators keep other orders.
    """
    full = x.dtype in (torch.float32, torch.float64)
    return takes_kernels() and full and kernels.run_on(x) and x.is_contiguous()


def kernel_dropout(x: Tensor, seed: Tensor, *, least: int, factor: float) -> Tensor:
    """Elements times a factor or 0, differentiable any number of times.

    Args:
        x: Elements in float32 or float64; the leading axes are those of ``seed``.
        seed: Seeds of the coins, 64-bit integers.
        least: Coin from which an element is kept, below ``2**32``.
        factor: Factor of the elements that are kept.
    """
    return _Dropout.apply(x, seed, least, factor)


class _Dropout(torch.autograd.Function):
    """The product with a mask, which is its own gradient."""

    @staticmethod
    def forward(x: Tensor, seed: Tensor, least: int, factor: float) -> Tensor:
        from fedbolic.kernels.dropout import masked

        return masked(x, seed, least=least, factor=factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, seed, ctx.least, ctx.factor = inputs
        ctx.save_for_backward(seed)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (seed,) = ctx.saved_tensors
        return _Dropout.apply(grad_outputs[0], seed, ctx.least, ctx.factor), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[Tensor, int]:
        x, seed = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(inputs[:2], in_dims[:2], strict=True)
        )
        return _Dropout.apply(x, seed, *inputs[2:]), 0
