"""Radius up to which operations are right, against 60 digits, by curvature and dtype.

    python -m benchmarks.precision [--plot FILE]

geoopt and hypll are measured where they are installed.

Takes 3 minutes.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from mpmath import mpf
from torch import Tensor

from benchmarks.geometry import libraries, truth
from benchmarks.script import parser
from benchmarks.table import head, line

Cell: TypeAlias = tuple[str, float, str, float]
"""Model, curvature, dtype and radius (a true distance, not in units of length)."""

RADII = (1e-4, 1e-3, 1e-2, 0.1, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
RADII += (16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40)
CURVATURES = (1e-3, 0.1, 1.0, 10.0)
NUM_POINTS = 8
DIM = 4
SEPARATION = 0.01
STEP = 1.0
BROKEN = 1e-3


def model_of(model: str, c: float) -> truth.Ball | truth.Hyperboloid:
    """The textbook manifold."""
    return truth.Ball(c) if model == "ball" else truth.Hyperboloid(c)


def scaled(space: truth.Ball | truth.Hyperboloid, x: list, u: list, length: float) -> list:
    """The tangent ``u`` at ``x``, scaled to the given length."""
    factor = mpf(length) / space.norm(x, u)
    return [factor * a for a in u]


def stored(space: truth.Ball | truth.Hyperboloid, points: list[list], dtype: torch.dtype) -> Tensor:
    """Points rounded to floats; their time coordinate follows from the rounded coordinates."""
    x = torch.tensor([[float(a) for a in p] for p in points], dtype=torch.float64).to(dtype)
    if isinstance(space, truth.Ball):
        return x
    times = [float(space.time(truth.exact(p))) for p in x.tolist()]
    return torch.cat((torch.tensor(times, dtype=torch.float64).to(dtype).unsqueeze(-1), x), -1)


def inputs(cell: Cell) -> dict[str, Tensor]:
    """Inputs of every library, rounded once from 60 digits.

    ``u v`` tangents at the origin and ``x y`` points, all at the radius; ``near`` at 0.01 from
    ``x``; ``step`` a tangent at ``x`` of length 1; ``other`` a point at radius 1.
    """
    model, c, name, radius = cell
    space, dtype = model_of(model, c), getattr(torch, name)
    generator = torch.Generator().manual_seed(1)
    origin = [mpf(0)] * DIM

    def directions() -> list[list]:
        drawn = torch.randn(NUM_POINTS, DIM, generator=generator, dtype=torch.float64)
        return [truth.exact(row) for row in drawn.tolist()]

    def at(length: float) -> list[list]:
        return [space.expmap0(scaled(space, origin, u, length)) for u in directions()]

    def tangents(at: Tensor, length: float) -> Tensor:
        rows = zip(spatial(model, at), directions(), strict=True)
        made = [[float(a) for a in scaled(space, x, u, length)] for x, u in rows]
        u = torch.tensor(made, dtype=torch.float64).to(dtype)
        if isinstance(space, truth.Ball):
            return u
        firsts = [
            float(truth.dot(x, truth.exact(v)) / space.time(x))
            for x, v in zip(spatial(model, at), u.tolist(), strict=True)
        ]
        return torch.cat((torch.tensor(firsts, dtype=torch.float64).to(dtype).unsqueeze(-1), u), -1)

    x = stored(space, at(radius), dtype)
    zero = stored(space, [origin] * NUM_POINTS, dtype)
    close = [
        space.expmap(p, scaled(space, p, u, SEPARATION))
        for p, u in zip(spatial(model, x), directions(), strict=True)
    ]
    return {
        "u": tangents(zero, radius),
        "v": tangents(zero, radius),
        "x": x,
        "y": stored(space, at(radius), dtype),
        "near": stored(space, close, dtype),
        "step": tangents(x, STEP),
        "other": stored(space, at(STEP), dtype),
    }


def spatial(model: str, x: Tensor) -> list[list]:
    """Points in the coordinates of the textbook formulas."""
    return [truth.exact(row) for row in (x if model == "ball" else x[..., 1:]).tolist()]


def errors(cell: Cell, given: dict[str, Tensor], answers: dict[str, Tensor]) -> dict[str, float]:
    """The largest error of every result.

    For a length, the error is relative to the true one. For a point it is the distance from the
    true one, for a tangent the length of the difference, both over the length of the path.
    """
    model, c, _, radius = cell
    space = model_of(model, c)
    rows = {name: spatial(model, value) for name, value in given.items()}
    if not all(_holds(space, p) for name in ("x", "y", "near") for p in rows[name]):
        return dict.fromkeys(answers, math.inf)  # a point leaves the ball by rounding
    got = {
        name: value.tolist() if value.ndim == 1 else spatial(model, value)
        for name, value in answers.items()
    }
    found: dict[str, list[float]] = {name: [] for name in answers}
    for i in range(NUM_POINTS):
        mine = {name: values[i] for name, values in got.items()}
        for name, error in _errors(space, radius, {n: v[i] for n, v in rows.items()}, mine):
            found[name].append(error)
    return {
        name: math.nan if any(map(math.isnan, values)) else max(values, default=math.inf)
        for name, values in found.items()
    }


def _errors(
    space: truth.Ball | truth.Hyperboloid, radius: float, row: dict, got: dict
) -> Iterator[tuple[str, float]]:
    origin = [mpf(0)] * DIM
    reached = {"expmap0": space.expmap0(row["u"]), "expmap": space.expmap(row["x"], row["step"])}
    lengths = {
        "far from tangents": space.dist(reached["expmap0"], space.expmap0(row["v"])),
        "far": space.dist(row["x"], row["y"]),
        "near": space.dist(row["x"], row["near"]),
    }
    for name, true in lengths.items():
        if true:  # far out in the ball, two stored points may be equal
            yield name, abs(float((mpf(got[name]) - true) / true))
    if isinstance(space, truth.Ball):
        reached["mobius_add"] = space.add(row["x"], row["other"])
    for name, true in reached.items():
        yield (
            name,
            _apart(space, got[name], true) / (radius if name == "expmap0" else max(radius, STEP)),
        )
    for name, base, true, gone in (
        ("exp0, log0", origin, row["u"], radius),
        ("exp, log", row["x"], row["step"], STEP),
    ):
        off = truth.combine(mpf(1), got[name], mpf(-1), true)
        yield (
            name,
            float(space.norm(base, off)) / gone if all(map(math.isfinite, off)) else math.nan,
        )


def _holds(space: truth.Ball | truth.Hyperboloid, x: list) -> bool:
    return isinstance(space, truth.Hyperboloid) or space.c * truth.dot(x, x) < 1


def _apart(space: truth.Ball | truth.Hyperboloid, x: list, y: list) -> float:
    if not all(math.isfinite(a) for a in x):
        return math.nan
    return float(space.dist(x, y)) if _holds(space, x) else math.inf


def answers(space: Any, given: dict[str, Tensor], *, ball: bool) -> dict[str, Tensor]:
    """Results of a library in one cell of the grid, in float64."""
    x, reached = given["x"], space.expmap(given["x"], given["step"])
    out = {
        "far from tangents": space.dist(space.expmap0(given["u"]), space.expmap0(given["v"])),
        "far": space.dist(x, given["y"]),
        "near": space.dist(x, given["near"]),
        "expmap0": space.expmap0(given["u"]),
        "exp0, log0": space.logmap0(space.expmap0(given["u"])),
        "expmap": reached,
        "exp, log": space.logmap(x, reached),
    }
    if ball:
        out["mobius_add"] = space.mobius_add(x, given["other"])
    return {name: value.double() for name, value in out.items()}


def grid(dtypes: Sequence[str], curvatures: Sequence[float]) -> list[tuple[Cell, dict]]:
    """Every cell with its inputs."""
    cells = itertools.product(("ball", "hyperboloid"), curvatures, dtypes, RADII)
    return [(cell, inputs(cell)) for cell in cells]


Found: TypeAlias = dict[tuple[str, Cell], dict[str, float]]
"""Errors by operation, for a library and a cell."""


def measure(cells: list[tuple[Cell, dict]]) -> Found:
    """Errors of every library that is installed and has the model."""
    found: Found = {}
    for library, (cell, given) in itertools.product(libraries.LIBRARIES, cells):
        model, c, dtype, _ = cell
        space = libraries.space_of(library, model, c, getattr(torch, dtype))
        if space is not None:
            found[library, cell] = errors(cell, given, answers(space, given, ball=model == "ball"))
    return found


def reach(row: dict[float, float]) -> str:
    """The first radius from 0.5 upwards with an error above 1e-3, and the failures below 0.5."""
    broken = [r for r, e in row.items() if not e <= BROKEN]
    far = [f"{r:g}" for r in broken if r >= 0.5][:1] or [f">{max(row):g}"]
    nan = [f"NaN {r:g}" for r, e in row.items() if math.isnan(e)][:1]
    near = (
        [f"wrong to {max(r for r in broken if r < 0.5):g}"] if min(broken, default=1) < 0.5 else []
    )
    return ", ".join(far + near + nan)


def tables(found: Found) -> Iterator[str]:
    """A Markdown table per dtype and curvature: the radius up to which every operation is right."""
    cells = sorted({cell for _, cell in found}, key=str)
    operations = list(dict.fromkeys(name for row in found.values() for name in row))
    for dtype, c in dict.fromkeys((cell[2], cell[1]) for cell in cells):
        yield f"\n**{dtype}, c = {c:g}**\n\n{head('', *operations)}"
        for library, model in dict.fromkeys((name, cell[0]) for name, cell in found):
            rows = [found.get((library, (model, c, dtype, r)), {}) for r in RADII]
            texts = [
                reach({r: row[v] for r, row in zip(RADII, rows, strict=True)})
                if v in rows[0]
                else ""
                for v in operations
            ]
            yield line(f"{library} {model}", *texts)


def plot(found: Found, path: Path, c: float = 1.0) -> None:
    """Draw error over radius, one panel per operation and dtype."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    operations = ["far from tangents", "near", "expmap", "exp, log"]
    dtypes = list(dict.fromkeys(cell[2] for _, cell in found))
    figure, axes = pyplot.subplots(len(dtypes), len(operations), figsize=(14, 6), squeeze=False)
    for (i, dtype), (j, operation) in itertools.product(enumerate(dtypes), enumerate(operations)):
        for library, model in dict.fromkeys((name, cell[0]) for name, cell in found):
            row = [
                found.get((library, (model, c, dtype, r)), {}).get(operation, math.nan)
                for r in RADII
            ]
            style = "-" if library == "fedbolic" else "--"
            axes[i][j].loglog(RADII, row, style, label=f"{library} {model}")
        axes[i][j].axhline(BROKEN, color="grey", linewidth=0.5)
        axes[i][j].set_title(f"{operation}, {dtype}", fontsize=9)
    axes[0][0].legend(fontsize=7)
    figure.supxlabel("distance from the origin, c = 1")
    figure.supylabel("error")
    figure.tight_layout()
    figure.savefig(path, dpi=70)


def main() -> None:
    """Measure, print and draw."""
    options = parser(__doc__)
    options.add_argument("--dtype", nargs="+", default=["float32", "float64"])
    options.add_argument("--c", nargs="+", type=float, default=list(CURVATURES))
    options.add_argument("--plot", type=Path)
    given = options.parse_args()
    found = measure(grid(given.dtype, given.c))
    print("First radius (from 0.5 on) with an error above 1e-3 of what is true in 60 digits;")
    print(f"'wrong to r': also below 0.5, up to r. Of {NUM_POINTS} points in {DIM} dimensions.")
    for text in tables(found):
        print(text)
    if given.plot:
        plot(found, given.plot)


if __name__ == "__main__":
    main()
