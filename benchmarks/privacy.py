"""Audit of client-level privacy in one run, the time of private noise, and private means.

Each of many planted clients is in the run or not, by a coin. A client that is in sends, in every
round, an update of the largest norm along an axis of its own. From the released means alone an
auditor guesses who was in; too many right guesses disprove an epsilon.
The noise is rounded normal draws, draws in floating point, and discrete Gaussian draws.

``--means`` compares two private means of points in hyperbolic space, of curvature -1 within radius
1 of a public centre: by the Riemannian Laplace mechanism, and by normal noise on tangents.

Takes 30 seconds.
"""

import itertools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy
import torch

from benchmarks.results import Figures, Results
from benchmarks.script import parser
from benchmarks.table import head, line
from benchmarks.timing import Case, interleaved
from fedbolic.core.rng import Rng
from fedbolic.federated import ClientPrivacy, Cohort, Update
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.federated.noise.integers import LARGEST_VARIANCE
from fedbolic.federated.noise.riemannian_laplace import RiemannianLaplace, largest_scale
from fedbolic.federated.privacy.aggregation import PrivateAggregation
from fedbolic.federated.privacy.points import (
    LaplaceMean,
    PrivateMean,
    TangentMean,
    mean_sensitivity,
    necessary_epsilon,
)
from fedbolic.manifolds import Lorentz, frechet_mean
from fedbolic.methods import FedAvg
from fedbolic.testing.audit import lower_bound

EPSILONS = (1.0, 2.0, 4.0, 8.0)
CLIENTS, ROUNDS, DP_DELTA = 1000, 10, 1e-5
BOUND = 0.1

MEAN_DELTA = 1e-6
"""Delta of means by normal noise on tangents; that of Laplace means is 0."""

GOAL = 0.6
"""Largest time of rounded draws, in CPU seconds a million numbers."""


def scores(privacy: ClientPrivacy, present: np.ndarray) -> np.ndarray:
    """Sum of the released means along the axis of every planted client."""
    num_clients = len(present)
    method = FedAvg(rounds=ROUNDS)
    run = PrivateAggregation.of_run(privacy, method, Cohort(), num_clients)
    form = {"delta": {"x": torch.zeros(num_clients)}, "buffers": {}}
    axes = torch.eye(num_clients)
    state, total = run.begin(Rng(0), num_clients), torch.zeros(num_clients)
    for round in range(1, ROUNDS + 1):
        updates = (
            (i, Update({"delta": {"x": 9 * axes[i]}, "buffers": {}}))
            for i in np.flatnonzero(present).tolist()
        )
        members = range(num_clients)
        mean, state = run.mean(updates, form, members=members, state=state, round=round)
        total += mean.payload["delta"]["x"]
    return total.numpy()


def audit(privacy: ClientPrivacy, seed: int) -> Figures:
    """Bounds of epsilon by one run of the private aggregation.

    The auditor guesses for the clients with the largest and the smallest scores, a number of both
    that is fixed in advance.
    """
    present = Rng(seed).at("coins").numpy().random(CLIENTS) < 0.5
    order = np.argsort(scores(privacy, present))
    each = CLIENTS // 20
    right = int(present[order[-each:]].sum() + (~present[order[:each]]).sum())
    ledger = privacy.ledger(Cohort(), CLIENTS, ROUNDS)
    bound = lower_bound(right, 2 * each, CLIENTS, DP_DELTA)
    return {"ledger": ledger.epsilon(ROUNDS), "audit": bound, "right": right / (2 * each)}


def audit_table(file: Path, seeds: int) -> None:
    """Print the ledger's epsilon beside the audited lower bound, and a run without noise."""
    results = Results(file)
    base = ClientPrivacy(dp_delta=DP_DELTA, epsilon=1.0, clip_norm=BOUND)
    for seed in range(seeds):
        for epsilon in EPSILONS:
            key = "audit", f"epsilon {epsilon:g}", str(seed)
            results.add(key, audit, replace(base, epsilon=epsilon), seed)
        silent = replace(base, epsilon=None, noise_multiplier=1e-6)
        results.add(("audit", "almost no noise", str(seed)), audit, silent, seed)
    results.show("audit", ("ledger", "audit", "right"))


def noise_table(size: int = 1_000_000, rounds: int = 5) -> None:
    """Print CPU seconds of private noise for a million numbers, and the ratio to the goal."""
    stream, part = SecretStream.fresh(), size // 10
    grids, one = [GaussianGrid(size, 1.0, z) for z in (1.0, 100.0)], torch.randn(1, size)
    cases: dict[str, Case] = {
        "rounded, noise 1 times the bound": lambda: grids[0].noise(stream),
        "rounded, noise 100 times the bound": lambda: grids[1].noise(stream),
        "four quantiles in floating point": lambda: stream.normal(size),
        "discrete Gaussian": lambda: stream.integers().gaussian(LARGEST_VARIANCE, part),
        "clipping and rounding of one vector": lambda: grids[0].rounded_sum(one),
    }
    print(f"\n{head('a million numbers', 'CPU seconds', f'of {GOAL} s')}")
    for name, seconds in interleaved(cases, "cpu", rounds=rounds, least=0.0).items():
        numbers = part if name == "discrete Gaussian" else size
        taken = statistics.median(seconds) * 1e6 / numbers
        print(line(name, f"{taken:.3f}", f"{taken / GOAL:.2f}"))


def laplace_error(space: Lorentz, dim: int, num: int, epsilon: float) -> float:
    """Root of the expected squared distance of a Laplace mean from the exact one."""
    origin = space.origin(dim + 1, dtype=torch.float64)
    noise = RiemannianLaplace(space, origin, mean_sensitivity(1.0, num) / epsilon)
    levels = (np.arange(200) + 0.5) / 200
    return float(np.mean([noise.quantile(level) ** 2 for level in levels]) ** 0.5)


def tangent_error(dim: int, num: int, epsilon: float) -> float:
    """Root of the expected squared length of the noise of a tangent mean."""
    return TangentMean(epsilon, MEAN_DELTA).ledger().noise_multiplier * dim**0.5 / num


def crossing(space: Lorentz, dim: int, num: int, least: float) -> float:
    """Epsilon above which Laplace noise is the smaller one; infinite if that is above 100."""

    def excess(log_epsilon: float) -> float:
        epsilon = math.exp(log_epsilon)
        laplace = laplace_error(space, dim, num, epsilon)
        return math.log(laplace / tangent_error(dim, num, epsilon))

    low, high = math.log(1.001 * least), math.log(100.0)
    if excess(high) > 0:
        return math.inf
    if excess(low) <= 0:
        return math.exp(low)
    return math.exp(float(scipy.optimize.root_scalar(excess, bracket=(low, high), xtol=1e-2).root))


def measured_error(mean: PrivateMean, space: Lorentz, dim: int, num: int, *, draws: int) -> float:
    """Root mean squared distance of private means from exact ones, of points off the centre."""
    squares = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        tangents = 0.2 * torch.randn(num, dim, generator=generator).double() / dim**0.5
        tangents[:, 0] += 0.3
        points = space.expmap0(space.lift(tangents))
        found = mean.release(space, points)
        squares.append(float(space.dist(found, frechet_mean(space, points))) ** 2)
    return statistics.fmean(squares) ** 0.5


def means_table(draws: int = 40) -> None:
    """Print where the two private means cross, next to the floor of the Laplace mechanism."""
    space = Lorentz(c=1.0)
    names = (
        *("floor of epsilon", "needed for an error of 1/4 by any mechanism without delta"),
        "Laplace is better from epsilon",
        *("error at epsilon 8 in radii: Laplace", "tangents"),
    )
    print("\n**Private means**\n\n" + head("dimension, points", *names))
    for dim, num in itertools.product((2, 5, 10, 50), (100, 1000)):
        least = mean_sensitivity(1.0, num) / largest_scale(space, dim)
        means = [LaplaceMean(8.0), TangentMean(8.0, MEAN_DELTA)]
        found = [measured_error(m, space, dim, num, draws=draws) if m.epsilon > least or i else 0
                 for i, m in enumerate(means)]  # fmt: skip
        cells = [f"{x:.4f}" if x else "refused" for x in found]
        better = crossing(space, dim, num, least)
        from_ = f"{better:.2g}" if better < math.inf else "above 100"
        needed = necessary_epsilon(space, dim, num_points=num, radius=1.0, error=0.25)
        print(line(f"{dim}, {num}", f"{least:.3g}", f"{needed:.2g}", from_, *cells))


def main() -> None:
    """Print the tables."""
    args = parser(__doc__, "runs/privacy.csv")
    args.add_argument("--seeds", type=int, default=5, help="draws of the coins")
    args.add_argument("--size", type=int, default=1_000_000, help="numbers of a draw of noise")
    args.add_argument("--means", action="store_true", help="print the table of private means alone")
    given = args.parse_args()
    if given.means:
        means_table()
        return
    audit_table(given.results, given.seeds)
    noise_table(given.size)


if __name__ == "__main__":
    main()
