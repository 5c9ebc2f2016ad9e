"""Candidates for FedHull's reference points: ``FEDBOLIC_DATA=DATA python -m benchmarks.pairs``.

Every number of pairs is tried on the same splits of Olsson's cells, on generated points, and on
the Fashion-MNIST embedding with its official test part; differences from one pair are paired.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.fedhull import GRID, olsson
from benchmarks.olsson import accuracy, interval
from fedbolic.core.rng import Rng
from fedbolic.data import ClassRuns, FederatedData, HalfPlanes, Points
from fedhull import Central, FedHull, HyperbolicBoundary, PolarGrid

PAIRS = (1, 2, 3, 5, 10)
FASHION = Path("poincare_embeddings/fashion-mnist/fashion-mnist_poincare_embedding.npz")


def compare(
    title: str, load: Callable[[int], FederatedData], *, num: int, C: float, grid: PolarGrid
) -> None:
    """Print the accuracy of both methods with every number of pairs, and CPU seconds of a run.

    Args:
        title: Name of the data.
        load: Loads the data of a draw.
        num: Number of draws.
        C: Lambda.
        grid: The bins.
    """
    found: dict[tuple[str, int], list[float]] = {}
    seconds: dict[tuple[str, int], list[float]] = {}
    for seed in range(num):
        data = load(seed)
        for pairs in PAIRS:
            boundary = HyperbolicBoundary(C, pairs=pairs)
            for name, method in (
                ("CP", Central(boundary)),
                ("FLP", FedHull(grid, boundary=boundary)),
            ):
                start = time.process_time()
                found.setdefault((name, pairs), []).append(accuracy(method, data, seed))
                seconds.setdefault((name, pairs), []).append(time.process_time() - start)
    print(f"\n{title}, {num} draws: accuracy in %, mean and 95 % interval; less that of one pair")
    for (name, pairs), values in found.items():
        gaps = [a - b for a, b in zip(values, found[name, 1], strict=True)]
        spent = statistics.median(seconds[name, pairs])
        print(f"  {name:<4} pairs {pairs:<3} {told(values)}  {told(gaps):<16} {spent:.2f} CPU s")


def told(values: Sequence[float]) -> str:
    """Mean and, for several values, half the width of its interval.

    Args:
        values: At least one value.
    """
    return interval(list(values)) if len(values) > 1 else f"{values[0]:.2f}"


def generated(seed: int) -> FederatedData:
    """The points of Figure 5, mu 0.2 and gamma 0.01.

    Args:
        seed: Seed of the draw.
    """
    return HalfPlanes(20_000, offset=0.2, margin=0.01, least=1000).load(Rng(seed))


def fashion(seed: int) -> FederatedData:
    """The embedding of Fashion-MNIST with its own test part, dealt to ten clients.

    Args:
        seed: Seed of the deal.
    """
    return Points(FASHION, ClassRuns(10), holdout="official").load(Rng(seed))


def main() -> None:
    """Print all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=60, help="splits of Olsson's cells")
    parser.add_argument("--draws", type=int, default=10, help="draws of generated points")
    parser.add_argument("--deals", type=int, default=1, help="deals of Fashion-MNIST's embedding")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = {"num": options.splits, "C": 0.1, "grid": GRID}
    compare("Olsson's cells", lambda i: olsson(i, legacy=None, seed=i), **cells)
    disc = {"num": options.draws, "C": 20_000.0, "grid": PolarGrid(0.1, 0.95)}
    compare("generated points", generated, **disc)
    images = {"num": options.deals, "C": 0.1, "grid": PolarGrid(0.1, 0.9991)}
    compare("Fashion-MNIST's embedding, official test part", fashion, **images)


if __name__ == "__main__":
    main()
