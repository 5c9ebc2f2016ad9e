"""Gaps and times of the least-norm solvers, and angles of prototypes beside the best known.

    python -m benchmarks.solvers [--only min_norm tammes]

The exit code says whether all goals are met.

Takes 2 minutes.
"""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.script import parser
from benchmarks.table import Goal, goal_table, head, line
from benchmarks.timing import Clock, seconds
from fedbolic.core.rng import Rng
from fedbolic.federated.aggregators.min_norm import frank_wolfe, min_norm_point
from hyperfed.prototypes import eq5, min_angle, tammes
from hyperfed.sphere import construct, search

SIZES = (2, 10, 50, 100)
GOAL_GAP = 1e-12  # of the largest square norm
GOAL_RELATIVE = 1e-9  # of the least square norm f*, where f* is at least 1e-12 of the largest
GOAL_MILLISECONDS = 20.0  # median over the cases of 100 vectors, on an idle core
GOAL_STEP = 1e-14  # largest difference of a weight, one step of consistent updating
GOAL_EXACT = 1e-12  # largest difference of the largest cosine from the closed form
GOAL_PERCENT = 1e-3  # largest shortfall of a searched angle
GOAL_SECONDS = 60.0  # for all searched cases of the goal together
GOAL_LARGE = 81.3  # degrees, 100 points in 20 dimensions, where the best is not known


def cases(
    sizes: tuple[int, ...] = SIZES, *, dim: int = 200, seed: int = 0
) -> Iterator[tuple[str, Float[Tensor, "k dim"]]]:
    """Eight kinds of hulls for each number of vectors, by name."""
    for k in sizes:
        rng = np.random.default_rng([seed, k])
        x, common = rng.standard_normal((k, dim)), rng.standard_normal(dim)
        basis, points = rng.standard_normal((5, dim)), rng.standard_normal((k, 5))
        silent = x.copy()
        silent[k // 2] = 0
        hulls = {
            "independent": x,
            "common mean, scales": (common + x) * np.exp(rng.standard_normal((k, 1))),
            "near-duplicates 1e-4": common + 1e-4 * x,
            "rank 5, off zero": (points + 3 * np.eye(5)[0]) @ basis,
            "rank 5, over zero": (points - points.mean(0)) @ basis,
            "scales 1e-3 to 1e3": x * np.logspace(-3, 3, k)[:, None],
            "duplicates": x[rng.integers(0, (k + 1) // 2, k)],
            "one is zero": silent,
        }
        yield from ((f"{k} {name}", torch.from_numpy(hull)) for name, hull in hulls.items())


def exact_gap(gram: Float[Tensor, "k k"], p: Float[Tensor, " k"]) -> tuple[float, float]:
    """The gap and the square norm, in extended precision so that rounding does not blur them."""
    v, w = (x.numpy().astype(np.longdouble) for x in (gram, p))
    products = v @ w
    return float(w @ (products - products.min())), float(w @ products)


def textbook_step(x: Float[Tensor, "k dim"], p: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """One update of the paper from the vectors themselves, against the mean of all others.

    The three cases of Appendix C in extended precision, with the weights of the others normalised.
    """
    rows, w = x.numpy().astype(np.longdouble), p.numpy().astype(np.longdouble)
    tau = int((rows @ (w @ rows)).argmin())
    others = np.where(np.arange(len(w)) == tau, 0, w)
    others = others / others.sum()
    virtual, tough = others @ rows, rows[tau]
    if (tough - virtual) @ virtual >= 0:  # case 2
        t = np.longdouble(0)
    elif (tough - virtual) @ tough <= 0:  # case 3
        t = np.longdouble(1)
    else:
        t = (virtual - tough) @ virtual / ((tough - virtual) @ (tough - virtual))
    w = (1 - t) * others
    w[tau] = t
    return torch.from_numpy(w.astype(np.float64))


def stepwise(num_hulls: int, steps: int, *, seed: int = 0) -> tuple[float, float]:
    """Compare consistent updating with the paper's closed form.

    Returns:
        The largest difference of a weight after one step from the same weights, and the largest
        rise of the square norm over a step in units of the norm before it.
    """
    rng, difference, rise = np.random.default_rng(seed), 0.0, -np.inf
    for _ in range(num_hulls):
        k = int(rng.integers(2, 21))
        x = torch.from_numpy(rng.integers(-9, 10, (k, 30))).double()
        p, gram = torch.from_numpy(rng.dirichlet(np.ones(k))), x @ x.T
        for _ in range(steps):
            after, gap = frank_wolfe(gram, p, 1)
            difference = max(difference, float((after - textbook_step(x, p)).abs().max()))
            before = exact_gap(gram, p)[1]
            rise = max(rise, (exact_gap(gram, after)[1] - before) / before)
            p = after
            if gap < GOAL_GAP or p.max() == 1:
                break
    return difference, rise


def min_norm(repeats: int = 20, steps: int = 250, num_hulls: int = 50) -> list[Goal]:
    """Print a row per case, with the gap of consistent updating last; return the goals."""
    print("gaps and f* in units of the largest square norm\n")
    print(head("case", "gap", "gap/f*", "f*", "ms", f"consistent updating, {steps} steps"))
    gaps, relative, sums, times = [], [], [], []
    for name, x in cases():
        gram = x @ x.T
        largest, start = float(gram.max()), torch.full((len(x),), 1 / len(x)).double()
        p, _ = min_norm_point(gram, start)
        gap, norm = exact_gap(gram, p)
        resolved = norm >= 1e-12 * largest
        calls = (
            seconds(lambda g=gram, s=start: min_norm_point(g, s), "cpu") for _ in range(repeats)
        )
        milliseconds, slow_gap = 1000 * min(calls), frank_wolfe(gram, start, steps)[1]
        gaps.append(gap / largest)
        relative.append(gap / norm if resolved else 0.0)
        sums.append(max(abs(float(p.sum()) - 1), float(-p.min())))
        if name.startswith("100 "):
            times.append(milliseconds)
        cells = (
            f"{gap / largest:.0e}",
            f"{gap / norm:.0e}" if resolved else "",
            f"{norm / largest:.0e}",
        )
        print(line(name, *cells, f"{milliseconds:.2f}", f"{slow_gap:.0e}"))
    difference, rise = stepwise(num_hulls, 100)
    return [
        Goal("C1", "gap", "<=", GOAL_GAP, max(gaps)),
        Goal("C1", "gap/f*", "<=", GOAL_RELATIVE, max(relative)),
        Goal("C1", "|1'p - 1|, -min p", "<=", 1e-12, max(sums)),
        Goal("C1", "median ms, 100 vectors", "<=", GOAL_MILLISECONDS, statistics.median(times)),
        Goal("C2", "|dp| of a step", "<=", GOAL_STEP, difference),
        Goal("C2", "rise of the norm", "<=", 1e-15, rise),
    ]


@dataclass(frozen=True)
class Case:
    """A number of points and of dimensions, and the best known angle.

    Args:
        num_points: Number of points.
        dim: Dimension of the space.
        best: Best known angle in degrees; NaN if none is known.
        source: Origin of the angle.
    """

    num_points: int
    dim: int
    best: float
    source: str


def rankin(num_points: int, dim: int) -> float:
    """The best angle of up to twice ``dim`` points, or of a regular polygon, in degrees."""
    if dim == 2:
        return 360 / num_points
    return 90.0 if num_points > dim + 1 else math.degrees(math.acos(-1 / (num_points - 1)))


EXACT = [
    Case(num_points, dim, rankin(num_points, dim), "closed form")
    for num_points, dim in (
        *((10, 2), (7, 2), (10, 20), (16, 10), (100, 100), (100, 99)),
        *((26, 20), (40, 20), (100, 50), (10, 5), (5, 3)),
    )
]

# Degrees. Proven: 7 to 14 and 24 points in 3 dimensions; 10 in 4, 16 in 5, 27 in 6.
SLOANE = {
    **{7: 77.8695421, 8: 74.8584922, 9: 70.5287794, 10: 66.1468220, 11: 63.4349488},
    **{12: 63.4349488, 13: 57.1367031, 14: 55.6705700, 20: 47.4310362, 24: 43.6907671},
    **{26: 41.0376616, 32: 37.4752140},
}
COSINES = {(10, 4): 1 / 6, (24, 4): 1 / 2, (16, 5): 1 / 5, (27, 6): 1 / 4}
SEARCHED = [Case(num_points, 3, best, "Sloane") for num_points, best in SLOANE.items()] + [
    Case(num_points, dim, math.degrees(math.acos(cosine)), "Cohn")
    for (num_points, dim), cosine in COSINES.items()
]
LARGE = Case(100, 20, math.nan, "unknown")


def levenshtein(num_points: int, dim: int) -> float:
    """An upper bound of the angle in degrees, for slightly more than twice ``dim`` points.

    The bound of degree three holds while its cosine lies in its interval.

    References:
        Levenshtein (1992), Designs as maximum codes in polynomial metric spaces, bound L_3.
    """
    low, high = 0.0, (math.sqrt(dim + 3) - 1) / (dim + 2)
    for _ in range(100):
        s = (low + high) / 2
        if dim * (1 - s) * (2 + (dim + 1) * s) / (1 - dim * s * s) < num_points:
            low = s
        else:
            high = s
    return math.degrees(math.acos(low))


def placed(case: Case, seed: int, steps: int) -> tuple[float, float]:
    """Print the row of a case; return its angle and its CPU seconds."""
    clock = Clock()
    if construct(case.num_points, case.dim) is None:  # searched again, cached or not
        found = search(case.num_points, case.dim, Rng(seed).at("tammes"))
        angle = min_angle(torch.from_numpy(found))
    else:
        angle = min_angle(tammes(case.num_points, case.dim))
    taken = clock.lap()
    paper = min_angle(eq5(case.num_points, case.dim, seed=seed, steps=steps)) if steps else math.nan
    cells = f"{angle:.6f}", f"{case.best:.6f}", f"{shortfall(angle, case):.1e}", f"{paper:.3f}"
    name = f"({case.num_points}, {case.dim})"
    print(line(name, *cells, f"{taken:.2f}", case.source), flush=True)
    return angle, taken


def shortfall(angle: float, case: Case) -> float:
    """Shortfall of an angle in degrees from the best known, in percent."""
    return 100 * (1 - angle / case.best)


def prototypes(seed: int = 0, steps: int = 5000, *, large: bool = True) -> list[Goal]:
    """Print a row per case, with the paper's optimiser (Eq. 5) beside ours; return the goals."""
    print(f"\n{head('(C, n)', 'ours', 'best known', 'short %', 'Eq. 5', 'CPU s', 'source')}")
    errors = [
        abs(np.cos(np.radians(placed(case, seed, steps)[0])) - np.cos(np.radians(case.best)))
        for case in EXACT
    ]
    rows = [placed(case, seed, steps) for case in SEARCHED]
    short = max(shortfall(angle, case) for (angle, _), case in zip(rows, SEARCHED, strict=True))
    spent, found = sum(taken for _, taken in rows), None
    if large:
        found = placed(LARGE, seed, steps)[0]
    bound = levenshtein(LARGE.num_points, LARGE.dim)
    return [
        Goal("C3", "closed forms, cosine", "<=", GOAL_EXACT, max(errors)),
        Goal("C3", "searched, short by %", "<=", GOAL_PERCENT, short),
        Goal("C3", "searched, seconds of one core", "<=", GOAL_SECONDS, spent),
        Goal("C3", "(100, 20), degrees", ">=", GOAL_LARGE, found),
        Goal("C3", "(100, 20), degrees, upper bound", "<=", bound, found),
    ]


def main() -> None:
    """Print the tables of cases and the goals."""
    args, names = parser(__doc__), ("min_norm", "tammes")
    args.add_argument("--only", nargs="+", choices=names, default=names)
    args.add_argument("--repeats", type=int, default=20, help="timed calls of a least norm")
    args.add_argument("--steps", type=int, default=5000, help="steps of Eq. 5; 0 leaves it out")
    args.add_argument("--no-large", action="store_true", help="leave out (100, 20)")
    given = args.parse_args()
    goals = min_norm(given.repeats) if "min_norm" in given.only else []
    if "tammes" in given.only:
        goals += prototypes(steps=given.steps, large=not given.no_large)
    print(f"\n{goal_table(goals)}")
    raise SystemExit(any(goal.verdict == "not met" for goal in goals))


if __name__ == "__main__":
    main()
