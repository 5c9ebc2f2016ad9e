"""Errors of the logits of hyperplanes and of their gradients, of kernels and operators.

Called by ``benchmarks.kernel_errors``. Points and parameters are rounded once to the type; true
values are the published formulas in 60 digits, true derivatives their differences.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from mpmath import mp, mpf, workdps
from torch import Tensor

from benchmarks import truth
from benchmarks.error_table import RADII, table_row
from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import LorentzMLR, PoincareMLR

NUM_POINTS, DIM, CLASSES = 12, 4, 12

HEADS = {Lorentz: LorentzMLR, Poincare: PoincareMLR}


class LogitErrors(NamedTuple):
    """Largest errors of logits and of the gradients of their sum.

    That of a logit is in units of its row's norm, or of its difference as the point moves by its
    own size, if that is larger: near a hyperplane, far points have ill-conditioned logits. That
    of a gradient in units of the largest sum of the absolute derivatives of logits, and by the
    curvature in units of the sum of the absolute logits over the curvature.
    """

    logit: float
    points: float
    weight: float
    bias: float
    curvature: float


def true_logit(
    kind: type[Lorentz | Poincare], x: list, z: list, a: truth.Number, c: truth.Number
) -> truth.Number:
    """The logit of Bdeir et al. (hyperboloid) or of Shimizu et al. (ball)."""
    root, size = mp.sqrt(c), truth.length(z)
    cosh, sinh = mp.cosh(root * a), mp.sinh(root * a)
    if kind is Lorentz:
        return size / root * mp.asinh(root * (cosh * truth.dot(x[1:], z) / size - sinh * x[0]))
    factor = 2 / (1 - c * truth.dot(x, x))
    across = factor * root * truth.dot(x, z) / size * cosh
    return 2 * size / root * mp.asinh(across - (factor - 1) * sinh)


def derivatives(function: Callable[..., truth.Number], *given: list) -> list[list]:
    """Central differences of a function of lists, by every number."""
    step = mpf(10) ** -20
    made = []
    for which, numbers in enumerate(given):
        slopes = []
        for k, number in enumerate(numbers):
            ends = []
            for sign in (1, -1):
                moved = [*numbers[:k], number + sign * step, *numbers[k + 1 :]]
                ends.append(function(*given[:which], moved, *given[which + 1 :]))
            slopes.append((ends[0] - ends[1]) / (2 * step))
        made.append(slopes)
    return made


def head_and_points(
    kind: type[Lorentz | Poincare], radius: float, dtype: torch.dtype
) -> tuple[Any, Tensor]:
    """A head with random hyperplanes, and points at a radius."""
    generator = torch.Generator().manual_seed(0)
    double = torch.float64
    u = torch.randn(NUM_POINTS, DIM, generator=generator, dtype=double)
    u = u / u.norm(dim=-1, keepdim=True) * (radius / 2 if kind is Poincare else radius)
    space = kind(1.0)
    x = space.expmap0(space.lift(u) if isinstance(space, Lorentz) else u)
    head = HEADS[kind](DIM, CLASSES, dtype=dtype)
    with torch.no_grad():
        for value in head.parameters():
            value.copy_(torch.randn(value.shape, generator=generator, dtype=double))
    return head, x.to(dtype).requires_grad_()


def logit_errors(
    kind: type[Lorentz | Poincare], radius: float, dtype: torch.dtype, *, kernel: bool
) -> LogitErrors:
    """Errors of the logits of all points and hyperplanes, of the kernel or of the operators.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        radius: Distance of the points from the origin, in units of length.
        dtype: Type of the points and parameters.
        kernel: True for the kernel, False for the operators in its place.
    """
    head, x = head_and_points(kind, radius, dtype)
    c = torch.tensor(1.0, dtype=dtype, requires_grad=True)
    on = mock.patch.object(kernels, "run_on", return_value=kernel)
    with on, mock.patch.object(type(head), "c", c), workdps(60):
        logits = head(x)
        found = torch.autograd.grad(logits.sum(), (x, head.weight, head.bias, c))
        points, rows = ([truth.exact(row) for row in t.tolist()] for t in (x, head.weight))
        offsets = truth.exact(head.bias.tolist())
        worst, total, slopes = [], mpf(0), {}
        for i, p in enumerate(points):
            for k, z in enumerate(rows):
                one = p, z, [offsets[k]], [mpf(1)]
                value = true_logit(kind, p, z, offsets[k], mpf(1))
                total += abs(value)
                slopes[i, k] = derivatives(
                    lambda x, z, a, c: true_logit(kind, x, z, a[0], c[0]), *one
                )
                error = abs(mpf(logits[i, k].item()) - value)
                reach = sum(abs(a * b) for a, b in zip(p, slopes[i, k][0], strict=True))
                worst.append(error / max(reach, truth.length(z)))
        gradients = _gradient_errors([t.tolist() for t in found], slopes, total)
    return LogitErrors(float(max(worst)), *gradients)


def _gradient_errors(found: list, slopes: dict, total: truth.Number) -> list[float]:
    """Errors of the gradients with respect to points, weights, offsets and the curvature."""
    rows = [lambda i, k: i, lambda i, k: k, lambda i, k: k, lambda i, k: 0]
    found = [found[0], found[1], [[b] for b in found[2]], [[found[3]]]]
    errors = []
    for which, row_of in enumerate(rows):
        true, unit = {}, {}
        for pair, made in slopes.items():
            for column, slope in enumerate(made[which]):
                place = row_of(*pair), column
                true[place] = true.get(place, mpf(0)) + slope
                unit[place] = unit.get(place, mpf(0)) + abs(slope)
        worst = max(abs(mpf(found[which][r][k]) - value) for (r, k), value in true.items())
        errors.append(float(worst / (total if which == 3 else max(unit.values()))))
    return errors


def rows() -> Iterator[str]:
    """The table, a line at a time."""
    names = " | ".join(f"{what}: operators, kernel" for what in LogitErrors._fields)
    yield f"| logits | dtype | radius | {names} |"
    yield "|---" * (3 + len(LogitErrors._fields)) + "|"
    for kind, head in HEADS.items():
        for dtype in (torch.float32, torch.float64):
            for radius in RADII:
                both = [logit_errors(kind, radius, dtype, kernel=k) for k in (False, True)]
                yield table_row(head.__name__, dtype, radius, both)
