"""Operations of the hyperboloid: distances, exponentials and logarithms."""

import torch
from torch import Tensor
from torch.nn import functional

from fedbolic.formulas.analytic import (
    asinhc,
    gap_length,
    length_over_sinh,
    radial_asinh,
    radial_sinh,
)
from fedbolic.formulas.lorentz_formulas import (
    cosh_and_sinhc,
    hyperboloid_far_gap,
    hyperboloid_gap,
    hyperboloid_point_of,
    hyperboloid_read,
    reject,
    tangent_at,
    tangent_square,
)
from fedbolic.formulas.numerics import POLAR_TIME, dot
from fedbolic.formulas.registrar import points, with_kernel


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
