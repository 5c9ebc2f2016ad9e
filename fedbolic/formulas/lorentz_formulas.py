r"""Parts of the operations of the hyperboloid, with derivatives in closed form.

Points are given by their space coordinates ``x`` and their time coordinate ``a`` in radii,
:math:`a = \sqrt{1 + c |x|^2}`. The time coordinate is an input only because it is known: gradients
are those of functions of ``x`` and ``c``, and :math:`\partial a / \partial x = c x / a`.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.analytic import gap_length
from fedbolic.formulas.fused import Formula, fused, is_nowhere, spare
from fedbolic.formulas.numerics import (
    HYPERBOLOID_RADIUS,
    HYPERBOLOID_SQUARE,
    POLAR_FROM,
    crossed,
    dot,
    operand,
    per_matrix,
    per_point,
    saturate,
    times,
)
from fedbolic.formulas.registrar import with_kernel


def time_within(s: Tensor, c: float, limit: float) -> Tensor | None:
    """Time coordinates in radii, ``None`` if some space coordinates are longer than a limit."""
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    if not length.max().item() <= limit:
        return None
    return times(c, length).mul_(length).add_(operand(1.0, s.dtype)).sqrt_()


def quick_hyperboloid_read(s: Tensor, c: Tensor | float, dtype: torch.dtype) -> tuple[Any, ...]:
    """The parts of :class:`Read`; points in range are not copied, and have no factors."""
    if not isinstance(c, Tensor):
        time = time_within(s, c, longest(c, dtype))
        if time is not None:
            return s, time, None
    return Read.parts(s, c, dtype)


def quick_hyperboloid_point(s: Tensor, c: Tensor | float, dtype: torch.dtype) -> tuple[Any, ...]:
    """The parts of :class:`Point`; those in range have no factors."""
    if not isinstance(c, Tensor):
        point, rounding = point_within(s, c, dtype), longest_coordinate(s.shape[-1], s.dtype)[1]
        if point is not None:
            return point, None if rounding == 1 else s.new_full((), rounding)
    return Point.parts(s, c, dtype)


def point_within(
    s: Tensor, c: float, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor | None:
    """Points in range, else ``None``; ``out`` may be overwritten by the space coordinates."""
    largest, rounding = longest_coordinate(s.shape[-1], s.dtype)
    s = s if rounding == 1 else torch.mul(s, rounding, out=out)
    time = time_within(s, c, min(longest(c, dtype), largest))
    return None if time is None else torch.cat((time if c == 1 else time.div_(c**0.5), s), -1)


@functools.cache
def longest_coordinate(dim: int, dtype: torch.dtype) -> tuple[float, float]:
    """Largest coordinate for which ``Point`` needs no clamp, and the factor 1 after rounding."""
    largest = (torch.finfo(dtype).max / dim) ** 0.5
    return largest, (largest / torch.full((), largest, dtype=dtype)).item()


class Read(Formula):
    """The function :data:`hyperboloid_read`."""

    outputs = 2

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        s, c, dtype = inputs
        factor, length = _clamp(s, c, dtype)
        return s * factor, (c * length * length + 1).sqrt(), factor

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (_, c, _), (s, time, factor), (by_out, by_time) = inputs, parts, grad_outputs
        slope = by_time / time
        by_s = torch.addcmul(by_out, s, slope * c) * factor.detach()
        return by_s, slope * dot(s, s) / 2 if isinstance(c, Tensor) else None


hyperboloid_read = fused(Read, quick_hyperboloid_read)
"""Clamped space coordinates, and the time coordinate in radii.

Takes space coordinates, the curvature and the dtype whose range bounds them. The factor of points
beyond this range is a constant in derivatives.
"""


class Point(Formula):
    """The function :data:`hyperboloid_point_of`."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        s, c, dtype = inputs
        largest = (torch.finfo(s.dtype).max / s.shape[-1]) ** 0.5
        # a first factor, for vectors whose squared norm overflows
        longest = torch.linalg.vector_norm(s, float("inf"), dim=-1, keepdim=True)
        first_factor = largest / longest.clamp(min=largest)
        s = s * first_factor.detach()
        factor, length = _clamp(s, c, dtype)
        s, time = s * factor, (c * length * length + 1).sqrt()
        return torch.cat((time / c**0.5, s), -1), factor * first_factor

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (_, c, _), (point, factor), (by_point,) = inputs, parts, grad_outputs
        first, s = point[..., :1], point[..., 1:]
        slope = by_point[..., :1] / first
        by_s = torch.addcmul(by_point[..., 1:], s, slope) * factor.detach()
        return by_s, -0.5 * slope / (c * c) if isinstance(c, Tensor) else None


hyperboloid_point_of = fused(Point, quick_hyperboloid_point)
"""Points with the given space coordinates, as those of :data:`hyperboloid_read` of any length."""


class Gap(Formula):
    """The function :data:`hyperboloid_gap`."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        x, a, y, b, c = inputs
        gap, total, root = x - y, x + y, (a * b).sqrt()
        lean = torch.mul(gap, total, out=spare(total)).sum(-1, keepdim=True) / ((a + b) * root)
        turn = c * lean
        across = torch.mul(torch.minimum(a, b) / root, gap, out=spare(gap))
        # only the point nearer to the origin counts, which avoids overflow
        if gap.device.type == "cpu":  # ``where`` of points takes longer there than all the rest
            by_x = turn * (a < b)
            across = torch.addcmul(across, by_x, x, value=-1, out=spare(across))
            across = torch.addcmul(across, turn - by_x, y, value=-1, out=spare(across))
        else:
            across = torch.addcmul(across, turn, torch.where(a < b, x, y), value=-1)
        square = torch.mul(across, across, out=spare(total)).sum(-1, keepdim=True)
        q = torch.addcmul(square, turn, lean) / 4
        return q, across, root, lean

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, a, y, b, c), (q, across, root, lean), (g,) = inputs, parts, grad_outputs
        half, double, step = g / 2, 2 * q, lean * root
        by_x, by_y = root / a * across, root / -b * across
        by_x = _with_radial(by_x, double + step / a, x, a, c, half, out=spare(by_x))
        by_y = _with_radial(by_y, double - step / b, y, b, c, half, out=spare(by_y))
        by_c = lean * lean * g / -4 if isinstance(c, Tensor) else None
        return by_x, None, by_y, None, by_c


hyperboloid_gap = fused(Gap)
r"""The squared sinh of half the distance in radii, divided by ``c``.

.. math:: q = \frac 1 4 \Bigl| \sqrt{\tfrac b a} x - \sqrt{\tfrac a b} y \Bigr|^2 + \frac c 4 l^2,
    \quad l = \frac{(x - y) \cdot (x + y)}{(a + b) \sqrt{a b}}

.. math:: \frac{\partial q}{\partial x} = \frac 1 2 \Bigl(\frac b a x - y\Bigr), \quad
    x \cdot \frac{\partial q}{\partial x} = q + \frac l 2 \sqrt{\frac b a}, \quad
    \frac{\partial q}{\partial c} = -\frac{l^2} 4
"""


def hyperboloid_pairs(x: Tensor, y: Tensor, c: Tensor | float) -> Tensor:
    """All distances by the gap; a curvature that is a tensor has one value per matrix."""
    c = per_matrix(c, x)
    known = *hyperboloid_read(x[..., 1:], c, x.dtype), *hyperboloid_read(y[..., 1:], c, y.dtype)
    return _of_pairs(*known, c)


# the kernel's gradients by the points include those by time coordinates, which follow from these
@with_kernel("pairs.pair_dist", axes=2, implied=(1, 3), hyperboloid=True)
def _of_pairs(x: Tensor, a: Tensor, y: Tensor, b: Tensor, c: Tensor | float) -> Tensor:
    (x, y), (a, b), c = crossed(x, y), crossed(a, b), per_point(c, x)
    return gap_length(hyperboloid_gap(x, a, y, b, c), c).squeeze(-1)


class FarGap(Formula):
    """The function :data:`hyperboloid_far_gap`."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        x, a, y, b, c = inputs
        q, across, root, lean = known = Gap.parts(*inputs)
        far = torch.minimum(a, b) > POLAR_FROM[q.dtype]
        if is_nowhere(far):  # most of the time is that of the other form
            return known
        # both branches must be finite everywhere: a NaN in the unused one would reach the gradient
        x, y = torch.where(far, x, 1.0), torch.where(far, y, 1.0)
        s, t = (torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (x, y))
        gap, to_x, to_y = x - y, x / s, y / t
        # a difference of points of unequal lengths would round the shorter one
        by_x = reject(torch.where(s > 2 * t, -y, gap), to_x)
        by_y = reject(torch.where(t > 2 * s, -x, -gap), to_y)
        first = s <= t
        shorter, longer = torch.minimum(s, t), torch.maximum(s, t)
        side = torch.where(first, by_x, by_y)
        toward = torch.where(first, dot(to_x, y), dot(to_y, x))
        sharp = dot(side, side) / (2 * (longer + toward.abs()))
        turned = torch.where(toward > 0, sharp, (longer - toward) / 2)
        radial = dot(gap, x + y) / (s + t)
        straight = radial * radial / (2 * (a * b + c * s * t + 1))
        by_x = torch.where(far, by_x, root / a * across)
        by_y = torch.where(far, by_y, root / -b * across)
        return torch.where(far, straight + shorter * turned, q), by_x, by_y, root, lean

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        if len(parts) == 4:
            return Gap.gradient(inputs, parts, *grad_outputs)
        (x, a, y, b, c), (q, by_x, by_y, root, lean), (g,) = inputs, parts, grad_outputs
        half, double, step = g / 2, 2 * q, lean * root
        by_x = _with_radial(by_x, double + step / a, x, a, c, half)
        by_y = _with_radial(by_y, double - step / b, y, b, c, half)
        by_c = lean * lean * g / -4 if isinstance(c, Tensor) else None
        return by_x, None, by_y, None, by_c


hyperboloid_far_gap = fused(FarGap)
r"""The gap of :data:`hyperboloid_gap`, right to rounding also where both points are far out.

There it is taken from polar coordinates, with the lengths :math:`s, t` of ``x`` and ``y`` and the
angle :math:`\theta` between them, whose sine is the length of one point's part across the other:

.. math:: q = \frac{(s - t)^2}{2 (a b + c s t + 1)} + s t \sin^2 \frac \theta 2
"""


class TangentSquare(Formula):
    """The function :data:`tangent_square`."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        s, time, u, c = inputs
        normal = s / time
        along = dot(normal, u)
        across, slant = torch.addcmul(u, c * along, normal, value=-1), along / time
        q = dot(across, across) + c * slant * slant
        return q.clamp(max=torch.finfo(q.dtype).max), across, slant

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (s, time, _, c), (_, across, slant), (g,) = inputs, parts, grad_outputs
        by_u = _with_radial(across, slant, s, time, c, 2 * g)
        by_c = -g * slant * slant if isinstance(c, Tensor) else None
        return by_u * (slant * -c), None, by_u, by_c


tangent_square = fused(TangentSquare)
r"""The squared length of the tangent with the space coordinates ``u`` at a point.

.. math:: q = |w|^2 + c \Bigl(\frac k a\Bigr)^2, \quad k = \frac{x \cdot u} a, \quad
    w = u - c k \frac x a

.. math:: \frac{\partial q}{\partial u} = 2 w, \quad
    \frac{\partial q}{\partial x} = - \frac{2 c k} a w, \quad
    \frac{\partial q}{\partial c} = -\Bigl(\frac k a\Bigr)^2
"""


class Tangent(Formula):
    """The function :data:`tangent_at`."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        s, time, u, c = inputs
        normal, u = s / time, saturate(u)
        along = dot(normal, u)
        u = u.expand(*along.shape[:-1], u.shape[-1])
        return torch.cat((c**0.5 * along, u), -1), normal, along

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (s, time, u, c), (_, normal, along), (g,) = inputs, parts, grad_outputs
        first = c**0.5 * g[..., :1]
        by_u = torch.addcmul(g[..., 1:], first, normal)
        across = torch.addcmul(u, c * along, normal, value=-1)
        by_s = _with_radial(across, along / time, s, time, c, first / time, out=spare(across))
        by_c = first * along / (2 * c * time * time) if isinstance(c, Tensor) else None
        return by_s, None, by_u, by_c


tangent_at = fused(Tangent)
"""The tangent with the space coordinates ``u`` at a point."""


class MinkowskiProduct(Formula):
    """The function :data:`minkowski_product`."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        x, a, y, b, v, c = inputs
        gap, total = y - x, x + y
        later = dot(gap, total) / (a + b)
        toward = torch.addcmul(gap, x / a, c * later, value=-1)
        return dot(toward, v), toward, later, total

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (x, a, y, b, v, c), (_, toward, later, _), (g,) = inputs, parts, grad_outputs
        first, by_v = g * dot(x, v), g * v
        slope = c * first / (a * b)
        by_y = torch.addcmul(by_v, y, slope, value=-1)
        ratio = b / a
        by_x = (slope * ratio * x - by_v) * ratio
        by_c = first * later * (a + b) / (-2 * a.pow(3) * b) if isinstance(c, Tensor) else None
        return by_x, None, by_y, None, g * toward, by_c


minkowski_product = fused(MinkowskiProduct)
r"""The product :math:`\langle y, v \rangle` of a point and a tangent at the point ``x``.

.. math:: \Bigl(y - \frac b a x\Bigr) \cdot v, \quad
    \frac{\partial}{\partial y} = v - \frac{c \, x \cdot v}{a b} y, \quad
    \frac{\partial}{\partial x} = \frac b a \Bigl(\frac{c \, x \cdot v}{a^2} x - v\Bigr)
"""


def _with_radial(
    v: Tensor,
    radial: Tensor,
    x: Tensor,
    a: Tensor,
    c: Tensor | float,
    factor: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    r"""A factor times a covector at the point ``x`` whose product with ``x`` is ``radial``.

    The component along ``x`` of a small covector is a difference of terms :math:`a^2` times as
    large, and the metric weights its error by :math:`a`. The covector

    .. math:: v + \frac{c}{a^2} (\rho - x \cdot v) \, x

    is ``v`` but for rounding, and the error of its component is smaller by :math:`a^2`.
    """
    made = torch.addcmul(v, c * a.pow(-2) * (radial - dot(x, v)), x, out=out)
    return torch.mul(factor, made, out=spare(made, factor))


def reject(v: Tensor, direction: Tensor) -> Tensor:
    """The part of ``v`` across a unit vector, projected twice: the first time leaves rounding."""
    for _ in range(2):
        v = torch.addcmul(v, dot(v, direction), direction, value=-1)
    return v


def _clamp(s: Tensor, c: Tensor | float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The factor that clamps vectors to the range of a dtype, and their lengths after it."""
    info = torch.finfo(s.dtype)
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    length = length.clamp(info.tiny**0.5, info.max**0.5)
    if isinstance(c, Tensor):
        # detached, as the forward derivative of ``minimum`` subtracts those of its arguments
        limit = (HYPERBOLOID_RADIUS[dtype] / c.detach()).sqrt()
        within = torch.minimum(length, limit.clamp(max=HYPERBOLOID_SQUARE[dtype] ** 0.5))
    else:
        within = length.clamp(max=longest(c, dtype))
    return (within / length).detach(), within


def longest(c: float, dtype: torch.dtype) -> float:
    """Largest length of space coordinates in the range of a dtype."""
    most = HYPERBOLOID_SQUARE[dtype] ** 0.5
    return min(most, (HYPERBOLOID_RADIUS[dtype] / c) ** 0.5) if c else most
