"""Errors of the kernels, and of the operators that they replace, against 60 digits.

    TRITON_INTERPRET=1 python -m benchmarks.kernel_errors

Called by ``benchmarks.kernels``. Points are given rounded once to the type. A distance is compared
with the true one; a gradient by the Riemannian length of its error, where the true one has 1.
"""

import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias
from unittest import mock

import torch
from mpmath import mp, mpf, workdps
from torch import Tensor

from benchmarks import (
    convolution_errors,
    logit_errors,
    map_errors,
    radial_errors,
    set_errors,
    truth,
)
from benchmarks.error_table import RADII, table_row
from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare

NUM_POINTS, DIM = 6, 5

Kernel: TypeAlias = Literal["cdist", "dist"] | None

KERNELS: tuple[Kernel, ...] = (None, "cdist", "dist")


class PairErrors(NamedTuple):
    """Largest errors of distances, of their gradients and of derivatives by the curvature.

    The last is in units of the distances summed over the curvature.
    """

    distance: float
    gradient: float
    curvature: float


def pairs_at(
    kind: type[Lorentz | Poincare], radius: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Points at a radius, and as many others, of which half are 0.01 radii away from the first."""
    generator = torch.Generator().manual_seed(0)
    space = kind(1.0)
    double = torch.float64
    u = torch.randn(2, NUM_POINTS, DIM, generator=generator, dtype=double)
    u = u / u.norm(dim=-1, keepdim=True) * (radius / 2 if kind is Poincare else radius)
    near = u[0] + torch.randn(u[0].shape, generator=generator, dtype=double) * (0.01 * radius)
    u[1, ::2] = near[::2]
    x, y = space.expmap0(space.lift(u) if isinstance(space, Lorentz) else u)
    return x.to(dtype), y.to(dtype)


def true_gradient(kind: type[Lorentz | Poincare], c: float, x: list, y: list) -> tuple[list, list]:
    """The gradient of the distance in 60 digits, and the weights of its length: see ``size``."""
    root, k = mp.sqrt(mpf(c)), mpf(c)
    s = truth.combine(mpf(1), x, mpf(-1), y)
    if kind is Lorentz:
        space = truth.Hyperboloid(c)
        sinh = mp.sinh(root * space.dist(x, y))
        by_x = truth.combine(space.time(y) / space.time(x), x, mpf(-1), y)
        return [root / sinh * a for a in by_x], [mpf(1), k]
    space = truth.Ball(c)
    sinh = mp.sinh(root * space.dist(x, y))
    gap_x, gap_y = 1 - k * truth.dot(x, x), 1 - k * truth.dot(y, y)
    by_x = truth.combine(4 / (gap_x * gap_y), s, 4 * k * truth.dot(s, s) / (gap_x**2 * gap_y), x)
    return [root / sinh * a for a in by_x], [gap_x**2 / 4, mpf(0)]


def size(weights: list, x: list, covector: list) -> truth.Number:
    """The Riemannian length of a covector at ``x``."""
    across, along = weights
    square = across * truth.dot(covector, covector) + along * truth.dot(x, covector) ** 2
    return mp.sqrt(square)


def slope(kind: type[Lorentz | Poincare], c: float, x: list, y: list) -> truth.Number:
    """The derivative of the distance by the curvature, as a difference in 60 digits."""
    space = truth.Hyperboloid if kind is Lorentz else truth.Ball
    step = mpf(c) * mpf(10) ** -15
    there = [space(mpf(c) + sign * step).dist(x, y) for sign in (1, -1)]
    return (there[0] - there[1]) / (2 * step)


def pair_errors(
    kind: type[Lorentz | Poincare],
    radius: float,
    dtype: torch.dtype,
    *,
    kernel: Kernel,
) -> PairErrors:
    """Largest errors over all pairs, of a kernel or of the operators in its place.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        radius: Distance of the points from the origin, in units of length.
        dtype: Type of the points.
        kernel: ``cdist`` for the kernel of pairs, ``dist`` for that of rows; ``None`` for the
            operators of ``dist``.
    """
    x, y = pairs_at(kind, radius, dtype)
    x.requires_grad_()
    c = torch.tensor(1.0, dtype=dtype, requires_grad=True)
    first, numbers = int(kind is Lorentz), torch.arange(NUM_POINTS)
    on = mock.patch.object(kernels, "replace_operators", return_value=kernel is not None)
    mode = "auto" if kernel == "cdist" else "broadcast"
    with on, workdps(60):
        found = kind(c).cdist(x, y, mode=mode)
        given, others = ([truth.exact(p[first:]) for p in t.tolist()] for t in (x, y))
        errors = []
        for shift in range(NUM_POINTS):
            paired = (numbers + shift) % NUM_POINTS
            some = found[numbers, paired]
            by_x, by_c = torch.autograd.grad(some.sum(), (x, c), retain_graph=True)
            pairs = [(given[i], others[j]) for i, j in zip(numbers, paired, strict=True)]
            errors.append(
                _errors(kind, pairs, some.tolist(), by_x[:, first:].tolist(), by_c.item())
            )
    return PairErrors(*(max(float(e) for e in column) for column in zip(*errors, strict=True)))


def _errors(
    kind: type[Lorentz | Poincare], pairs: list, found: list, by_x: list, by_c: float
) -> tuple:
    """Errors of one distance per point, at curvature 1."""
    space = truth.Hyperboloid(1.0) if kind is Lorentz else truth.Ball(1.0)
    true = [space.dist(x, y) for x, y in pairs]
    distance = max(abs(mpf(f) - t) / t for f, t in zip(found, true, strict=True))
    gradient = mpf(0)
    for (x, y), covector in zip(pairs, by_x, strict=True):
        vector, weights = true_gradient(kind, 1.0, x, y)
        rest = truth.combine(mpf(1), truth.exact(covector), mpf(-1), vector)
        gradient = max(gradient, size(weights, x, rest))
    slopes = sum((slope(kind, 1.0, x, y) for x, y in pairs), mpf(0))
    return distance, gradient, abs(mpf(by_c) - slopes) / sum(true)


def rows() -> Iterator[str]:
    """The table, a line at a time."""
    yield (
        "| distances | dtype | radius | "
        + " | ".join(f"{what}: operators, cdist, dist" for what in PairErrors._fields)
        + " |"
    )
    yield "|---" * 6 + "|"
    for kind in (Lorentz, Poincare):
        for dtype in (torch.float32, torch.float64):
            for radius in RADII:
                every = [pair_errors(kind, radius, dtype, kernel=k) for k in KERNELS]
                yield table_row(kind.__name__, dtype, radius, every)


def main() -> None:
    """Print the errors of every kernel."""
    modules = radial_errors, map_errors, set_errors, logit_errors, convolution_errors
    tables = rows(), *(module.rows() for module in modules)
    for line in itertools.chain.from_iterable((*table, "") for table in tables):
        print(line, flush=True)


if __name__ == "__main__":
    main()
