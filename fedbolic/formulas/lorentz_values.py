"""Operations of the hyperboloid in few operators, in the bits of their formulas.

They take eager tensors on the CPU without a graph, and a curvature that is a number. An operator on
a small tensor takes a microsecond, twice that with a Python number, and one on a large tensor takes
twice as long in new memory: so few of either are left. Points far out are those of the formulas.
"""

import functools

import torch
from torch import Tensor

from fedbolic.formulas.analytic import asinh
from fedbolic.formulas.lorentz_formulas import longest, point_within, time_within
from fedbolic.formulas.numerics import LONGEST_STEP, POLAR_FROM, dot, operand, times

SMALL_TENSOR = 4096
"""Most numbers of a tensor of which ``where`` takes less time than arithmetic."""

MODERATE = 1e10
"""Largest length of a point whose tangents to others have finite squares."""


def quick_hyperboloid_dist(x: Tensor, y: Tensor, c: float) -> tuple[Tensor, ...] | None:
    """The distances and what gradients read, ``None`` where points are far out."""
    first, second = _read(x, c), _read(y, c)
    if first is None or second is None:
        return None
    q, across, root, lean, *_ = _gap(*first, *second, c)
    one, t = operand(1.0, x.dtype), times(c, q)
    cosh = (t + one).sqrt_()
    length = torch.addcdiv(times(c**0.5, q.sqrt()), t, cosh + one).log1p_()
    length.mul_(operand(2 / c**0.5, x.dtype))
    return length.squeeze(-1), *first, *second, cosh, q, across, root, lean


def quick_hyperboloid_dist_gradient(c: float, parts: tuple, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by points of one shape, from the parts and those by the distances."""
    s, a, t, b, cosh, q, across, root, lean = parts
    r = q.clamp_min(torch.finfo(q.dtype).tiny).sqrt_()
    half = (g / r.mul_(cosh)).mul_(operand(0.5, q.dtype))
    double, step, made = q * operand(2.0, q.dtype), lean * root, []
    products = torch.empty_like(across)
    for x, time, share in ((s, a, root / a), (t, b, (root / b).neg_())):
        whole = x.new_empty(*x.shape[:-1], x.shape[-1] + 1)
        whole[..., :1].zero_()
        v = torch.mul(share, across, out=whole[..., 1:])
        ahead = torch.addcdiv(double, step, time, value=1 if x is s else -1)
        slope = times(c, time.pow(-2)).mul_(ahead - dot(x, v, out=products))
        v.addcmul_(slope, x).mul_(half)
        made.append(whole)
    return made[0], made[1]


def quick_hyperboloid_logmap(x: Tensor, y: Tensor, c: float) -> Tensor | None:
    """The tangents at ``x`` towards ``y``, ``None`` where points are far out."""
    first, second = _read(x, c), _read(y, c)
    if first is None or second is None:
        return None
    (s, a), (t, b) = first, second
    q, v, *_, other = _gap(s, a, t, b, c)
    info, one = torch.finfo(q.dtype), operand(1.0, q.dtype)
    sinh = times(c, q).clamp(info.tiny, info.max).sqrt_()  # of half the length, as the cosh
    square = sinh * sinh
    cosh = (square + one).sqrt_()
    product = sinh * cosh
    ratio = torch.addcdiv(sinh, square, cosh.add_(one)).log1p_().div_(product)
    tangent = torch.empty_like(x)
    torch.sub(t, s, out=v).mul_(ratio)
    u = torch.addcmul(v, q.mul_(operand(-2 * c, q.dtype)).mul_(ratio), s, out=tangent[..., 1:])
    return _with_time(tangent, dot(torch.div(s, a, out=other), u, out=other), c)


def quick_hyperboloid_transp(x: Tensor, y: Tensor, v: Tensor, c: float) -> Tensor | None:
    """Tangents at ``x`` transported to ``y``, ``None`` where points are far out."""
    first, second = _read(x, c), _read(y, c)
    if first is None or second is None:
        return None
    (s, a), (t, b), v = first, second, v[..., 1:]
    q, toward, *_, grown, other = _gap(s, a, t, b, c)
    later = grown.div_(a + b)  # of y less that of x, negated as the sum of ``Gap`` is
    torch.addcmul(
        torch.sub(t, s, out=toward),
        torch.div(s, a, out=other),
        times(c, later),
        out=toward,
    )
    below = q.mul_(operand(2.0, q.dtype)).add_(operand(2 / c, q.dtype))
    push = dot(toward, v, out=toward).div_(below)
    moved = torch.addcmul(v, push, torch.add(s, t, out=other), out=toward)
    tangent, largest = torch.empty_like(x), (torch.finfo(q.dtype).max / s.shape[-1]) ** 0.5
    u = torch.clamp(moved, -largest, largest, out=tangent[..., 1:])
    return _with_time(tangent, dot(torch.div(t, b, out=other), u, out=other), c)


def quick_hyperboloid_expmap(x: Tensor, u: Tensor, c: float) -> Tensor | None:
    """The exponential of tangents, ``None`` where points are far out."""
    read = _read(x, c)
    if read is None:
        return None
    (s, a), u, info = read, u[..., 1:], torch.finfo(x.dtype)
    normal = s / a
    across = normal * u
    along = across.sum(-1, keepdim=True)
    torch.addcmul(u, times(c, along), normal, value=-1, out=across)
    slant = along.div_(a)
    q = dot(across, across, out=across).add_(times(c, slant).mul_(slant)).clamp_(max=info.max)
    half = times(c, q).clamp(info.tiny, info.max).sqrt_().mul_(operand(0.5, x.dtype))
    sinh = half.clamp(max=LONGEST_STEP[x.dtype] ** 0.5 / 2).sinh_()
    square = sinh * sinh
    ratio = sinh.mul_((square + operand(1.0, x.dtype)).sqrt_()).div_(half)
    cosh1 = square.mul_(operand(2.0, x.dtype))
    end = torch.addcmul(s, cosh1, s, out=across).addcmul_(ratio, u)
    return point_within(end, c, s.dtype, out=end)


def quick_hyperboloid_logmap0(y: Tensor, c: float) -> Tensor | None:
    """The tangents at the origin towards points, ``None`` where these are far out."""
    read = _read(y, c)
    if read is None:
        return None
    s, tangent = read[0], torch.empty_like(y)
    v, info = tangent[..., 1:], torch.finfo(y.dtype)
    q = dot(s, s, out=v)
    tangent[..., :1].zero_()
    sinh = times(c, q).clamp(info.tiny, info.max).sqrt_()
    torch.mul(asinh(sinh).div_(sinh), s, out=v)
    return tangent


def _read(p: Tensor, c: float) -> tuple[Tensor, Tensor] | None:
    """Space coordinates and the time coordinate in radii, ``None`` if a point is far out."""
    s = p[..., 1:]
    time = time_within(s, c, _moderate(c, p.dtype))
    return None if time is None else (s, time)


@functools.lru_cache(256)
def _moderate(c: float, dtype: torch.dtype) -> float:
    """Length of space coordinates below which no formula takes another form."""
    return min(0.99 * POLAR_FROM[dtype] / c**0.5, MODERATE, longest(c, dtype))


def _gap(
    s: Tensor, a: Tensor, t: Tensor, b: Tensor, c: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The parts of ``Gap``, the product of difference and sum, and memory as long as points."""
    gap, total, root = s - t, s + t, (a * b).sqrt_()
    grown = torch.mul(gap, total, out=total).sum(-1, keepdim=True)
    lean = grown / (a + b).mul_(root)
    turn, first = times(c, lean), a < b
    across = gap.mul_(torch.minimum(a, b).div_(root))
    if gap.numel() <= SMALL_TENSOR:
        across.addcmul_(turn, torch.where(first, s, t), value=-1)
    else:
        by_x = turn * first
        across.addcmul_(by_x, s, value=-1).addcmul_(turn - by_x, t, value=-1)
    square = torch.mul(across, across, out=total).sum(-1, keepdim=True)
    q = square.addcmul_(turn, lean).mul_(operand(0.25, s.dtype))
    return q, across, root, lean, grown, total


def _with_time(tangent: Tensor, along: Tensor, c: float) -> Tensor:
    tangent[..., :1].copy_(times(c**0.5, along))
    return tangent
