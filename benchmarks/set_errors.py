"""Errors of centroids and of translations of sets, of kernels and operators.

Called by ``benchmarks.kernel_errors``. Arguments are rounded once to the type; true values are the
textbook formulas in 60 digits, true derivatives their differences.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias
from unittest import mock

import torch
from mpmath import mp, mpf, workdps
from torch import Tensor

from benchmarks import truth
from benchmarks.error_table import row_error, table_of_models
from benchmarks.logit_errors import derivatives
from benchmarks.map_errors import MapErrors
from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.recentred import centred, recentred

NUM_POINTS, DIM = 6, 4

SPREAD = 0.5
"""Largest distance of the points from their neighbour at a radius."""

SetFunction: TypeAlias = Literal["centroid", "to origin", "from origin"]

SET_FUNCTIONS: tuple[SetFunction, ...] = ("centroid", "to origin", "from origin")


def set_arguments(
    kind: type[Lorentz | Poincare], name: SetFunction, radius: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Points about a point at a radius, the second argument, and numbers to multiply results with.

    The second argument is weights, the image of the mean, or a tangent as long as the radius, which
    moves images about the origin.
    """
    generator = torch.Generator().manual_seed(0)
    u, g = torch.randn(2, NUM_POINTS + 1, DIM, generator=generator, dtype=torch.float64)
    g, weights = g[1:], g.abs().sum(-1)[1:]
    u = u / u.norm(dim=-1, keepdim=True)
    tangent, near = radius * u[0], min(radius, SPREAD) * u[1:]
    image = Lorentz(1.0)
    about = image.expmap0(image.lift(near))[:, 1:]
    if name == "from origin":
        timed = torch.cat((g[:, :1], g), -1) if kind is Lorentz else g
        return about.to(dtype).requires_grad_(), tangent.to(dtype).requires_grad_(), timed.to(dtype)
    x = recentred(kind(1.0), about, tangent)
    if name == "to origin":
        second = image.expmap0(image.lift(tangent))[1:]
    else:
        second = weights
        g = torch.cat((g[:1, :1], g[:1]), -1)[0] if kind is Lorentz else g[0]
    return x.to(dtype).requires_grad_(), second.to(dtype).requires_grad_(), g.to(dtype)


def found_set(
    kind: type[Lorentz | Poincare], name: SetFunction, x: Tensor, y: Tensor, c: Tensor
) -> Tensor:
    """The result of this library."""
    if name == "centroid":
        return kind(c).centroid(x, y)
    return recentred(kind(c), x, y) if name == "from origin" else centred(kind(c), x, y)[1]


def true_set(
    kind: type[Lorentz | Poincare], name: SetFunction, x: list, y: list, c: truth.Number
) -> list:
    """All coordinates of the result in 60 digits, of all points."""
    ball, space = truth.Ball(1.0), truth.Hyperboloid(1.0)
    ball.c = space.c = c
    ball.root = space.root = mp.sqrt(c)

    def point(s: list) -> list:
        return [space.time(s), *s] if kind is Lorentz else truth.to_ball(space, s)

    width = len(x) // NUM_POINTS
    rows = [x[i : i + width] for i in range(0, len(x), width)]
    if name == "from origin":
        mean = space.expmap0(y)
        return [k for s in rows for k in point(_boosted(space, s, mean, 1))]
    images = [row[1:] if kind is Lorentz else truth.to_hyperboloid(ball, row) for row in rows]
    if name == "to origin":
        return [k for s in images for k in _boosted(space, s, y, -1)]
    mean = [truth.dot(y, list(column)) for column in zip(*images, strict=True)]
    time = truth.dot(y, [space.time(s) for s in images])
    length = space.root * mp.sqrt(time**2 - truth.dot(mean, mean))
    return point([k / length for k in mean])


def _boosted(space: truth.Hyperboloid, s: list, mean: list, sign: int) -> list:
    """The boost that takes the origin to the mean, or back."""
    share = space.c * truth.dot(mean, s) / (1 + space.root * space.time(mean))
    return truth.combine(mpf(1), s, share + sign * space.root * space.time(s), mean)


def set_errors(
    kind: type[Lorentz | Poincare], name: SetFunction, radius: float, dtype: torch.dtype
) -> list[MapErrors]:
    """Errors of one set, of the operators and of the kernels in their place.

    Those of the result and of gradients are in units of the largest coordinate, that of the
    derivative by the curvature in units of the sum of the absolute products.

    Args:
        kind: ``Lorentz`` or ``Poincare``.
        name: The function.
        radius: Distance of the set from the origin, in units of length.
        dtype: Type of the points.
    """
    x, y, g = set_arguments(kind, name, radius, dtype)
    c = torch.tensor(1.0, dtype=dtype, requires_grad=True)
    with workdps(60):
        p, r, weights = (truth.exact(t.flatten().tolist()) for t in (x, y, g))
        made = true_set(kind, name, p, r, mpf(1))
        *slopes, (by_c,) = derivatives(
            lambda p, r, c: truth.dot(weights, true_set(kind, name, p, r, c[0])), p, r, [mpf(1)]
        )
        unit = sum(abs(a * b) for a, b in zip(weights, made, strict=True))
        errors = []
        for kernel in (False, True):
            with mock.patch.object(kernels, "replace_operators", return_value=kernel):
                found = found_set(kind, name, x, y, c)
                *by_rows, curved = torch.autograd.grad((found * g).sum(), (x, y, c))
            three = [
                row_error(t.flatten(), true)
                for t, true in zip((found, *by_rows), (made, *slopes), strict=True)
            ]
            last = abs(mpf(curved.item()) - by_c) / unit
            errors.append(MapErrors(*(float(e) for e in (*three, last))))
    return errors


def rows() -> Iterator[str]:
    """The table, a line at a time."""
    columns = "result", "points", "second", "curvature"
    return table_of_models("sets", columns, SET_FUNCTIONS, set_errors)
