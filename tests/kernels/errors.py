"""Errors of maps, centroids and translations of sets, of kernels and operators, against 60 digits.

Arguments are rounded once to the type; true values are the textbook formulas in 60 digits, true
derivatives their differences.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from unittest import mock

import torch
from mpmath import mp, mpf, workdps
from torch import Tensor

from benchmarks.geometry import truth
from benchmarks.table import head, line
from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.recentred import centred, recentred

RADII = (1e-3, 0.5, 2.0, 5.0, 9.0)
"""Distances of the points from the origin, in units of length."""

DTYPES = (torch.float32, torch.float64)
DIM, SPREAD = 4, 0.5
"""Dimensions, and the largest distance of the points of a set from their neighbour at a radius."""

Kind = type[Lorentz] | type[Poincare]


def table(
    what: str,
    columns: Sequence[str],
    candidates: str,
    names: Sequence[tuple[str, tuple]],
    errors: Callable[..., Iterable[Sequence[float]]],
) -> Iterator[str]:
    """A table of the errors of candidates in both types and at all radii, a line at a time."""
    yield head(what, "dtype", "radius", *(f"{column}: {candidates}" for column in columns))
    for (name, given), dtype, radius in itertools.product(names, DTYPES, RADII):
        found = zip(*errors(*given, radius, dtype), strict=True)
        cells = [", ".join(f"{e:.1e}" for e in same) for same in found]
        yield line(name, str(dtype).removeprefix("torch."), f"{radius:g}", *cells)


def directions(num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tangents at the origin of length 1 in space coordinates, and numbers to multiply results."""
    generator = torch.Generator().manual_seed(seed)
    u, g = torch.randn(2, num, DIM + 1, generator=generator, dtype=torch.float64)
    return u[:, 1:] / u[:, 1:].norm(dim=-1, keepdim=True), g


def of_model(kind: Kind, u: Tensor) -> Tensor:
    """Tangents at the origin with given lengths, from space coordinates."""
    return Lorentz(1.0).lift(u) if kind is Lorentz else u / 2


def derivatives(function: Callable[..., truth.Number], *given: list) -> list[list]:
    """Central differences of a function of lists, by every number."""
    step, made = mpf(10) ** -20, []
    for which, numbers in enumerate(given):

        def at(k: int, number: truth.Number, which: int = which) -> truth.Number:
            moved = [*given[which]]
            moved[k] = number
            return function(*given[:which], moved, *given[which + 1 :])

        ends = [(at(k, x + step), at(k, x - step)) for k, x in enumerate(numbers)]
        made.append([(above - below) / (2 * step) for above, below in ends])
    return made


def row_error(found: Sequence[float], true: list) -> truth.Number:
    """The largest error of a coordinate over the largest coordinate."""
    gaps = [abs(a - b) for a, b in zip(truth.exact(found), true, strict=True)]
    return max(gaps) / max(abs(b) for b in true)


@dataclass(frozen=True)
class Function:
    """A function of one or two tensors, by rows or of a set of rows.

    Args:
        arguments: Arguments and numbers to multiply results with, from a model and a radius.
        found: The result of this library on a manifold.
        true: The same in 60 digits, from a model, lists of coordinates and the curvature.
        by_rows: True if rows are independent; else all rows are one list.
    """

    arguments: Callable[[Kind, float], tuple[Tensor, ...]]
    found: Callable[..., Tensor]
    true: Callable[..., list]
    by_rows: bool = True


def errors_of(name: str, kind: Kind, radius: float, dtype: torch.dtype) -> list[list[float]]:
    """Errors of the operators, and of the kernel in their place.

    Those of the result and of the gradients by every argument are the largest over rows, in units
    of a row's largest coordinate. That of the derivative by the curvature is in units of its
    largest share of a row or, of a set, of the sum of the absolute products.
    """
    function = FUNCTIONS[name]
    *given, g = (t.to(dtype) for t in function.arguments(kind, radius))
    given, c = [t.requires_grad_() for t in given], torch.ones((), dtype=dtype, requires_grad=True)

    def rows(t: Tensor) -> list[list[float]]:
        return (t if function.by_rows else t.reshape(1, -1)).tolist()

    with workdps(60):
        exact = [[truth.exact(row) for row in rows(t)] for t in (*given, g)]
        made, slopes, unit = [], [], mpf(0)
        for *of_row, weights in zip(*exact, strict=True):
            made.append(function.true(kind, of_row, mpf(1)))

            def product(*moved: list, weights: list = weights) -> truth.Number:
                return truth.dot(weights, function.true(kind, moved[:-1], moved[-1][0]))

            slopes.append(derivatives(product, *of_row, [mpf(1)]))
            size = sum(abs(a * b) for a, b in zip(weights, made[-1], strict=True))
            unit = max(unit, abs(slopes[-1][-1][0]) if function.by_rows else size)
        *true, by_c = zip(*slopes, strict=True)
        errors = []
        for kernel in (False, True):
            with mock.patch.object(kernels, "replace_operators", return_value=kernel):
                result = function.found(kind(c), *given)
                *by_rows, curved = torch.autograd.grad((result * g).sum(), (*given, c))
            worst = [
                max(row_error(a, b) for a, b in zip(rows(t), of, strict=True))
                for t, of in zip((result, *by_rows), (made, *true), strict=True)
            ]
            gap = abs(mpf(curved.item()) - sum(slope for (slope,) in by_c))
            errors.append([float(e) for e in (*worst, gap / unit)])
    return errors


def of_origin(name: str) -> Function:
    """A map at the origin."""

    def arguments(kind: Kind, radius: float) -> tuple[Tensor, Tensor]:
        u, g = directions(5)
        x = of_model(kind, radius * u)
        x = x if name == "expmap0" else kind(1.0).expmap0(x)
        return x, g[:, -x.shape[-1] :]

    return Function(arguments, lambda space, x: getattr(space, name)(x), true_map(name))


def at_points(name: str) -> Function:
    """A map at points; every other tangent is as short as 0.01 radii, every other point as near."""

    def arguments(kind: Kind, radius: float) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        u, w, g = torch.randn(3, 6, DIM + 1, generator=generator, dtype=torch.float64)
        space, g = kind(1.0), g if kind is Lorentz else g[:, 1:]
        u, w = (of_model(kind, t[:, 1:]) for t in (u, w))
        shares = torch.tensor([0.01, 1.0]).repeat(3).unsqueeze(-1)
        x = space.expmap0(radius * u / space.norm(torch.zeros_like(u), u).unsqueeze(-1))
        w = radius * shares * w / space.norm(torch.zeros_like(w), w).unsqueeze(-1)
        y = space.transp0(x, w)
        return x, y if name == "expmap" else space.expmap(x, y), g

    return Function(arguments, lambda space, x, y: getattr(space, name)(x, y), true_map(name))


def true_map(name: str) -> Callable[..., list]:
    """All coordinates of a map in 60 digits, as a function of a model, rows and the curvature."""

    def true(kind: Kind, given: Sequence[list], c: truth.Number) -> list:
        if kind is Poincare:
            return getattr(truth.Ball(c), name)(*given)
        space, (base, *_) = truth.Hyperboloid(c), [x[1:] for x in given]
        made = getattr(space, name)(*(x[1:] for x in given))
        if name in ("expmap", "expmap0"):
            return [space.time(made), *made]
        return [truth.dot(base, made) / space.time(base) if name == "logmap" else mpf(0), *made]

    return true


def of_set(name: str) -> Function:
    """The centroid of a set, or a translation of it to the origin or from there.

    The second argument is weights, the image of the mean, or a tangent as long as the radius, which
    moves images about the origin.
    """
    image = Lorentz(1.0)

    def arguments(kind: Kind, radius: float) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        u, g = torch.randn(2, 7, DIM, generator=generator, dtype=torch.float64)
        g, weights = g[1:], g.abs().sum(-1)[1:]
        u = u / u.norm(dim=-1, keepdim=True)
        tangent = radius * u[0]
        about = image.expmap0(image.lift(min(radius, SPREAD) * u[1:]))[:, 1:]
        if name == "from origin":
            return about, tangent, torch.cat((g[:, :1], g), -1) if kind is Lorentz else g
        x = recentred(kind(1.0), about, tangent)
        if name == "to origin":
            return x, image.expmap0(image.lift(tangent))[1:], g
        return x, weights, torch.cat((g[0, :1], g[0])) if kind is Lorentz else g[0]

    def found(space: Lorentz | Poincare, x: Tensor, y: Tensor) -> Tensor:
        if name == "centroid":
            return space.centroid(x, y)
        return recentred(space, x, y) if name == "from origin" else centred(space, x, y)[1]

    return Function(arguments, found, true_set(name), by_rows=False)


def true_set(name: str) -> Callable[..., list]:
    """All coordinates of the result in 60 digits, of all points."""

    def true(kind: Kind, given: Sequence[list], c: truth.Number) -> list:
        (x, y), space = given, truth.Hyperboloid(c)

        def point(s: list) -> list:
            return [space.time(s), *s] if kind is Lorentz else truth.to_ball(space, s)

        def boosted(s: list, mean: list, sign: int) -> list:  # to the mean, or back
            share = c * truth.dot(mean, s) / (1 + space.root * space.time(mean))
            return truth.combine(mpf(1), s, share + sign * space.root * space.time(s), mean)

        width = len(x) // 6
        rows = [x[i : i + width] for i in range(0, len(x), width)]
        if name == "from origin":
            mean = space.expmap0(y)
            return [k for s in rows for k in point(boosted(s, mean, 1))]
        ball = truth.Ball(c)
        images = [r[1:] if kind is Lorentz else truth.to_hyperboloid(ball, r) for r in rows]
        if name == "to origin":
            return [k for s in images for k in boosted(s, y, -1)]
        mean = [truth.dot(y, list(column)) for column in zip(*images, strict=True)]
        time = truth.dot(y, [space.time(s) for s in images])
        length = space.root * mp.sqrt(time**2 - truth.dot(mean, mean))
        return point([k / length for k in mean])

    return true


ORIGIN, POINTS = ("expmap0", "logmap0"), ("expmap", "logmap")
SETS = ("centroid", "to origin", "from origin")
FUNCTIONS = {
    **{name: of_origin(name) for name in ORIGIN},
    **{name: at_points(name) for name in POINTS},
    **{name: of_set(name) for name in SETS},
}


def tables() -> Iterator[Iterator[str]]:
    """The tables of maps at the origin, of maps at points, and of sets."""
    for what, names, second in (
        ("maps", ORIGIN, ()),
        ("maps", POINTS, ("by argument",)),
        ("sets", SETS, ("by the second",)),
    ):
        columns = ("result", "by point", *second, "by curvature")
        cells = itertools.product((Lorentz, Poincare), names)
        rows = [(f"{kind.__name__} {name}", (name, kind)) for kind, name in cells]
        yield table(what, columns, "operators, kernel", rows, errors_of)
