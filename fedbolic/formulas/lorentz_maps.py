"""Operations of the hyperboloid: distances, exponentials and logarithms."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedbolic.formulas import lorentz_values
from fedbolic.formulas.analytic import (
    SINH,
    GapLength,
    LengthOverSinh,
    RadialAsinh,
    RadialSinh,
    asinhc,
    gap_length,
    length_over_sinh,
    radial_asinh,
    radial_sinh,
    sinhc,
)
from fedbolic.formulas.fused import Formula, fused, is_traced
from fedbolic.formulas.lorentz_formulas import (
    FarGap,
    Gap,
    MinkowskiProduct,
    Tangent,
    TangentSquare,
    hyperboloid_far_gap,
    hyperboloid_gap,
    hyperboloid_point_of,
    hyperboloid_read,
    minkowski_product,
    quick_hyperboloid_point,
    quick_hyperboloid_read,
    reject,
    tangent_at,
    tangent_square,
)
from fedbolic.formulas.numerics import LONGEST_STEP, POLAR_TIME, dot, finite, times
from fedbolic.formulas.registrar import points, with_kernel


class Shoot(Formula):
    """The function :data:`cosh_and_sinhc`."""

    outputs = 2

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple[Tensor, ...]:
        q, c = inputs
        info = torch.finfo(q.dtype)
        half = (c * q).clamp(info.tiny, info.max).sqrt() / 2
        sinh = half.clamp(max=LONGEST_STEP[q.dtype] ** 0.5 / 2).sinh()
        square = sinh * sinh
        if torch.is_grad_enabled():  # its second derivative needs the series
            return 2 * square, sinhc(q, c)
        return 2 * square, sinh * (square + 1).sqrt() / half

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (q, c), (_, ratio), (by_cosh, by_ratio) = inputs, parts, grad_outputs
        along = ratio * (by_cosh / 2) * (c * q < LONGEST_STEP[q.dtype])
        ratio_by_q, ratio_by_c = SINH.gradients(q, c, ratio)
        by_q = torch.addcmul(c * along, by_ratio, ratio_by_q)
        if ratio_by_c is None:
            return by_q, None
        return by_q, torch.addcmul(q * along, by_ratio, ratio_by_c)


cosh_and_sinhc = fused(Shoot)
"""``cosh(l) - 1`` and ``sinh(l) / l`` of the length ``l = sqrt(c q)`` in radii, clamped."""


@with_kernel("rows.row_dist", takes=points(2), hyperboloid=True)
def hyperboloid_dist(x: Tensor, y: Tensor, c: Tensor | float) -> Tensor:
    """Distances, of shape ``(..., 1)``; here and below ``c`` has an axis for the coordinates."""
    known = *hyperboloid_read(x[..., 1:], c, x.dtype), *hyperboloid_read(y[..., 1:], c, y.dtype)
    return gap_length(hyperboloid_far_gap(*known, c), c)


@with_kernel("maps.row_map", takes=points(2), hyperboloid=True, outward=True)
def hyperboloid_expmap(x: Tensor, u: Tensor, c: Tensor | float) -> Tensor:
    """The exponential of tangents at points."""
    (s, time), u = hyperboloid_read(x[..., 1:], c, x.dtype), u[..., 1:]
    cosh1, ratio = cosh_and_sinhc(tangent_square(s, time, u, c), c)
    end = torch.addcmul(torch.addcmul(s, cosh1, s), ratio, u)
    return hyperboloid_point_of(end, c, end.dtype)


@with_kernel("radial.radial_map", takes=points(), hyperboloid=True, outward=True)
def hyperboloid_expmap0(u: Tensor, c: Tensor | float) -> Tensor:
    """The exponential of tangents at the origin."""
    return hyperboloid_point_of(radial_sinh(u[..., 1:], c), c, u.dtype)


@with_kernel("radial.radial_map", takes=points(), hyperboloid=True, outward=False)
def hyperboloid_logmap0(y: Tensor, c: Tensor | float) -> Tensor:
    """The tangents at the origin towards points."""
    return functional.pad(radial_asinh(hyperboloid_read(y[..., 1:], c, y.dtype)[0], c), (1, 0))


@with_kernel("maps.row_map", takes=points(2), hyperboloid=True, outward=False)
def hyperboloid_logmap(x: Tensor, y: Tensor, c: Tensor | float) -> Tensor:
    """The tangents at ``x`` towards ``y``."""
    (x, time_x), (y, time_y) = (hyperboloid_read(s[..., 1:], c, s.dtype) for s in (x, y))
    q = hyperboloid_gap(x, time_x, y, time_y, c)
    ratio = length_over_sinh(q, c)  # length over the sinh of the length
    return tangent_at(x, time_x, torch.addcmul(ratio * (y - x), -2 * c * q * ratio, x), c)


def hyperboloid_transp(x: Tensor, y: Tensor, v: Tensor, c: Tensor | float) -> Tensor:
    """Parallel transport of tangents from ``x`` to ``y``."""
    (x, time_x), (y, time_y) = (hyperboloid_read(s[..., 1:], c, s.dtype) for s in (x, y))
    q, v = hyperboloid_gap(x, time_x, y, time_y, c), v[..., 1:]
    push = minkowski_product(x, time_x, y, time_y, v, c) / (2 * q + 2 / c)
    return tangent_at(y, time_y, torch.addcmul(v, push, x + y), c)


def hyperboloid_log_at_origin(x: Tensor, y: Tensor, c: Tensor | float) -> Tensor:
    r"""Space coordinates of the tangent at ``x`` towards ``y`` after its transport to the origin.

    The logarithm at a point far out is as long as the time coordinate :math:`a` of the point, and
    the transport takes a difference of such numbers. So it is taken from polar coordinates there:
    with the lengths :math:`s, t` of ``x`` and ``y``, the angle :math:`\theta` between them, the
    unit vector :math:`e` of ``x`` and the distance :math:`r` in radii,

    .. math:: \frac{\sinh r} r v = y - \frac{1 + 2 c q + b}{1 + a} x
        = \Bigl(\frac{t^2 - s^2}{t a + b s} - 2 a t \sin^2 \frac \theta 2\Bigr) e
        + \bigl(y - (e \cdot y) e\bigr)
    """
    (x, a), (y, b) = (hyperboloid_read(s[..., 1:], c, s.dtype) for s in (x, y))
    q, gap = hyperboloid_far_gap(x, a, y, b, c), y - x
    grown = dot(gap, x + y)
    # both branches must be finite everywhere: a NaN in the unused one would reach the gradient
    far, turned = a > POLAR_TIME, torch.minimum(a, b) > POLAR_TIME
    near = gap - c / (1 + a) * (2 * q + grown / (a + b)) * torch.where(far, 0.0, x)
    far_x, far_y = torch.where(far, x, 1.0), torch.where(turned, y, 1.0)
    s, t = (torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (far_x, far_y))
    e = far_x / s
    toward = dot(e, y)
    # a difference of points of unequal lengths would round the shorter one
    across = reject(torch.where(s > 2 * t, y, gap), e)
    sharp = dot(across, across) / (2 * (t + toward.abs()))
    half = torch.where(toward > 0, sharp, (t - toward) / 2)
    along = torch.where(turned, grown / (t * a + b * s) - 2 * a * half, a * toward - b * s)
    toward_y = torch.where(far, torch.addcmul(across, along, e), near)
    # two factors: the derivative of length over sinh underflows 30 radii out in float32
    return asinhc(q, c) * (toward_y / (1 + c * q).sqrt())


def _by_point(point: Tensor, factor: Tensor | None, g: Tensor) -> Tensor:
    """The gradient by the coordinates that ``quick_hyperboloid_point`` was given."""
    by_s = torch.addcmul(g[..., 1:], point[..., 1:], g[..., :1] / point[..., :1])
    return by_s if factor is None else by_s * factor


def _whole(by_s: Any, factor: Tensor | None = None) -> Tensor:
    """The gradient by points from that by their clamped space coordinates."""
    return functional.pad(by_s if factor is None else by_s * factor, (1, 0))


class HyperboloidDist(Formula):
    """:func:`hyperboloid_dist` at once."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        quick = lorentz_values.quick_hyperboloid_dist(*inputs)
        if quick is not None:
            return quick
        x, y, c = inputs
        (s, a, factor_x), (t, b, factor_y) = (
            quick_hyperboloid_read(p[..., 1:], c, p.dtype) for p in (x, y)
        )
        gap = FarGap.parts(s, a, t, b, c)
        length, cosh = GapLength.parts(gap[0], c)
        return length.squeeze(-1), s, a, t, b, cosh, *gap, factor_x, factor_y

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        c, (s, a, t, b, cosh, *gap), g = inputs[-1], parts, grad_outputs[0].unsqueeze(-1)
        factors: Any = (None, None)
        if len(gap) > 4:
            *gap, factor_x, factor_y = gap
            factors = factor_x, factor_y
        elif not is_traced(g):
            return lorentz_values.quick_hyperboloid_dist_gradient(c, parts, g)
        by_q, _ = GapLength.gradient((gap[0], c), (None, cosh), g)
        by_s, _, by_t, *_ = FarGap.gradient((s, a, t, b, c), tuple(gap), by_q)
        return _whole(by_s, factors[0]), _whole(by_t, factors[1])


class HyperboloidExpmap(Formula):
    """:func:`hyperboloid_expmap` at once."""

    @override
    @classmethod
    def value(cls, *inputs: Any) -> Tensor:
        made = lorentz_values.quick_hyperboloid_expmap(*inputs)
        return super().value(*inputs) if made is None else made

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        x, u, c = inputs
        (s, a, factor), u = quick_hyperboloid_read(x[..., 1:], c, x.dtype), u[..., 1:]
        square = TangentSquare.parts(s, a, u, c)
        cosh1, ratio = Shoot.parts(square[0], c)
        end = torch.addcmul(torch.addcmul(s, cosh1, s), ratio, u)
        point, clamped = quick_hyperboloid_point(end, c, end.dtype)
        return point, point.detach(), clamped, s, a, factor, cosh1, ratio, *square

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (_, u, c), (point, clamped, s, a, factor, cosh1, ratio, *square) = inputs, parts
        u, by_end = u[..., 1:], _by_point(point, clamped, *grad_outputs)
        by_q, _ = Shoot.gradient((square[0], c), (cosh1, ratio), dot(by_end, s), dot(by_end, u))
        by_a, _, by_u, _ = TangentSquare.gradient((s, a, u, c), tuple(square), by_q)
        by_s = by_end + by_end * cosh1 + by_a
        return _whole(by_s, factor), _whole(by_end * ratio + by_u)


class HyperboloidExpmap0(Formula):
    """:func:`hyperboloid_expmap0` at once."""

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        u, c = inputs
        end, value, q = RadialSinh.parts(u[..., 1:], c)
        point, clamped = quick_hyperboloid_point(end, c, end.dtype)
        return point, point.detach(), clamped, value, q

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (u, c), (point, clamped, value, q) = inputs, parts
        by_end = _by_point(point, clamped, *grad_outputs)
        return (_whole(RadialSinh.gradient((u[..., 1:], c), (None, value, q), by_end)[0]),)


class HyperboloidLogmap0(Formula):
    """:func:`hyperboloid_logmap0` at once."""

    @override
    @classmethod
    def value(cls, *inputs: Any) -> Tensor:
        made = lorentz_values.quick_hyperboloid_logmap0(*inputs)
        return super().value(*inputs) if made is None else made

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        y, c = inputs
        s, _, factor = quick_hyperboloid_read(y[..., 1:], c, y.dtype)
        v, value, q = RadialAsinh.parts(s, c)
        return functional.pad(v, (1, 0)), s, factor, value, q

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        c, (s, factor, value, q) = inputs[-1], parts
        by_s = RadialAsinh.gradient((s, c), (None, value, q), grad_outputs[0][..., 1:])[0]
        return (_whole(by_s, factor),)


class HyperboloidLogmap(Formula):
    """:func:`hyperboloid_logmap` at once."""

    @override
    @classmethod
    def value(cls, *inputs: Any) -> Tensor:
        made = lorentz_values.quick_hyperboloid_logmap(*inputs)
        return super().value(*inputs) if made is None else made

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        x, y, c = inputs
        (s, a, factor_x), (t, b, factor_y) = (
            quick_hyperboloid_read(p[..., 1:], c, p.dtype) for p in (x, y)
        )
        gap = Gap.parts(s, a, t, b, c)
        (ratio,) = LengthOverSinh.parts(gap[0], c)
        twice = -2 * c * gap[0]
        v = torch.addcmul(ratio * (t - s), twice * ratio, s)
        tangent, *normal = Tangent.parts(s, a, v, c)
        return tangent, v, *normal, s, a, factor_x, t, b, factor_y, ratio, twice, *gap

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        c, (v, normal, along, s, a, factor_x, t, b, factor_y, ratio, twice, *gap) = (
            inputs[-1],
            parts,
        )
        by_s, _, by_v, _ = Tangent.gradient((s, a, v, c), (None, normal, along), *grad_outputs)
        by_w, by_gap = dot(by_v, s), by_v * ratio
        by_ratio = by_w * twice + dot(by_v, t - s)
        by_q = by_w * ratio * (-2 * c)
        by_q = by_q + LengthOverSinh.gradient((gap[0], c), (ratio,), by_ratio)[0]
        near, _, far, *_ = Gap.gradient((s, a, t, b, c), tuple(gap), by_q)
        by_s = by_s + by_v * (twice * ratio) - by_gap + near
        return _whole(by_s, factor_x), _whole(by_gap + far, factor_y)


class HyperboloidTransp(Formula):
    """:func:`hyperboloid_transp` at once."""

    @override
    @classmethod
    def value(cls, *inputs: Any) -> Tensor:
        made = lorentz_values.quick_hyperboloid_transp(*inputs)
        return super().value(*inputs) if made is None else made

    @override
    @staticmethod
    def parts(*inputs: Any) -> tuple:
        x, y, v, c = inputs
        (s, a, factor_x), (t, b, factor_y) = (
            quick_hyperboloid_read(p[..., 1:], c, p.dtype) for p in (x, y)
        )
        gap, v = Gap.parts(s, a, t, b, c), v[..., 1:]
        product, below = MinkowskiProduct.parts(s, a, t, b, v, c), 2 * gap[0] + 2 / c
        push, total = product[0] / below, product[3]
        moved = torch.addcmul(v, push, total)
        tangent, *normal = Tangent.parts(t, b, moved, c)
        known = s, a, factor_x, t, b, factor_y, below, push, total, moved
        return tangent, *known, *normal, *gap, *product

    @override
    @staticmethod
    def gradient(inputs: tuple, parts: tuple, *grad_outputs: Tensor) -> tuple:
        (_, _, v, c), (s, a, factor_x, t, b, factor_y) = inputs, parts[:6]
        (below, push, total, moved, normal, along), gap, product = (
            parts[6:12],
            parts[12:16],
            parts[16:],
        )
        by_t, _, by_moved, _ = Tangent.gradient(
            (t, b, moved, c), (None, normal, along), *grad_outputs
        )
        by_push, by_total = dot(by_moved, total), by_moved * push
        by_x, _, by_y, _, by_v, _ = MinkowskiProduct.gradient(
            (s, a, t, b, v[..., 1:], c), tuple(product), by_push / below
        )
        near, _, far, *_ = Gap.gradient((s, a, t, b, c), tuple(gap), -by_push * (push / below) * 2)
        by_x, by_y = by_total + by_x + near, by_t + by_total + by_y + far
        return _whole(by_x, factor_x), _whole(by_y, factor_y), _whole(by_moved + by_v)


def hyperboloid_expmap_transp(x: Tensor, u: Tensor, v: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """The ends of tangents ``u``, and tangents ``v`` moved along; of tensors of one shape."""
    y = HyperboloidExpmap.value(x, u, c)
    return y, HyperboloidTransp.value(x, y, v, c)


def hyperboloid_gradient(x: Tensor, g: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """Riemannian gradients and their squared lengths."""
    (s, a, _), first, g = quick_hyperboloid_read(x[..., 1:], c, x.dtype), g[..., :1], g[..., 1:]
    slope = times(c, dot(s, g)) + times(c**0.5, a) * first
    gradient, normal, along = Tangent.parts(s, a, slope.mul(s).add_(g), c)
    across, slant = gradient[..., 1:] - normal.mul_(times(c, along)), times(c**0.5, along) / a
    return gradient, finite(dot(across, across, across) + slant * slant).squeeze(-1)
