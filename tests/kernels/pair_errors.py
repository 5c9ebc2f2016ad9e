"""Errors of distances, of kernels and operators, against 60 digits.

Points are rounded once to the type. A distance is compared with the true one; a gradient by the
Riemannian length of its error, where the true one has 1.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias
from unittest import mock

import torch
from mpmath import mpf, workdps
from torch import Tensor

from benchmarks.geometry import truth
from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare
from tests.kernels.errors import Kind, derivatives, of_model, table

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


def pairs_at(kind: Kind, radius: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Points at a radius, and as many others, of which half are 0.01 radii away from the first."""
    generator, double = torch.Generator().manual_seed(0), torch.float64
    u = torch.randn(2, NUM_POINTS, DIM, generator=generator, dtype=double)
    u = of_model(kind, u / u.norm(dim=-1, keepdim=True) * radius)
    near = torch.randn(u.shape[1], DIM, generator=generator, dtype=double) * (0.01 * radius)
    near = torch.nn.functional.pad(near, (1, 0)) if kind is Lorentz else near
    u[1, ::2] = (u[0] + near)[::2]
    x, y = kind(1.0).expmap0(u)
    return x.to(dtype), y.to(dtype)


def size(kind: Kind, x: list, covector: list) -> truth.Number:
    """The Riemannian length of a covector at ``x``."""
    across, along = mpf(1), mpf(1)
    if kind is Poincare:
        across, along = (1 - truth.dot(x, x)) ** 2 / 4, mpf(0)
    square = across * truth.dot(covector, covector) + along * truth.dot(x, covector) ** 2
    return truth.mp.sqrt(square)


def pair_errors(kind: Kind, radius: float, dtype: torch.dtype, *, kernel: Kernel) -> PairErrors:
    """Largest errors over all pairs, of a kernel or of the operators in its place."""
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
            gradients = by_x[:, first:].tolist()
            errors.append(_errors(kind, pairs, some.tolist(), gradients, by_c.item()))
    return PairErrors(*(max(float(e) for e in column) for column in zip(*errors, strict=True)))


def _errors(kind: Kind, pairs: list, found: list, by_x: list, by_c: float) -> tuple:
    """Errors of one distance per point, at curvature 1."""
    space = truth.Hyperboloid if kind is Lorentz else truth.Ball
    true = [space(1.0).dist(x, y) for x, y in pairs]
    distance = max(abs(mpf(f) - t) / t for f, t in zip(found, true, strict=True))
    gradient = slopes = mpf(0)
    for (x, y), covector in zip(pairs, by_x, strict=True):
        vector, _, (slope,) = derivatives(lambda x, y, c: space(c[0]).dist(x, y), x, y, [mpf(1)])
        rest = truth.combine(mpf(1), truth.exact(covector), mpf(-1), vector)
        gradient, slopes = max(gradient, size(kind, x, rest)), slopes + slope
    return distance, gradient, abs(mpf(by_c) - slopes) / sum(true)


def lines() -> Iterator[str]:
    """The table, a line at a time."""

    def every(kind: Kind, radius: float, dtype: torch.dtype) -> list[PairErrors]:
        return [pair_errors(kind, radius, dtype, kernel=kernel) for kernel in KERNELS]

    rows = [(kind.__name__, (kind,)) for kind in (Lorentz, Poincare)]
    return table("distances", PairErrors._fields, "operators, cdist, dist", rows, every)
