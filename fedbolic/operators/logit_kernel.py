"""Logits of hyperplanes by the kernels for CUDA, and their derivatives."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic import kernels
from fedbolic.formulas.analytic import asinhc, sinhc
from fedbolic.formulas.numerics import HYPERBOLOID_RADIUS, LONGEST_STEP
from fedbolic.formulas.registrar import takes_kernels
from fedbolic.operators.kernel_function import KernelFunction, by_kernel


def has_logit_kernel(x: Tensor, weight: Tensor) -> bool:
    """True if the logits of points are computed by a kernel, also under ``vmap``.

    Products in half types and in TF32 are torch's.
    """
    if not (takes_kernels() and kernels.run_on(x) and kernels.run_on(weight)):
        return False
    full = x.dtype == weight.dtype and x.dtype in (torch.float32, torch.float64)
    exact = torch.get_float32_matmul_precision() == "highest"
    return full and exact and not torch.is_autocast_enabled(x.device.type)


def kernel_logits(
    x: Float[Tensor, "*batch n"],
    weight: Float[Tensor, "m dim"],
    offset: Float[Tensor, " m"] | None,
    c: Tensor | float,
    *,
    factor: float,
    hyperboloid: bool,
) -> Float[Tensor, "*batch m"]:
    """Signed distances to hyperplanes, times a number and the norms of the rows of ``weight``.

    They are differentiable any number of times. First derivatives are kernels, too, besides matrix
    products; higher ones are those of torch's operators.

    Args:
        x: Time and space coordinates of points, in float32 or float64.
        weight: Directions of the hyperplanes at the origin, of the same dtype.
        offset: Signed distances of the hyperplanes from the origin; ``None`` for 0.
        c: Minus the sectional curvature, 0 or more.
        factor: The number.
        hyperboloid: True if time coordinates are in units of length, False if in radii.
    """
    c = c.to(x.dtype) if isinstance(c, Tensor) else x.new_full((), c)
    offset = weight.new_zeros(len(weight)) if offset is None else offset
    flat = x.reshape(-1, x.shape[-1])
    logits = _logits((factor, hyperboloid), flat, weight, offset.unsqueeze(0), c.reshape(1, 1))
    return logits.reshape(*x.shape[:-1], len(weight))


class _Logits(KernelFunction):
    """The matrix of logits of :func:`kernel_logits`."""

    @override
    @classmethod
    def values(cls, settings: Any, tensors: Sequence[Tensor], *, kept: bool) -> tuple[Tensor, ...]:
        from fedbolic.kernels.logits import plane_logits
        from fedbolic.kernels.normals import plane_normals

        (factor, hyperboloid), (x, weight, offset, c) = settings, tensors
        normals, lengths = plane_normals(weight, offset, c, hyperboloid=hyperboloid)
        made = plane_logits(x, normals, lengths, c, factor=factor, kept=kept)
        if not kept:
            return made
        lead = made[0].shape[:-2]
        return (*made, *(t.expand(*lead, *t.shape[-2:]) for t in (normals, lengths)))

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
        from fedbolic.kernels.logits import plane_gradients
        from fedbolic.kernels.normals import normal_gradients

        factor, hyperboloid = settings
        (x, weight, offset, c), (products, normals, lengths) = tensors, kept
        by = plane_gradients(grad, products, lengths, c, factor=factor, curved=needed[-1])
        by_x = by.products @ normals if needed[0] else None
        if not any(needed[1:]):
            return by_x, None, None, None
        by_planes = normal_gradients(
            by.products.mT @ x, by.lengths, weight, offset, c, lengths, hyperboloid=hyperboloid
        )
        by_c = None if by.curvature is None else by.curvature + by_planes.curvature
        return by_x, by_planes.weight, by_planes.offset, by_c

    @override
    @staticmethod
    def operators(settings: Any, *tensors: Tensor) -> Tensor:
        (factor, hyperboloid), (x, weight, offset, c) = settings, tensors
        limit = LONGEST_STEP[x.dtype] ** 0.5 / c**0.5
        a = offset.clamp(-limit, limit)
        sinh = a * sinhc(a * a, c)
        length = (weight * weight).sum(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny).sqrt()
        first = -(c**0.5) * sinh if hyperboloid else -sinh
        space = (c * sinh * sinh + 1).sqrt().mT * (weight / length)
        t = x @ torch.cat((first.mT.expand(*space.shape[:-1], 1), space), -1).mT
        limit = (HYPERBOLOID_RADIUS[t.dtype] / c) ** 0.5
        t = t.clamp(-limit, limit)
        return factor * length.mT * t * asinhc(t * t, c)


_logits = by_kernel(_Logits)
