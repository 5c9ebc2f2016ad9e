"""FedHull on many splits of Olsson's cells: ``python -m benchmarks.olsson``.

The paper's intervals are over partitions of one split with 48 test cells. The cells are read from
the folder named by FEDBOLIC_DATA.
"""

import argparse
import math
import statistics

import torch
from scipy.stats import t as student

from benchmarks.fedhull import GRID, olsson
from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData
from fedbolic.federated import Method, Trainer
from fedhull import Central, EuclideanBoundary, FedHull, HyperbolicBoundary

PARTITIONS = 3
"""Partitions of each split for the federated rows; the other rows do not depend on them."""


def accuracy(method: Method, data: FederatedData, seed: int) -> float:
    """Accuracy in percent on the server's test set.

    Args:
        method: Method to run.
        data: Its clients.
        seed: Seed of the run.
    """
    *_, (_, rows) = Trainer().run(method, data, Rng(seed).at("run"))
    return 100 * next(row.value for row in rows if row.name == "holdout/accuracy")


def majority(data: FederatedData) -> float:
    """Accuracy in percent of always predicting the most frequent training class.

    Args:
        data: A split.
    """
    labels = torch.cat([client.train.all()["y"] for client in data.clients])
    assert data.holdout is not None  # Olsson's cells have a test set
    return 100 * float((data.holdout.test.all()["y"] == labels.mode().values).double().mean())


def splits(num: int, C: float) -> dict[str, list[float]]:
    """Accuracies of every row in every split, printed as they are computed.

    Args:
        num: Number of splits.
        C: Penalty of a violated margin: lambda.
    """
    rows: dict[str, Method] = {
        "CP": Central(HyperbolicBoundary(C)),
        "CE": Central(EuclideanBoundary(C)),
        "CH-CP": Central(HyperbolicBoundary(C), hulls="once"),
        "CH-CE": Central(EuclideanBoundary(C), hulls="once"),
        "FLP": FedHull(GRID, boundary=HyperbolicBoundary(C)),
        "FLE": FedHull(GRID, boundary=EuclideanBoundary(C)),
    }
    found: dict[str, list[float]] = {name: [] for name in ("majority", *rows)}
    for split in range(num):
        deals = [olsson(split, legacy=None, seed=seed) for seed in range(PARTITIONS)]
        found["majority"].append(majority(deals[0]))
        for name, method in rows.items():
            own = deals if isinstance(method, FedHull) else deals[:1]
            values = [accuracy(method, data, seed) for seed, data in enumerate(own)]
            found[name].append(statistics.fmean(values))
        line = ", ".join(f"{name} {values[-1]:.2f}" for name, values in found.items())
        print(f"split {split}: {line}", flush=True)
    return found


def half_width(values: list[float]) -> float:
    """Half the width of the 95 % interval of the mean, by Student's distribution.

    Args:
        values: At least two values.
    """
    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(student.ppf(0.975, len(values) - 1)) * error


def interval(values: list[float]) -> str:
    """Mean and half the width of its interval.

    Args:
        values: At least two values.
    """
    return f"{statistics.fmean(values):.2f} ± {half_width(values):.2f}"


def main() -> None:
    """Print accuracies over splits with 95 % intervals, and paired differences.

    The intervals treat the splits as independent, although all are splits of the same 319 cells.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=60, help="number of splits of the cells")
    parser.add_argument("--penalty", type=float, default=0.1, help="penalty lambda")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = splits(options.splits, options.penalty)
    print(f"\n{options.splits} splits, lambda {options.penalty}: mean and 95 % interval, %")
    for name, values in found.items():
        print(f"  {name:<12}{interval(values)}")
    for one, other in (("FLP", "CP"), ("FLP", "FLE"), ("CP", "CE"), ("CH-CP", "CP")):
        gaps = [a - b for a, b in zip(found[one], found[other], strict=True)]
        ahead = 100 * statistics.fmean(gap > 0 for gap in gaps)
        print(f"  {one + ' - ' + other:<12}{interval(gaps)}, ahead in {ahead:.0f} % of splits")


if __name__ == "__main__":
    main()
