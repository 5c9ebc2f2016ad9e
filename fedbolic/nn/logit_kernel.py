"""Logits of hyperplanes by the kernels for CUDA, and their derivatives."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic import kernels
from fedbolic.manifolds.analytic import asinhc
from fedbolic.manifolds.kernel_function import KernelFunction, by_kernel, takes_kernels
from fedbolic.manifolds.numerics import HYPERBOLOID_RADIUS


def has_logit_kernel(x: Tensor, normals: Tensor) -> bool:
    """True if the logits of points are computed by a kernel, also under ``vmap``.

    Products in half types and in TF32 are torch's.
    """
    if not (takes_kernels() and kernels.run_on(x) and kernels.run_on(normals)):
        return False
    full = x.dtype == normals.dtype and x.dtype in (torch.float32, torch.float64)
    exact = torch.get_float32_matmul_precision() == "highest"
    return full and exact and not torch.is_autocast_enabled(x.device.type)


def kernel_logits(
    x: Float[Tensor, "*batch n"],
    normals: Float[Tensor, "m n"],
    scale: Float[Tensor, " m"],
    c: Tensor | float,
) -> Float[Tensor, "*batch m"]:
    """``scale * asinh_ratio(x @ normals.T, c)``, differentiable any number of times.

    First derivatives are kernels, too, besides matrix products; higher ones are those of torch's
    operators.

    Args:
        x: Time and space coordinates of points, in float32 or float64.
        normals: Normals of the hyperplanes in the same coordinates and dtype.
        scale: Factors of the distances.
        c: Minus the sectional curvature, 0 or more.
    """
    c = c.to(x.dtype) if isinstance(c, Tensor) else x.new_full((), c)
    flat = x.reshape(-1, x.shape[-1])
    logits = _logits(None, flat, normals, scale.unsqueeze(0), c.reshape(1, 1))
    return logits.reshape(*x.shape[:-1], len(normals))


class _Logits(KernelFunction):
    """The matrix of logits of :func:`kernel_logits`."""

    @override
    @staticmethod
    def values(settings: None, tensors: Sequence[Tensor], *, kept: bool) -> tuple[Tensor, ...]:
        from fedbolic.kernels.logits import plane_logits

        return plane_logits(*tensors, kept=kept)

    @override
    @staticmethod
    def gradients(
        settings: None,
        grad: Tensor,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needed: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:
        from fedbolic.kernels.logits import plane_gradients

        (x, normals, scale, c), (products,) = tensors, kept
        by = plane_gradients(grad, products, scale, c, curved=needed[-1])
        by_x = by.products @ normals if needed[0] else None
        by_normals = by.products.mT @ x if needed[1] else None
        return by_x, by_normals, by.scale, by.curvature

    @override
    @staticmethod
    def operators(settings: None, *tensors: Tensor) -> Tensor:
        x, normals, scale, c = tensors
        t = x @ normals.mT
        limit = (HYPERBOLOID_RADIUS[t.dtype] / c) ** 0.5
        t = t.clamp(-limit, limit)
        return scale * t * asinhc(t * t, c)


_logits = by_kernel(_Logits)
