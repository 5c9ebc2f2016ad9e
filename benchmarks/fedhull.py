"""FedHull: hull sizes, time by stage, many splits of cells: ``python -m benchmarks.fedhull``.

Times are of the processor, in one process that plays all parties. Olsson's cells are read from the
folder named by FEDBOLIC_DATA.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t as student

from fedbolic import tree
from fedbolic.data import ClassRuns, FederatedData, HalfPlanes, Points, uniform_points
from fedbolic.federated import Method, Sequential, Trainer, Update
from fedbolic.federated.modular import from_limbs
from fedbolic.rng import Rng
from fedhull import Central, Euclidean, FedHull, Hyperbolic, PolarGrid
from fedhull.exchanges import Hulls
from fedhull.grouping import hull_distances
from fedhull.hull import hull
from fedhull.transmit import decode

OLSSON = Path("single_cell/olsson/olsson_poincare_embedding.npz")
GRID = PolarGrid(epsilon=0.01, radius=0.9772)
GOALS = {"Olsson trial": 0.080, "synthetic trial": 1.5, "hull of 10^6 points": 1.0}
SPEC = {
    "client hulls": "9-11",
    "encode": "0.6-0.9",
    "decode": "2.1-2.5",
    "labels": "1.4-1.6",
    "distances": "0.7-0.8",
    "grouping": "2.3-3.3",
    "training": "37-48",
}


def hulls(sizes: tuple[int, ...]) -> float:
    """Print the size and time of hulls of uniform points; give the time of the last.

    Args:
        sizes: Numbers of points.
    """
    print(f"{'points':>10}{'corners':>10}{'over N^(1/3)':>14}{'CPU s':>10}")
    seconds = math.nan
    for num_points in sizes:
        x = uniform_points(num_points, radius=0.95, rng=Rng(0)).numpy()
        start = time.process_time()
        corners = len(hull(x))
        seconds = time.process_time() - start
        print(
            f"{num_points:>10}{corners:>10}{corners / num_points ** (1 / 3):>14.2f}{seconds:>10.4f}"
        )
    return seconds


class Clock:
    """Processor seconds by the name of a stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time of the body to a stage.

        Args:
            name: Of the stage.
        """
        start = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


def trial(method: FedHull, data: FederatedData) -> tuple[dict[str, float], float]:
    """Seconds by stage of one trial up to the trained model, and bytes that a client sends.

    Args:
        method: What is run.
        data: On which clients.
    """
    clock, state, memories, sent = Clock(), method.init(data.meta, Rng(0)), {}, 0.0
    for name in ("client hulls", "encode"):
        phase = method.phase(state)
        messages = {client.id: phase.broadcast(state, client.id) for client in data.clients}
        with clock.stage(name):
            results = list(Sequential().run(phase, messages, data.clients, memories, Rng(0)))
        memories = {client.id: memory for client, _, memory in results}
        updates = [(client.id, u) for client, u, _ in results if isinstance(u, Update)]
        sent += statistics.fmean(tree.num_bytes(update.payload) for _, update in updates)
        total = phase.aggregator.aggregate(updates)
        if isinstance(phase, Hulls):
            _serve(method, phase, state, from_limbs(total.payload["sums"]), clock)
        else:
            state = phase.server_update(state, total)
    return clock.seconds, sent


def _serve(method: FedHull, phase: Hulls, state: dict, sums: list[int], clock: Clock) -> None:
    """The server's stages after the sum, one by one."""
    num_labels, num_classes = state["num_labels"], state["num_classes"]
    with clock.stage("decode"):
        found = decode(sums, num_bins=method.grid.num_bins, modulus=phase.modulus)
    with clock.stage("labels"):
        read = [(j, k) for j, v in found.items() for k in method.code.decode(v, num_labels)]
    bins, labels = np.array(read, dtype=np.int64).T
    used = np.unique(labels)
    with clock.stage("distances"):
        parts = [method.grid.decode(bins[labels == label]) for label in used]
        distances = hull_distances(parts)
    with clock.stage("grouping"):
        groups = method.grouping.groups(distances, used // num_classes, num_groups=num_classes)
    of_label = np.full(num_labels, -1)
    of_label[used] = groups
    with clock.stage("training"):
        method.boundary.fit(method.grid.decode(bins), of_label[labels], c=method.grid.c)


def stages(title: str, method: FedHull, load: Callable[[int], FederatedData], trials: int) -> float:
    """Print the median time of every stage; give that of a whole trial.

    Args:
        title: Of the table.
        method: What is run.
        load: The data of a trial.
        trials: How many, after one to warm up.
    """
    trial(method, load(0))
    measured = [trial(method, load(i)) for i in range(trials)]
    print(f"\n{title}: median of {trials} trials, ms of CPU" + " " * 6 + "(spec, Olsson)")
    for name in measured[0][0]:
        median = statistics.median(seconds[name] for seconds, _ in measured)
        print(f"  {name:<16}{1000 * median:>10.1f}{SPEC.get(name, ''):>16}")
    total = statistics.median(sum(seconds.values()) for seconds, _ in measured)
    print(f"  {'together':<16}{1000 * total:>10.1f}")
    print(f"  bytes up of a client: {statistics.fmean(sent for _, sent in measured):.0f}")
    return total


def olsson(split: int | None, *, legacy: int | None, seed: int) -> FederatedData:
    """Olsson's cells, dealt to three clients.

    Args:
        split: Seed of the split.
        legacy: As in ``ClassRuns``.
        seed: Of the partition.
    """
    source = Points(OLSSON, ClassRuns(3, legacy=legacy), split=split)
    return source.load(Rng(seed).at("data"))


def accuracy(method: Method, data: FederatedData, seed: int) -> float:
    """In percent, on the server's test set.

    Args:
        method: What is run.
        data: On which clients.
        seed: Of the run.
    """
    *_, (_, rows) = Trainer().run(method, data, Rng(seed).at("run"))
    return 100 * next(row.value for row in rows if row.name == "holdout/accuracy")


def splits(num: int, C: float) -> None:
    """Print accuracies over many splits, three partitions each, with 95 % intervals.

    The intervals take splits as independent, which splits of the same 319 cells are not.

    Args:
        num: How many splits.
        C: The price of a violated margin: lambda.
    """
    rows: dict[str, Method] = {
        "CP": Central(Hyperbolic(C)),
        "CE": Central(Euclidean(C)),
        "CH-CP": Central(Hyperbolic(C), hulls="once"),
        "CH-CE": Central(Euclidean(C), hulls="once"),
        "FLP": FedHull(GRID, boundary=Hyperbolic(C)),
        "FLE": FedHull(GRID, boundary=Euclidean(C)),
    }
    found: dict[str, list[float]] = {name: [] for name in rows}
    for split in range(num):
        for name, method in rows.items():
            seeds = range(3) if isinstance(method, FedHull) else range(1)
            data = [olsson(split, legacy=None, seed=seed) for seed in seeds]
            values = [accuracy(method, of, seed) for seed, of in zip(seeds, data, strict=True)]
            found[name].append(statistics.fmean(values))
        line = ", ".join(f"{name} {values[-1]:.2f}" for name, values in found.items())
        print(f"split {split}: {line}", flush=True)
    print(f"\n{num} splits, lambda {C}: mean and 95 % interval of accuracy in %")
    for name, values in found.items():
        print(f"  {name:<12}{_interval(values)}")
    for one, other in (("FLP", "CP"), ("FLP", "FLE"), ("CP", "CE"), ("CH-CP", "CP")):
        gaps = [a - b for a, b in zip(found[one], found[other], strict=True)]
        ahead = 100 * statistics.fmean(gap > 0 for gap in gaps)
        print(f"  {one + ' - ' + other:<12}{_interval(gaps)}, ahead in {ahead:.0f} % of splits")


def _interval(values: list[float]) -> str:
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.2f} ± {half:.2f}"


def main() -> None:
    """Print hull sizes, stages, splits, and which goals were met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=6, help="hulls of up to 10^this points")
    parser.add_argument("--trials", type=int, default=5, help="for the times by stage")
    parser.add_argument("--splits", type=int, default=0, help="of Olsson's cells; 60 take minutes")
    parser.add_argument("--only-splits", action="store_true", help="no sizes and no times")
    parser.add_argument("--price", type=float, default=0.1, help="lambda in the splits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only_splits:
        splits(options.splits, options.price)
        return
    measured = {"hull of 10^6 points": hulls(tuple(10**k for k in range(3, options.largest + 1)))}
    synthetic = HalfPlanes(num_points=20_000, offset=0.2, margin=0.01, least=1000)
    method = FedHull(PolarGrid(0.1, 0.95), boundary=Hyperbolic(20_000.0, pairs=1))
    measured["synthetic trial"] = stages(
        "20,000 points, 10 clients", method, lambda i: synthetic.load(Rng(i)), options.trials
    )
    measured["Olsson trial"] = stages(
        "Olsson, 3 clients",
        FedHull(GRID),
        lambda i: olsson(3, legacy=3, seed=i),
        options.trials,
    )
    if options.splits:
        splits(options.splits, options.price)
    print()
    for name, goal in GOALS.items():
        met = "met" if measured[name] <= goal else "MISSED"
        print(f"{name:<24}{measured[name]:>8.3f} s of at most {goal:.3f}  {met}")


if __name__ == "__main__":
    main()
