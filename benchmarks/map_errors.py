"""Errors of the exponential and the logarithm at points, of kernels and operators.

Called by ``benchmarks.kernel_errors``. Arguments are rounded once to the type; true values are the
textbook formulas in 60 digits, true derivatives their differences.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias
from unittest import mock

import torch
from mpmath import mp, mpf, workdps
from torch import Tensor

from benchmarks import truth
from benchmarks.error_table import row_error, table_of_models
from benchmarks.logit_errors import derivatives
from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare

NUM_POINTS, DIM = 6, 4

PointMap: TypeAlias = Literal["expmap", "logmap"]

POINT_MAPS: tuple[PointMap, ...] = ("expmap", "logmap")


class MapErrors(NamedTuple):
    """Largest errors of the result and of the gradients of a product with random numbers.

    That of a row is in units of its largest coordinate; that of the derivative by the curvature in
    units of the largest such product.
    """

    result: float
    first: float
    second: float
    curvature: float


def rows_of_map(
    kind: type[Lorentz | Poincare], name: PointMap, radius: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Points at a radius, tangents or points, and numbers to multiply the results with.

    Every other tangent is as short as 0.01 radii, and every other point as near to the first.
    """
    generator = torch.Generator().manual_seed(0)
    u, w, g = torch.randn(3, NUM_POINTS, DIM + 1, generator=generator, dtype=torch.float64)
    space = kind(1.0)
    if isinstance(space, Lorentz):
        u, w = space.lift(u[:, 1:]), space.lift(w[:, 1:])
    else:
        u, w, g = u[:, 1:] / 2, w[:, 1:] / 2, g[:, 1:]
    shares = torch.tensor([0.01, 1.0]).repeat(NUM_POINTS // 2).unsqueeze(-1)
    x = space.expmap0(radius * u / space.norm(torch.zeros_like(u), u).unsqueeze(-1))
    w = radius * shares * w / space.norm(torch.zeros_like(w), w).unsqueeze(-1)
    y = space.transp0(x, w)
    if name == "logmap":
        y = space.expmap(x, y)
    return x.to(dtype).requires_grad_(), y.to(dtype).requires_grad_(), g.to(dtype)


def true_row(
    kind: type[Lorentz | Poincare], name: PointMap, x: list, y: list, c: truth.Number
) -> list:
    """All coordinates of the map in 60 digits."""
    if kind is Poincare:
        ball = truth.Ball(1.0)
        ball.c, ball.root = c, mp.sqrt(c)
        return getattr(ball, name)(x, y)
    space = truth.Hyperboloid(1.0)
    space.c, space.root = c, mp.sqrt(c)
    made = getattr(space, name)(x[1:], y[1:])
    if name == "expmap":
        return [space.time(made), *made]
    return [truth.dot(x[1:], made) / space.time(x[1:]), *made]


def map_errors(
    kind: type[Lorentz | Poincare], name: PointMap, radius: float, dtype: torch.dtype
) -> list[MapErrors]:
    """Errors over all rows, of the operators and of the kernel in their place.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        name: Map at points.
        radius: Distance of the points from the origin, in units of length.
        dtype: Type of the rows.
    """
    x, y, g = rows_of_map(kind, name, radius, dtype)
    c = torch.tensor(1.0, dtype=dtype, requires_grad=True)
    with workdps(60):
        given = [[truth.exact(row.tolist()) for row in t] for t in (x, y, g)]
        made = [true_row(kind, name, p, r, mpf(1)) for p, r, _ in zip(*given, strict=True)]
        slopes = [
            derivatives(
                lambda p, r, c, w=w: truth.dot(w, true_row(kind, name, p, r, c[0])), p, r, [mpf(1)]
            )
            for p, r, w in zip(*given, strict=True)
        ]
        by_x, by_y, by_c = zip(*slopes, strict=True)
        largest = max(abs(slope) for (slope,) in by_c)
        errors = []
        for kernel in (False, True):
            with mock.patch.object(kernels, "replace_operators", return_value=kernel):
                found = getattr(kind(c), name)(x, y)
                *by_rows, curved = torch.autograd.grad((found * g).sum(), (x, y, c))
            worst = [
                max(row_error(a, b) for a, b in zip(rows, true, strict=True))
                for rows, true in zip((found, *by_rows), (made, by_x, by_y), strict=True)
            ]
            gap = abs(mpf(curved.item()) - sum(slope for (slope,) in by_c))
            errors.append(MapErrors(*(float(e) for e in (*worst, gap / largest))))
    return errors


def rows() -> Iterator[str]:
    """The table, a line at a time."""
    columns = "result", "by point", "by argument", "curvature"
    return table_of_models("maps", columns, POINT_MAPS, map_errors)
