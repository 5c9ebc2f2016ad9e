"""Errors of the exponential and the logarithm at the origin, of kernels and operators.

Called by ``benchmarks.kernel_errors``. Arguments are rounded once to the type; true values are the
textbook formulas in 60 digits, true derivatives their differences.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias
from unittest import mock

import torch
from mpmath import mp, mpf, workdps
from torch import Tensor

from benchmarks import truth
from benchmarks.error_table import row_error, table_of_models
from benchmarks.logit_errors import derivatives
from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare

NUM_POINTS, DIM = 5, 4

Map: TypeAlias = Literal["expmap0", "logmap0"]

MAPS: tuple[Map, ...] = ("expmap0", "logmap0")


class RadialErrors(NamedTuple):
    """Largest errors of the result and of the gradients of a product with random numbers.

    That of a row is in units of its largest coordinate; that of the derivative by the curvature in
    units of the largest such product.
    """

    result: float
    gradient: float
    curvature: float


def arguments(
    kind: type[Lorentz | Poincare], name: Map, radius: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Tangents or points at a radius, and numbers to multiply the results with."""
    generator = torch.Generator().manual_seed(0)
    u, g = torch.randn(2, NUM_POINTS, DIM + 1, generator=generator, dtype=torch.float64)
    u = u[:, 1:] / u[:, 1:].norm(dim=-1, keepdim=True)
    space = kind(1.0)
    u = space.lift(radius * u) if isinstance(space, Lorentz) else radius / 2 * u
    x = u if name == "expmap0" else space.expmap0(u)
    return x.to(dtype).requires_grad_(), g[:, -x.shape[-1] :].to(dtype)


def true_map(kind: type[Lorentz | Poincare], name: Map) -> Callable[[list, truth.Number], list]:
    """The map of all coordinates in 60 digits, as a function of a row and the curvature."""

    def hyperboloid(x: list, c: truth.Number) -> list:
        space = truth.Hyperboloid(1.0)
        space.c, space.root = c, mp.sqrt(c)
        made = getattr(space, name)(x[1:])
        return [space.time(made) if name == "expmap0" else mpf(0), *made]

    def ball(x: list, c: truth.Number) -> list:
        space = truth.Ball(1.0)
        space.c, space.root = c, mp.sqrt(c)
        return getattr(space, name)(x)

    return hyperboloid if kind is Lorentz else ball


def radial_errors(
    kind: type[Lorentz | Poincare], name: Map, radius: float, dtype: torch.dtype, *, kernel: bool
) -> RadialErrors:
    """Errors over all rows, of the kernel or of the operators in its place.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        name: Map at the origin.
        radius: Distance of the points from the origin, in units of length.
        dtype: Type of the rows.
        kernel: True for the kernel, False for the operators.
    """
    x, g = arguments(kind, name, radius, dtype)
    c = torch.tensor(1.0, dtype=dtype, requires_grad=True)
    with mock.patch.object(kernels, "replace_operators", return_value=kernel), workdps(60):
        found = getattr(kind(c), name)(x)
        by_x, by_c = torch.autograd.grad((found * g).sum(), (x, c))
        exact = true_map(kind, name)
        errors, slopes = [], []
        for row, weights, value, gradient in zip(x, g, found, by_x, strict=True):
            p, w = truth.exact(row.tolist()), truth.exact(weights.tolist())
            slope, (by_curvature,) = derivatives(
                lambda p, c, w=w: truth.dot(w, exact(p, c[0])), p, [mpf(1)]
            )
            slopes.append(by_curvature)
            errors.append((row_error(value, exact(p, mpf(1))), row_error(gradient, slope)))
        curvature = abs(mpf(by_c.item()) - sum(slopes)) / max(abs(s) for s in slopes)
    largest, steepest = (float(max(of_rows)) for of_rows in zip(*errors, strict=True))
    return RadialErrors(largest, steepest, float(curvature))


def rows() -> Iterator[str]:
    """The table, a line at a time."""

    def both(*cell: Any) -> list[RadialErrors]:
        return [radial_errors(*cell, kernel=kernel) for kernel in (False, True)]

    return table_of_models("maps", RadialErrors._fields, MAPS, both)
