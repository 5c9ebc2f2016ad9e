"""FedHull: hull sizes, and CPU time by stage: ``python -m benchmarks.fedhull``.

One process plays all parties. Times of stages are taken within whole runs and printed next to those
that the specification measured in a separate trial. Olsson's cells are read from the folder named
by FEDBOLIC_DATA.
"""

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedbolic.core.rng import Rng
from fedbolic.data import ClassRuns, FederatedData, HalfPlanes, Points, uniform_points
from fedbolic.federated import Method, Trainer
from fedbolic.federated.secure import SecureSum
from fedhull import FedHull, HyperbolicBoundary, PolarGrid, exchanges
from fedhull.exchanges import Hulls, Names, Sizes
from fedhull.geometry.hull import hull
from fedhull.transmit import num_symbols

OLSSON = Path("single_cell/olsson/olsson_poincare_embedding.npz")
GRID = PolarGrid(epsilon=0.01, radius=0.9772)
GOALS = {"Olsson": 80.0, "20,000 points": 1500.0, "hull of 10^6 points": 1000.0}
SPEC = {
    "Olsson": {
        "client hulls, report": "9-11",
        "encode": "0.6-0.9",
        "decode": "2.1-2.5",
        "labels": "1.4-1.6",
        "distances": "0.7-0.8",
        "grouping": "2.3-3.3",
        "training": "37-48",
        "together": "60-74",
        "bytes up": "1176",
        "bytes up, packed": "956",
    },
    "20,000 points": {"together": "1200-1500", "bytes up": "32000-52000"},
}
"""Values of the specification, in ms and bytes; its totals contain 3 ms of masks and keys."""


def hulls(sizes: tuple[int, ...], seeds: int) -> float:
    """Print the sizes and times of hulls of uniform points; return the median seconds of the last.

    Args:
        sizes: Numbers of points.
        seeds: Number of point sets of each size.
    """
    print("| points | corners: mean ± sd | over N^(1/3) | ms of CPU |\n|-|-|-|-|")
    seconds = [math.nan]
    for num_points in sizes:
        corners, seconds = [], []
        for seed in range(seeds):
            x = uniform_points(num_points, radius=0.95, rng=Rng(seed)).numpy()
            start = time.process_time()
            corners.append(len(hull(x)))
            seconds.append(time.process_time() - start)
        mean, spread = statistics.fmean(corners), statistics.stdev(corners)
        share = mean / num_points ** (1 / 3)
        taken = 1000 * statistics.median(seconds)
        print(f"| {num_points} | {mean:.0f} ± {spread:.0f} | {share:.2f} | {taken:.1f} |")
    return 1000 * statistics.median(seconds)


@contextmanager
def watched(
    places: dict[str, tuple[Any, str]], seconds: dict[str, float]
) -> Iterator[dict[str, float]]:
    """Add up the CPU time of functions while the body runs.

    Args:
        places: A module or class and the name of its function, by stage.
        seconds: Seconds by stage, updated in place.
    """

    def clocked(stage: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def run(*args: object, **keywords: object) -> object:
            start = time.process_time()
            try:
                return function(*args, **keywords)
            finally:
                seconds[stage] = seconds.get(stage, 0.0) + time.process_time() - start

        return run

    kept = {stage: getattr(owner, name) for stage, (owner, name) in places.items()}
    for stage, (owner, name) in places.items():
        setattr(owner, name, clocked(stage, kept[stage]))
    try:
        yield seconds
    finally:
        for stage, (owner, name) in places.items():
            setattr(owner, name, kept[stage])


def run(method: Method, data: FederatedData) -> dict[str, float]:
    """The sum over clients of every metric of a run.

    Args:
        method: Method to run.
        data: Its clients.
    """
    found: dict[str, float] = {}
    for _, rows in Trainer().run(method, data, Rng(0)):
        for row in rows:
            found[row.name] = found.get(row.name, 0.0) + row.value
    return found


def trial(method: FedHull, data: FederatedData) -> dict[str, float]:
    """Milliseconds of each stage, of the whole run and of a masked run; bytes of a client.

    Args:
        method: Method to run.
        data: Its clients.
    """
    stages = {
        "client hulls, report": (Sizes, "local_update"),
        "encode": (Hulls, "local_update"),
        "decode": (exchanges, "decode_hulls"),
        "labels": (type(method.code), "decode"),
        "distances": (exchanges, "hull_distances"),
        "grouping": (type(method.grouping), "groups"),
        "training": (type(method.boundary), "fit"),
        "names": (Names, "local_update"),
    }
    with watched(stages, {}) as seconds:
        start = time.process_time()
        metrics = run(method, data)
        whole = time.process_time() - start
    found = {stage: 1000 * seconds[stage] for stage in stages}
    start = time.process_time()
    run(SecureSum(method), data)
    masked = time.process_time() - start
    modulus = method.init(data.meta, Rng(0))["modulus"]
    symbols = num_symbols(int(metrics["leakage/bins"]))
    return found | {
        "together": sum(found.values()),
        "a run, with scores": 1000 * whole,
        "the same, masked": 1000 * masked,
        "bytes up": metrics["bytes/up"] / data.meta.num_clients,
        "bytes up, packed": symbols * (modulus - 1).bit_length() / 8,
    }


def olsson(split: int | None, *, legacy: int | None, seed: int) -> FederatedData:
    """Olsson's cells, dealt to three clients.

    Args:
        split: Seed of the split.
        legacy: Same as in ``ClassRuns``.
        seed: Seed of the partition.
    """
    source = Points(OLSSON, ClassRuns(3, legacy=legacy), split=split)
    return source.load(Rng(seed).at("data"))


def cases() -> dict[str, tuple[FedHull, Callable[[int], FederatedData]]]:
    """Timed cases by title."""
    synthetic = HalfPlanes(num_points=20_000, offset=0.2, margin=0.01, least=1000)
    boundary = HyperbolicBoundary(20_000.0, pairs=1)
    return {
        "Olsson": (FedHull(GRID), lambda i: olsson(3, legacy=3, seed=i)),
        "20,000 points": (
            FedHull(PolarGrid(0.1, 0.95), boundary=boundary),
            lambda i: synthetic.load(Rng(i)),
        ),
    }


def main() -> None:
    """Print hull sizes, times of stages, and the goals that were met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="point sets of each size")
    parser.add_argument("--trials", type=int, default=10, help="runs for the times by stage")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured = {"hull of 10^6 points": hulls(tuple(10**k for k in range(3, 7)), options.seeds)}
    medians: dict[str, dict[str, float]] = {}
    for title, (method, load) in cases().items():
        trial(method, load(0))  # warm-up
        found = [trial(method, load(i)) for i in range(options.trials)]
        medians[title] = {name: statistics.median(of[name] for of in found) for name in found[0]}
        measured[title] = medians[title]["together"]
    heads = [head for title in medians for head in (title, "specification")]
    print(f"\nmedian of {options.trials} trials, ms of CPU")
    print("| | " + " | ".join(heads) + " |\n" + "|-" * (len(heads) + 1) + "|")
    for name in medians["Olsson"]:
        cells = [(f"{of[name]:.1f}", SPEC[title].get(name, "")) for title, of in medians.items()]
        print(f"| {name} | " + " | ".join(cell for pair in cells for cell in pair) + " |")
    print()
    for name, goal in GOALS.items():
        met = "met" if measured[name] <= goal else "MISSED"
        print(f"{name:<24}{measured[name]:>8.1f} ms of at most {goal:.0f}  {met}")


if __name__ == "__main__":
    main()
