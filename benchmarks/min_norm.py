"""The least-norm solvers and their goals: ``python -m benchmarks.min_norm``."""

import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.script import parser
from fedbolic.federated.aggregators.min_norm import frank_wolfe, min_norm_point

SIZES = (2, 10, 50, 100)
GOAL_GAP = 1e-12  # of the largest square norm
GOAL_RELATIVE = 1e-9  # of the least square norm f*, where f* is at least 1e-12 of the largest
GOAL_MILLISECONDS = 20.0  # median over the cases of 100 vectors, on an idle core
GOAL_STEP = 1e-14  # largest difference of a weight, one step of consistent updating


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


def timed(function, *, repeats: int) -> float:
    """The least time of a call in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def table(repeats: int, steps: int) -> bool:
    """Print a row per case; return True if the exact solver meets its goals."""
    head = f"{'case':<26}{'gap':>10}{'gap/f*':>10}{'f*':>10}{'ms':>8}"
    print(f"{head}{f'cu {steps}':>10}   (gaps and f* in units of the largest square norm)")
    gaps, relative, sums, times = [], [], [], []
    for name, x in cases():
        gram = x @ x.T
        largest, start = float(gram.max()), torch.full((len(x),), 1 / len(x)).double()
        p, _ = min_norm_point(gram, start)
        gap, norm = exact_gap(gram, p)
        resolved = norm >= 1e-12 * largest
        milliseconds = timed(lambda g=gram, s=start: min_norm_point(g, s), repeats=repeats)
        slow_gap = frank_wolfe(gram, start, steps)[1]
        gaps.append(gap / largest)
        relative.append(gap / norm if resolved else 0.0)
        sums.append(max(abs(float(p.sum()) - 1), float(-p.min())))
        if name.startswith("100 "):
            times.append(milliseconds)
        shown = f"{gap / norm:>10.0e}" if resolved else f"{'-':>10}"
        print(
            f"{name:<26}{gap / largest:>10.0e}{shown}{norm / largest:>10.0e}"
            f"{milliseconds:>8.2f}{slow_gap:>10.0e}"
        )
    return all(
        [
            verdict("C1 gap", max(gaps), GOAL_GAP),
            verdict("C1 gap/f*", max(relative), GOAL_RELATIVE),
            verdict("C1 |1'p - 1|, -min p", max(sums), 1e-12),
            verdict("C1 median ms, 100 vectors", statistics.median(times), GOAL_MILLISECONDS),
        ]
    )


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


def verdict(goal: str, value: float, bound: float) -> bool:
    """Print a measured value with its bound; return True if it meets the bound."""
    met = value <= bound
    print(f"{goal:<30}{value:>10.1e}  goal <= {bound:.0e}  {'met' if met else 'MISSED'}")
    return met


def main() -> None:
    """Print the table of cases and the goals."""
    args = parser(__doc__)
    args.add_argument("--repeats", type=int, default=20, help="timed calls per case")
    args.add_argument("--steps", type=int, default=250, help="steps of consistent updating")
    args.add_argument("--hulls", type=int, default=50, help="hulls for the stepwise check")
    options = args.parse_args()
    exact = table(options.repeats, options.steps)
    difference, rise = stepwise(options.hulls, 100)
    same = verdict("C2 |dp| of a step", difference, GOAL_STEP)
    monotone = verdict("C2 rise of the norm", rise, 1e-15)
    raise SystemExit(0 if exact and same and monotone else 1)


if __name__ == "__main__":
    main()
