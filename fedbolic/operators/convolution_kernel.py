"""Convolutions with an axis of clients by the kernels for CUDA, and their derivatives."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap
from torch.nn import functional
from typing_extensions import override

from fedbolic import kernels
from fedbolic.formulas.registrar import takes_kernels
from fedbolic.operators.kernel_function import KernelFunction, by_kernel

KERNEL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def has_convolution_kernel(x: Tensor, weight: Tensor) -> bool:
    """True if convolutions of images are computed by a kernel, also under ``vmap``."""
    if not (takes_kernels() and kernels.run_on(x) and kernels.run_on(weight)):
        return False
    return weight.dtype == x.dtype in KERNEL_DTYPES or _casts(x, weight)


def kernel_convolution(
    x: Float[Tensor, "n inputs height width"],
    weight: Float[Tensor, "outputs inputs size size"],
    bias: Float[Tensor, " outputs"] | None,
    *,
    stride: int,
    padding: int,
) -> Float[Tensor, "n outputs _ _"]:
    """Convolution as one matrix product of all windows and all kernels, which stores no window.

    ``vmap`` over clients gives one launch for all of them. The result is in channels-last layout.
    Products of float32 are exact, unless torch's setting for matrix products allows TF32; half
    types are summed in float32, and autocast applies. First derivatives are kernels, too; higher
    ones are those of torch's operators.

    Args:
        x: Images.
        weight: Kernels.
        bias: One number for each output channel; ``None`` for zeros.
        stride: Step between two windows, at least 1.
        padding: Rows and columns of zeros on each side, at least 0.
    """
    given = [x, weight, *([] if bias is None else [bias.reshape(1, 1, 1, -1)])]
    if _casts(x, weight):
        dtype = torch.get_autocast_dtype(x.device.type)
        given = [t.to(dtype) for t in given]
    exact = torch.get_float32_matmul_precision() == "highest"
    return _convolution((stride, padding, "ieee" if exact else "tf32"), *given)


def _casts(*tensors: Tensor) -> bool:
    """True if autocast applies, which leaves float64 as it is."""
    on = torch.is_autocast_enabled(tensors[0].device.type)
    return on and all(t.dtype in KERNEL_DTYPES and t.dtype != torch.float64 for t in tensors)


class _Convolution(KernelFunction):
    """The convolution of :func:`kernel_convolution`."""

    @override
    @classmethod
    def values(cls, settings: Any, tensors: Sequence[Tensor], *, kept: bool) -> tuple[Tensor, ...]:
        from fedbolic.kernels.convolution import Windows, client_convolution

        del kept  # gradients read nothing but the arguments
        lead, (x, weight, *bias) = _one_axis(tensors)
        of_channels = bias[0].flatten(1) if bias else None
        y = client_convolution(x, weight, of_channels, Windows(*settings))
        return (y.reshape(*lead, *y.shape[1:]),)

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
        from fedbolic.kernels.convolution import Windows, image_gradients, weight_gradients

        lead, (x, weight, *_) = _one_axis(tensors)
        windows, flat = Windows(*settings), grad.reshape(lead.numel(), *grad.shape[-4:])
        by_x = image_gradients(flat, x, weight, windows) if needed[0] else None
        by_weight = weight_gradients(flat, x, weight, windows) if needed[1] else None
        by_bias = flat.sum((1, 3, 4)) if any(needed[2:]) else None
        made = [by_x, by_weight, None if by_bias is None else by_bias[:, None, None, None]]
        shaped = [None if g is None else g.reshape(*lead, *g.shape[1:]) for g in made]
        return tuple(shaped[: len(tensors)])

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        lead, (x, weight, *bias) = _one_axis(tensors)

        def alone(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            return functional.conv2d(x, weight, bias, settings[0], settings[1])

        y = vmap(alone)(x, weight, *(b.flatten(1) for b in bias))
        return y.reshape(*lead, *y.shape[1:])


def _one_axis(tensors: Sequence[Tensor]) -> tuple[torch.Size, list[Tensor]]:
    """The broadcast shape of the leading axes, and tensors with one axis in place of these."""
    lead = torch.broadcast_shapes(*(t.shape[:-4] for t in tensors))
    full = [t.expand(*lead, *t.shape[-4:]) for t in tensors]
    return lead, [t.reshape(lead.numel(), *t.shape[-4:]) for t in full]


_convolution = by_kernel(_Convolution)
