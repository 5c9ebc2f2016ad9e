"""The residual connection of a transformer: a sum of two points of the hyperboloid."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.fused import Formula, fused
from fedbolic.formulas.numerics import dot


class _LorentzSum(Formula):
    """``lorentz_sum`` in few passes, with its derivative in closed form."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        x, y, w, c = inputs
        info = torch.finfo(x.dtype)
        size, other = (
            torch.linalg.vector_norm(s, dim=-1, keepdim=True).clamp(
                info.tiny**0.5, (info.max / 8) ** 0.5
            )
            for s in (x, y)
        )
        time, far = ((of * of + 1 / c).sqrt() for of in (size, other))
        along, both = time * far, size * other
        radial = (size * size + other * other + 1 / c) / (along + both)  # of aligned points
        turn = torch.linalg.vector_norm(x / size - y / other, dim=-1, keepdim=True).square()
        cosh = radial + c / 2 * both * turn  # sums of positive numbers: nothing cancels
        square = 1 + w * w + 2 * w * cosh
        scale = (1 + w) * square.rsqrt()
        return torch.addcmul(x, w, y) * scale, time, far, cosh, square, scale

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, y, w, c), (made, time, far, cosh, square, scale), (g,) = inputs, parts, grad_outputs
        by_log_scale = dot(g, made)
        by_cosh = -w * by_log_scale / square
        scaled, share = g * scale, c * by_cosh
        by_x = torch.addcmul(scaled, share * (far / time), x).addcmul(-share, y)
        by_y = torch.addcmul(w * scaled, share * (time / far), y).addcmul(-share, x)
        slope = 1 / (1 + w) - (w + cosh) / square
        by_w = dot(scaled, y) + by_log_scale * slope
        if not isinstance(c, Tensor):
            return by_x, by_y, by_w
        return by_x, by_y, by_w, by_cosh * (cosh - (far / time + time / far) / 2) / c


_lorentz_sum = fused(_LorentzSum)


def lorentz_sum(
    x: Float[Tensor, "*batch n"],
    y: Float[Tensor, "*#batch n"],
    w: Float[Tensor, ""],
    c: Tensor | float,
) -> Float[Tensor, "*batch n"]:
    r"""Space coordinates of the sum of two points of the hyperboloid with the weights 1 and ``w``.

    .. math:: x \oplus w y = (1 + w) \frac{x_s + w y_s}{\sqrt{1 + 2 w \gamma + w^2}}, \quad
        \gamma = \cosh(\sqrt c \, d(x, y))

    The centroid of both points, its space coordinates scaled by :math:`1 + w`. In flat space it is
    ``x + w y``. The square root is the Minkowski length of the weighted sum, in radii.

    Args:
        x: Space coordinates in float32 or float64.
        y: Space coordinates of the other points.
        w: Weight of the other points, above 0.
        c: Minus the sectional curvature.

    References:
        He et al. (2024), arXiv:2412.14695, Eq. (8) and the scaling below it.
    """
    return _lorentz_sum(x, y, w, c)
