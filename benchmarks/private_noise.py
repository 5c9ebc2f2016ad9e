"""Time of private noise: rounded normal draws, draws in floating point, discrete Gaussian draws."""

import argparse
import statistics

import torch

from benchmarks.timing import Case, interleaved
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.federated.noise.integers import LARGEST_VARIANCE

GOAL = 0.6
"""Largest time of rounded draws, in CPU seconds a million numbers."""


def main() -> None:
    """Print CPU seconds a million numbers, and the ratio to the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="numbers of a draw")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stream, size = SecretStream.fresh(), asked.size
    grids = [GaussianGrid(size, 1.0, z) for z in (1.0, 100.0)]
    one, part = torch.randn(1, size), size // 10
    cases: dict[str, Case] = {
        "rounded, noise 1 times the bound": lambda: grids[0].noise(stream),
        "rounded, noise 100 times the bound": lambda: grids[1].noise(stream),
        "four quantiles in floating point": lambda: stream.normal(size),
        "discrete Gaussian": lambda: stream.integers().gaussian(LARGEST_VARIANCE, part),
        "clipping and rounding of one vector": lambda: grids[0].rounded_sum(one),
    }
    times = interleaved(cases, "cpu", rounds=asked.repeats, least=0.0)
    for name, seconds in times.items():
        numbers = part if name == "discrete Gaussian" else size
        taken = statistics.median(seconds) * 1e6 / numbers
        print(f"{name:<36}{taken:>8.3f} s a million numbers, {taken / GOAL:>5.2f} of {GOAL} s")


if __name__ == "__main__":
    main()
