"""Audit of client-level privacy in one run, and the time of private noise.

Each of many planted clients is in the run or not, by a coin. A client that is in sends, in every
round, an update of the largest norm along an axis of its own. From the released means alone an
auditor guesses who was in; too many right guesses disprove an epsilon.
The noise is rounded normal draws, draws in floating point, and discrete Gaussian draws.

Takes 30 seconds.
"""

import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
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
from fedbolic.federated.privacy.aggregation import PrivateAggregation
from fedbolic.methods import FedAvg
from fedbolic.testing.audit import lower_bound

EPSILONS = (1.0, 2.0, 4.0, 8.0)
CLIENTS, ROUNDS, DP_DELTA = 1000, 10, 1e-5
BOUND = 0.1

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


def main() -> None:
    """Print both tables."""
    args = parser(__doc__, "runs/privacy.csv")
    args.add_argument("--seeds", type=int, default=5, help="draws of the coins")
    args.add_argument("--size", type=int, default=1_000_000, help="numbers of a draw of noise")
    given = args.parse_args()
    audit_table(given.results, given.seeds)
    noise_table(given.size)


if __name__ == "__main__":
    main()
