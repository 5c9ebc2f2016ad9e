"""Centroids of points with weights from Lorentz products: what attention computes."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import pad, scaled_dot_product_attention
from typing_extensions import override

from fedbolic.formulas.fused import Formula, fused, is_traced
from fedbolic.formulas.numerics import dot, without_casts
from fedbolic.manifolds import Lorentz


class _Centroid(Formula):
    """Space coordinates of a weighted mean of points over its Minkowski length in radii."""

    unread = True

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        mean, c = inputs
        time, s = mean[..., :1], mean[..., 1:]
        size = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
        scale = (c * (time - size) * (time + size)).clamp(min=1).rsqrt()
        return s * scale, scale

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (mean, c), (_, scale), (g,) = inputs, parts, grad_outputs
        time, s = mean[..., :1], mean[..., 1:]
        by_log = dot(g, s) * scale * (scale < 1)
        bend = c * by_log * scale * scale
        by_mean = torch.cat((-bend * time, torch.addcmul(g * scale, s, bend)), -1)
        return by_mean, by_log / (-2 * c) if isinstance(c, Tensor) else None


_centroid = fused(_Centroid)


def attended(
    space: Lorentz,
    query: Float[Tensor, "*batch n ambient"],
    key: Float[Tensor, "*batch m ambient"],
    value: Float[Tensor, "*batch m ambient"],
    *,
    scale: Tensor | float,
    mask: Bool[Tensor, "*#batch n m"] | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, "*batch n dim"]:
    r"""Space coordinates of centroids with weights from Lorentz products of queries and keys.

    .. math:: y_i = \frac{m_i}{\sqrt c \, \sqrt{-\langle m_i, m_i \rangle}}, \quad
        m_i = \sum_j w_{ij} v_j, \quad
        w_{ij} \propto \exp (2 \lambda \langle q_i, k_j \rangle)

    A Lorentz product is a dot product with one sign changed, so torch's kernels of attention give
    the :math:`m_i`. A softmax does not see the constant by which products and squared Lorentzian
    distances differ.

    Args:
        space: The hyperboloid of all points.
        query: Points in float32 or float64.
        key: One point per value.
        value: Points.
        scale: The scale :math:`\lambda` of squared Lorentzian distances.
        mask: True where a query may attend to a key; the centroid of none is the origin.
        dropout: Function of all weights; ``None`` for the identity.
    """
    dim = query.shape[-1] - 1
    with without_casts(query.device):
        signs = pad(query.new_ones(dim), (1, 0), value=-1.0)
        mean = _means(query * (2 * scale * signs), key, value, mask, dropout)
    return _centroid(mean, space.c)


def _means(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """Means of values by torch's kernels, or by products where these have no derivatives."""
    given = query, key, value
    if dropout is None and torch.compiler.is_compiling():
        return _by_kernel(*given, mask)
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if dropout is not None or transformed or is_traced(*given):
        return _by_products(*given, mask, dropout)
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return _Means.apply(*given, mask)
    return _by_kernel(*given, mask)


def _by_kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)


def _by_products(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    scores = query @ key.mT
    if mask is None:
        weights = scores.softmax(-1)
    else:  # finite scores and a second mask: a query without keys has weights 0, not NaN
        least = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~mask, least).softmax(-1).masked_fill(~mask, 0)
    return (weights if dropout is None else dropout(weights)) @ value


_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _Means(torch.autograd.Function):
    """Means by torch's kernels, of which some have no second derivatives: products give these.

    On the CPU the logarithms of the sums of weights are kept; elsewhere the kernel runs again.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        query, key, value, mask = inputs
        ctx.flash = (
            query.device.type == "cpu"
            and query.ndim == 4
            and query.shape[:2] == key.shape[:2] == value.shape[:2]  # which it reads unchecked
            and query.numel() > 0 < key.numel()
        )
        if not ctx.flash:
            ctx.save_for_backward(*inputs)
            return _by_kernel(query, key, value, mask)
        made = _FLASH(query, key, value, attn_mask=_added_mask(mask, query), scale=1.0)
        ctx.save_for_backward(*inputs, *made)
        return made[0]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        second, mapped = torch.is_grad_enabled(), torch._C._are_functorch_transforms_active()
        query, key, value, mask, *made = ctx.saved_tensors  # once, as checkpoints want it
        saved = query, key, value
        if ctx.flash and not (second or mapped):
            options = {"attn_mask": _added_mask(mask, query), "scale": 1.0}
            return *_FLASH_BACKWARD(grad_outputs[0], *saved, *made, 0.0, False, **options), None
        with torch.enable_grad():
            # separate tensors, should one be given twice
            given = [x.view_as(x) if second else x.detach().requires_grad_() for x in saved]
            query, key, value = given
            means = (_by_products if second or mapped else _by_kernel)(query, key, value, mask)
        return *torch.autograd.grad(means, given, grad_outputs, create_graph=second), None


def _added_mask(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """The mask as numbers that are added to scores."""
    if mask is None:
        return None
    return torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, -torch.inf)
