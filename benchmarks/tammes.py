"""Prototypes compared with the best known angles: ``python -m benchmarks.tammes``."""

import math
import time
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.script import parser
from fedbolic.core.rng import Rng
from hyperfed.prototypes import eq5, min_angle, tammes
from hyperfed.sphere import construct, search

GOAL_EXACT = 1e-12  # largest difference of the largest cosine from the closed form
GOAL_PERCENT = 1e-3  # largest shortfall of a searched angle
GOAL_SECONDS = 60.0  # for all searched cases of the goal together
GOAL_LARGE = 81.3  # degrees, 100 points in 20 dimensions, where the best is not known


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


def measure(case: Case, seed: int, steps: int) -> tuple[float, float]:
    """Print the row of a case; return its angle and its CPU seconds."""
    start = time.process_time()
    if construct(case.num_points, case.dim) is None:  # searched again, cached or not
        found = search(case.num_points, case.dim, Rng(seed).at("tammes"))
        angle = min_angle(torch.from_numpy(found))
    else:
        angle = min_angle(tammes(case.num_points, case.dim))
    seconds = time.process_time() - start
    paper = math.nan
    if steps:
        paper = min_angle(eq5(case.num_points, case.dim, seed=seed, steps=steps))
    name = f"({case.num_points}, {case.dim})"
    print(
        f"{name:<12}{angle:>12.6f}{case.best:>12.6f}{shortfall(angle, case):>11.1e}"
        f"{paper:>12.3f}{seconds:>9.2f}  {case.source}",
        flush=True,
    )
    return angle, seconds


def shortfall(angle: float, case: Case) -> float:
    """Shortfall of an angle from the best known, in percent."""
    return 100 * (1 - angle / case.best)


def verdict(goal: str, value: str, *, met: bool) -> bool:
    """Print whether a goal is met; return ``met``."""
    print(f"{goal:<48}{value:>12}  {'met' if met else 'MISSED'}")
    return met


def main() -> None:
    """Print the table of cases and the goals."""
    args = parser(__doc__)
    args.add_argument("--seed", type=int, default=0, help="seed of the searches")
    args.add_argument("--steps", type=int, default=5000, help="steps of Eq. 5; 0 leaves it out")
    args.add_argument("--no-large", action="store_true", help="leave out (100, 20)")
    options = args.parse_args()
    print(f"{'(C, n)':<12}{'ours':>12}{'best known':>12}{'short %':>11}{'Eq. 5':>12}{'CPU s':>9}")
    exact = [measure(case, options.seed, options.steps)[0] for case in EXACT]
    errors = [
        abs(np.cos(np.radians(angle)) - np.cos(np.radians(case.best)))
        for angle, case in zip(exact, EXACT, strict=True)
    ]
    rows = [measure(case, options.seed, options.steps) for case in SEARCHED]
    short = max(shortfall(angle, case) for (angle, _), case in zip(rows, SEARCHED, strict=True))
    seconds = sum(seconds for _, seconds in rows)
    large = None if options.no_large else measure(LARGE, options.seed, options.steps)[0]
    worst = max(errors)
    met = [
        verdict("C3 closed forms, cosine to 1e-12", f"{worst:.1e}", met=worst <= GOAL_EXACT),
        verdict("C3 searched, short by 1e-3 % at most", f"{short:.1e}", met=short <= GOAL_PERCENT),
        verdict("C3 searched, 60 s of one core", f"{seconds:.1f}", met=seconds <= GOAL_SECONDS),
    ]
    if large is not None:
        bound = levenshtein(LARGE.num_points, LARGE.dim)
        goal = f"C3 (100, 20) at least 81.3, no more than {bound:.2f}"
        met.append(verdict(goal, f"{large:.4f}", met=GOAL_LARGE <= large <= bound))
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
