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
        times = []
        for s in (x, y):
            size = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
            times.append((size, (size * size + 1 / c).sqrt()))
        (size, time), (other, far) = times
        radial = (size - other) * (size + other) / (time + far)  # difference of times
        apart = torch.linalg.vector_norm(x - y, dim=-1, keepdim=True)
        gap = (c / 2 * (apart - radial) * (apart + radial)).clamp(min=0)
        square = (1 + w).square() + 2 * w * gap
        scale = (1 + w) * square.rsqrt()
        return torch.addcmul(x, w, y) * scale, time, far, gap, square, scale

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, y, w, c), (made, time, far, gap, square, scale), (g,) = inputs, parts, grad_outputs
        by_log_scale = dot(g, made)
        by_gap = -w * by_log_scale / square
        scaled, share = g * scale, c * by_gap
        by_x = torch.addcmul(scaled, share * (far / time), x).addcmul(-share, y)
        by_y = torch.addcmul(w * scaled, share * (time / far), y).addcmul(-share, x)
        slope = 1 / (1 + w) - (1 + w + gap) / square
        by_w = dot(scaled, y) + by_log_scale * slope
        if not isinstance(c, Tensor):
            return by_x, by_y, by_w
        return by_x, by_y, by_w, by_gap * (1 + gap - (far / time + time / far) / 2) / c


_lorentz_sum = fused(_LorentzSum)


def lorentz_sum(
    x: Float[Tensor, "*batch n"],
    y: Float[Tensor, "*#batch n"],
    w: Float[Tensor, ""],
    c: Tensor | float,
) -> Float[Tensor, "*batch n"]:
    r"""Space coordinates of the sum of two points of the hyperboloid with the weights 1 and ``w``.

    .. math:: x \oplus w y = (1 + w) \frac{x_s + w y_s}{\sqrt{(1 + w)^2 + 2 w \gamma}}, \quad
        \gamma = \cosh(\sqrt c \, d(x, y)) - 1

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
